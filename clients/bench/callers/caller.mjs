// Checks one key at a steady rate, like clients/go/bench/caller:
//
//   node caller.mjs NODES POLICY KEY RATE SECONDS
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'

import { Client } from '../../node/dist/esm/index.js'

const [nodes, policy, key] = [process.argv[2].split(','), process.argv[3], process.argv[4]]
const [rate, seconds] = process.argv.slice(5).map(Number)
const WORKERS = 8
const client = new Client({ nodes, deadlineMs: 10_000 })
const lines = []
// Date has whole milliseconds. The check lies between its begin and its end all the same.
const begin = () => Date.now() * 1000
const end = () => Date.now() * 1000 + 999

async function work(worker, began) {
  for (let i = worker; i < rate * seconds; i += WORKERS) {
    const pause = began + (i * 1000) / rate - performance.now()
    if (pause > 0) await sleep(pause)
    const from = begin()
    const answer = await client.check({ policy, key })
    lines.push(`${from} ${end()} ${answer.allowed} ${answer.source}`)
    if (performance.now() - began > seconds * 1000) return
  }
}

process.stdout.write('ready\n')
await once(process.stdin, 'data')
const began = performance.now()
await Promise.all(Array.from({ length: WORKERS }, (_, worker) => work(worker, began)))
await client.close()
process.stdout.write(lines.join('\n') + '\n')
process.stdin.destroy()
