// Sends each line of standard input, a JSON array of words, and prints each answer as JSON.
import readline from "node:readline";
import Redis from "ioredis";

const [host, port] = process.argv[2].split(":");
const client = new Redis({ host, port: Number(port) });
for await (const line of readline.createInterface({ input: process.stdin })) {
  const answer = await client.call(...JSON.parse(line)).catch((error) => ({ error: error.message }));
  console.log(JSON.stringify(answer));
}
client.disconnect();
