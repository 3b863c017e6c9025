// Sends each line of standard input, a JSON array of words, and prints each answer as JSON.
//
//   node client.js ioredis|ioredis-cluster|node-redis|node-redis-cluster ADDRESS
import readline from "node:readline";
import Redis from "ioredis";
import { createClient, createCluster } from "redis";

const [name, address] = process.argv.slice(2);
const [host, port] = address.split(":");
const url = `redis://${address}`;

/** Connects, and returns the functions that send a command and end. */
const clients = {
  async ioredis() {
    const client = new Redis({ host, port: Number(port) });
    return [(words) => client.call(...words), () => client.disconnect()];
  },
  async "ioredis-cluster"() {
    const client = new Redis.Cluster([{ host, port: Number(port) }]);
    return [(words) => client.call(...words), () => client.disconnect()];
  },
  async "node-redis"() {
    const client = await createClient({ url }).connect();
    return [(words) => client.sendCommand(words), () => client.destroy()];
  },
  async "node-redis-cluster"() {
    const client = createCluster({ rootNodes: [{ url }] });
    await client.connect();
    return [(words) => client.sendCommand(words[1], false, words), () => client.destroy()];
  },
};

const [send, end] = await clients[name]();
for await (const line of readline.createInterface({ input: process.stdin })) {
  const answer = await send(JSON.parse(line)).catch((error) => ({ error: error.message }));
  console.log(JSON.stringify(answer));
}
end();
