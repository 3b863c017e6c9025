// The worker of examples/partner, under the policy of docs/waiting.md, before a partner with a limit.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import { urlOf } from './applications.mjs'
import { CLIENTS, RealNode } from './nodes.mjs'

const PAGE = readFileSync(join(CLIENTS, '../docs/waiting.md'), 'utf8')
const POLICY = /^```yaml\n(.*?)^```/ms.exec(PAGE)[1]
/** A start is as late as that, since an answer may take the whole deadline of the client. */
const LATE_MS = 300

/** Answers each order, and refuses the one of that number. */
async function startPartner(refused) {
  const calls = []
  const server = http.createServer((request, response) => {
    calls.push(performance.now())
    request.resume()
    response.writeHead(calls.length === refused ? 429 : 200, { 'retry-after': '2' }).end()
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return { calls, server }
}

/** Runs `work` with the `send` of the printed worker, its node and the calls of its partner. */
async function withWorker(refused, work) {
  const home = join(CLIENTS, 'node/test', `.readme-${randomUUID()}`)
  mkdirSync(home)
  const { calls, server } = await startPartner(refused)
  let node
  try {
    // A busy machine needs more than the default of 100 ms.
    writeFileSync(join(home, 'policies.yaml'), `${POLICY}    timeout: 5s\n`)
    node = await RealNode.start(join(home, 'policies.yaml'))
    process.env.TOLLGATE_NODES = node.url
    process.env.PARTNER_URL = urlOf(server).replace(/\/$/, '')
    copyFileSync(join(CLIENTS, '../examples/partner/worker.mjs'), join(home, 'worker.mjs'))
    const { send } = await import(join(home, 'worker.mjs'))
    await work(send, node, calls)
  } finally {
    await node?.kill()
    server.close()
    server.closeAllConnections()
    rmSync(home, { recursive: true })
  }
}

test('workers stay below the limit and obey a 429', async () => {
  await withWorker(8, async (send, node, calls) => {
    const delays = monitorEventLoopDelay({ resolution: 20 })
    delays.enable()
    const responses = await Promise.all(Array.from({ length: 30 }, (_, number) => send({ number })))
    assert.deepEqual(responses.map(({ status }) => status), Array(30).fill(200))
    assert.equal(calls.length, 31)
    // The loop is late on a busy machine.
    const late = LATE_MS + 2 * delays.max / 1e6
    calls.forEach((begin, first) => calls.slice(first).forEach((end, more) => {
      assert.ok(more <= (end - begin + late) / 100, `${more + 1} calls in ${end - begin} ms`)
    }))
    const during = calls.filter((at) => at > calls[7] + late && at < calls[7] + 1900)
    assert.deepEqual(during, [])
  })
})

test('a job above the burst ends its worker', { timeout: 60_000 }, async () => {
  await withWorker(undefined, async (send, node, calls) => {
    const isTooLarge = ({ decision }) => decision.reason === 'cost_exceeds_limit'
    await assert.rejects(send({}, 2), isTooLarge)
    assert.equal(calls.length, 0)
  })
})

test('a restart of the node ends no worker', { timeout: 60_000 }, async () => {
  await withWorker(3, async (send, node) => {
    const jobs = Array.from({ length: 20 }, (_, number) => send({ number }))
    await sleep(200)
    await node.kill()
    jobs.push(...Array.from({ length: 5 }, (_, number) => send({ number })))
    await sleep(500)
    await node.start()
    const responses = await Promise.all(jobs)
    assert.deepEqual(responses.map(({ status }) => status), Array(25).fill(200))
  })
})
