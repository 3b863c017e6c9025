// With the default options on Redis: leases pay for checks, checks leave no records, and a frozen
// Redis lets nothing pass that the node would not.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { after, before, describe, mock, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import express from 'express'
import { Redis } from 'ioredis'

import { Client, Unavailable } from 'tollgate-limiter'
import { tollgate } from 'tollgate-limiter/express'

import { urlOf } from './applications.mjs'
import { get } from './http.mjs'
import { RealNode, startRedis, waitUntil } from './nodes.mjs'

const FROZEN_MS = 10_000

describe('on Redis', () => {
  let server
  let redis
  let node
  before(async () => {
    const started = await startRedis()
    server = started.server
    redis = new Redis(started.port, { retryStrategy: () => 100 })
    redis.on('error', () => {})
    node = await RealNode.start('node/test/redis.yaml', undefined, started.environment)
  })
  after(async () => {
    await node?.kill()
    redis?.disconnect()
    server?.kill()
  })

  test('leases pay at least 90 % of the checks', async () => {
    const client = new Client({ nodes: node.url })
    const key = randomUUID()
    const sources = {}
    let left = 3000
    const loop = async () => {
      while (left-- > 0) {
        const { allowed, source } = await client.check({ policy: 'leased', key })
        assert.ok(allowed)
        sources[source] = (sources[source] ?? 0) + 1
      }
    }
    try {
      await Promise.all(Array.from({ length: 16 }, loop))
      assert.ok(sources.lease >= 2700, JSON.stringify(sources))
    } finally {
      client.close()
    }
  })

  test('100,000 checks of 100 keys keep at most 8 bytes for each in Redis', async () => {
    const client = new Client({ nodes: node.url, deadlineMs: 60_000 })
    const run = randomUUID()
    const memory = async () => Number(/used_memory:(\d+)/.exec(await redis.info('memory'))[1])
    try {
      const begin = await memory()
      for (let batch = 0; batch < 100; batch++) {
        const checks = Array.from({ length: 1000 }, (_, index) => ({ policy: 'day', key: `${run}-${index % 100}` }))
        const { results } = await client.checkBatch(checks)
        assert.ok(results.every(({ source }) => source === 'store'))
      }
      const bytes = ((await memory()) - begin) / 100_000
      assert.ok(bytes <= 8, `${bytes} bytes`)
    } finally {
      client.close()
    }
  })

  test('a check with once is charged once while its nodes freeze and die', async () => {
    const other = await RealNode.start('node/test/redis.yaml', undefined, node.environment)
    const client = new Client({ nodes: [other.url, node.url] })
    const key = randomUUID()
    let running = true
    let allowed = 0
    let unknown = 0
    const loop = async () => {
      while (running) {
        try {
          if ((await client.check({ policy: 'many', key, once: true })).allowed) allowed++
        } catch (error) {
          assert.ok(error instanceof Unavailable, String(error))
          unknown++
        }
        await sleep(2)
      }
    }
    const loops = Array.from({ length: 8 }, loop)
    const passes = async (number) => {
      const until = allowed + number
      await waitUntil(`${number} checks`, () => allowed >= until)
    }
    try {
      await passes(100)
      other.process.kill('SIGSTOP')
      await passes(100)
      other.process.kill('SIGCONT')
      await passes(100)
      await other.kill()
      await passes(100)
      running = false
      await Promise.all(loops)
      const charged = 100_000 - (await client.usage({ policy: 'many', key })).remaining
      assert.ok(charged >= allowed && charged <= allowed + unknown, `${charged} charged, ${allowed} allowed, ${unknown} unknown`)
    } finally {
      running = false
      client.close()
      await other.kill()
    }
  })

  test('a client whose deadline is not above the timeout of the node says so', async () => {
    const warn = mock.method(console, 'warn', () => {})
    const client = new Client({ nodes: node.url, deadlineMs: 50 })
    server.kill('SIGSTOP')
    try {
      // A process that is late waits longer, and may get the answer.
      const isLate = () => client.check({ policy: 'deny', key: randomUUID() }).then(() => false, (error) => error instanceof Unavailable)
      for (let tries = 0; tries < 100 && !(await isLate()); tries++);
      await waitUntil('the warning', () => warn.mock.callCount() > 0)
      const [text] = warn.mock.calls[0].arguments
      assert.match(text, /the deadline of 50 ms is not above the node's timeout of \d+ ms: set the deadline to at least \d+ ms$/)
    } finally {
      server.kill('SIGCONT')
      warn.mock.restore()
      client.close()
    }
  })

  test('a Redis that is frozen for 10 s lets nothing pass that the node would not', async () => {
    const app = express()
    const limiters = ['deny', 'local'].map((policy) => tollgate({ nodes: node.url, policy, key: (request) => request.get('x-user') }))
    app.get('/deny', limiters[0], (_request, response) => { response.send(response.locals.tollgate?.source ?? 'undecided') })
    app.get('/local', limiters[1], (_request, response) => { response.send(response.locals.tollgate?.source ?? 'undecided') })
    const listener = app.listen(0, '127.0.0.1')
    await once(listener, 'listening')
    const agent = new http.Agent({ keepAlive: true })
    const seen = []
    let running = true
    let frozen = false
    const loop = async (path, keyOf) => {
      while (running) {
        const during = frozen
        const key = keyOf()
        const { status, body } = await get(`${urlOf(listener)}${path}`, { 'x-user': key }, agent)
        seen.push({ path, key, status, source: status === 200 ? body : undefined, during: during && frozen })
      }
    }
    const loops = Array.from({ length: 32 }, (_, index) => {
      const exhausted = `exhausted-${index % 4}`
      // Half of the callers are new, and so no denial of them is known.
      const keyOf = index % 2 === 0 ? () => exhausted : randomUUID
      return loop(index < 16 ? 'deny' : 'local', keyOf)
    })
    try {
      await sleep(1000)
      frozen = true
      server.kill('SIGSTOP')
      await sleep(FROZEN_MS)
      server.kill('SIGCONT')
      frozen = false
      running = false
      await Promise.all(loops)
      const during = seen.filter((request) => request.during)
      assert.ok(during.length > 100, `only ${during.length} requests`)
      assert.deepEqual(seen.filter(({ source }) => source === 'undecided'), [], `of ${seen.length}`)
      assert.deepEqual(during.filter(({ path, status }) => path === 'deny' && status === 200), [])
      const passes = {}
      for (const { key, path } of during.filter(({ status }) => status === 200)) {
        passes[`${path} ${key}`] = (passes[`${path} ${key}`] ?? 0) + 1
      }
      for (const [caller, count] of Object.entries(passes)) assert.ok(count <= 5, `${caller} passed ${count} times`)
    } finally {
      server.kill('SIGCONT')
      running = false
      agent.destroy()
      listener.close()
      listener.closeAllConnections()
      for (const limiter of limiters) await limiter.close()
    }
  })
})
