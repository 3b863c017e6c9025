"""Sends each line of standard input, a JSON array of words, and prints each answer as JSON.

    client.py redis-py|redis-py-cluster ADDRESS

A line whose first word is PIPELINE has commands, which a pipeline with default options sends.
"""

import json
import sys

import redis

name, address = sys.argv[1:]
host, port = address.rsplit(":", 1)
make = {"redis-py": redis.Redis, "redis-py-cluster": redis.RedisCluster}[name]
client = make(host=host, port=int(port))


def send(words):
    if words[0] != "PIPELINE":
        return client.execute_command(*words)
    pipeline = client.pipeline()
    for command in words[1:]:
        pipeline.execute_command(*command.split())
    return pipeline.execute()


for line in sys.stdin:
    try:
        answer = send(json.loads(line))
    except redis.RedisError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer, default=bytes.decode), flush=True)
