"""Sends each line of standard input, a JSON array of words, and prints each answer as JSON."""

import json
import sys

import redis

host, port = sys.argv[1].rsplit(":", 1)
client = redis.Redis(host=host, port=int(port))
for line in sys.stdin:
    try:
        answer = client.execute_command(*json.loads(line))
    except redis.RedisError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer, default=bytes.decode), flush=True)
