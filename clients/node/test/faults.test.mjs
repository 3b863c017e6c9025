// A node that dies or freezes under the load of each middleware and store.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import fastifyRateLimit from '@fastify/rate-limit'
import express from 'express'
import { rateLimit } from 'express-rate-limit'
import fastify from 'fastify'

import { TollgateStore } from 'tollgate-limiter/express-rate-limit'
import { tollgateStore } from 'tollgate-limiter/fastify-rate-limit'

import { FRAMEWORKS } from './applications.mjs'
import { get } from './http.mjs'
import { RealNode, waitUntil } from './nodes.mjs'

const DEADLINE_MS = 100
/** The longest request, and the longest wait for decisions after the return. */
const LIMIT_MS = 1000
const LOOPS = 16

const LIMITERS = {
  express: { start: FRAMEWORKS['Express 5'], decided: hasField, closedStatus: 503 },
  fastify: { start: FRAMEWORKS['Fastify 5'], decided: hasField, closedStatus: 503 },
  'express-rate-limit': { start: expressRateLimit, decided: hasField, closedStatus: 500 },
  '@fastify/rate-limit': { start: fastifyStore, decided: hasReset, closedStatus: 500 },
}

const FAULTS = {
  killed: { begin: (node) => node.kill(), end: (node) => node.start() },
  frozen: { begin: (node) => node.process.kill('SIGSTOP'), end: (node) => node.process.kill('SIGCONT') },
}

for (const [name, limiter] of Object.entries(LIMITERS)) {
  describe(name, () => {
    for (const [fault, { begin, end }] of Object.entries(FAULTS)) {
      for (const onFailure of ['open', 'closed']) {
        test(`a ${fault} node delays no request past the deadline, and failures are ${onFailure}`, async () => {
          const node = await RealNode.start()
          const key = (request) => request.headers['x-user']
          const options = { nodes: node.url, deadlineMs: DEADLINE_MS, policy: 'inline', key, onFailure }
          const app = await limiter.start({ ...options, quotas: ['1000 per 1h'] })
          const load = new Load(app.url, limiter.decided)
          try {
            await waitUntil('decisions', () => load.count((seen) => seen.decided) > 50)
            await begin(node)
            await waitUntil('the failure', () => load.count((seen) => !seen.decided) > 50)
            await sleep(700)
            await end(node)
            const back = performance.now()
            await waitUntil('decisions after the return', () => load.decidedSince(back) !== undefined)
            const delay = load.decidedSince(back) - back
            await load.stop()
            assert.ok(delay <= LIMIT_MS + load.stalledMs, `decisions returned after ${Math.round(delay)} ms`)
            const longest = Math.max(...load.seen.map((seen) => seen.took))
            assert.ok(longest <= LIMIT_MS + load.stalledMs, `a request took ${Math.round(longest)} ms`)
            const undecided = load.seen.filter((seen) => !seen.decided)
            const expected = onFailure === 'open' ? 200 : limiter.closedStatus
            assert.deepEqual([...new Set(undecided.map((seen) => seen.status))], [expected])
            assert.ok(load.seen.filter((seen) => seen.decided).every((seen) => seen.status === 200))
          } finally {
            await load.stop()
            await app.close()
            await node.kill()
          }
        })
      }
    }
  })
}

/** Loops of requests, one after another, with what each saw. */
class Load {
  seen = []
  #running = true
  #delays = monitorEventLoopDelay({ resolution: 10 })

  constructor(url, decided) {
    this.#delays.enable()
    this.agent = new http.Agent({ keepAlive: true })
    this.loops = Promise.all(Array.from({ length: LOOPS }, () => this.#loop(url, decided)))
  }

  async #loop(url, decided) {
    const headers = { 'x-user': randomUUID() }
    while (this.#running) {
      const start = performance.now()
      const response = await get(url, headers, this.agent)
      const end = performance.now()
      this.seen.push({ status: response.status, decided: decided(response), end, took: end - start })
      await sleep(5)
    }
  }

  count(which) { return this.seen.filter(which).length }

  decidedSince(time) {
    return this.seen.find((seen) => seen.decided && seen.end > time)?.end
  }

  /** Twice the longest time for which the machine did not run this process. */
  get stalledMs() { return 2 * this.#delays.max / 1e6 }

  async stop() {
    this.#running = false
    await this.loops
    this.agent.destroy()
  }
}

function hasField(response) {
  return response.headers.ratelimit !== undefined
}

/** The plugin writes its fields without a decision, too, with a reset of 0. */
function hasReset(response) {
  return Number(response.headers['x-ratelimit-reset']) > 0
}

async function expressRateLimit({ key, onFailure, quotas: _, ...options }) {
  const store = new TollgateStore({ ...options, inline: true })
  const app = express()
  app.use(rateLimit({
    limit: 1000,
    windowMs: 3600_000,
    standardHeaders: 'draft-8',
    keyGenerator: key,
    passOnStoreError: onFailure === 'open',
    logger: { error() {}, warn() {} },
    store,
  }))
  app.get('/', (_request, response) => { response.send('hello') })
  app.use((_error, _request, response, _next) => { response.status(500).end() })
  const server = app.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    async close() {
      store.shutdown()
      server.close()
      server.closeAllConnections()
    },
  }
}

async function fastifyStore({ key, onFailure, quotas: _, ...options }) {
  const app = fastify({ forceCloseConnections: true })
  await app.register(fastifyRateLimit, {
    max: 1000,
    timeWindow: 3600_000,
    keyGenerator: key,
    skipOnError: onFailure === 'open',
    store: tollgateStore(options),
  })
  app.get('/', async () => 'hello')
  return { url: `${await app.listen({ port: 0, host: '127.0.0.1' })}/`, close: () => app.close() }
}
