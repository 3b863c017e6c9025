// The store of @fastify/rate-limit, with the real plugin and a real node.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'

import rateLimit from '@fastify/rate-limit'
import fastify from 'fastify'

import { tollgateStore } from 'tollgate-limiter/fastify-rate-limit'

import { get } from './http.mjs'
import { RealNode, freePort } from './nodes.mjs'

describe('the store of @fastify/rate-limit', () => {
  let node
  before(async () => { node = await RealNode.start() })
  after(() => node.kill())

  test('admits max and denies the next request with the time to wait', async () => {
    await withApp({}, { max: 3, timeWindow: 60_000 }, async (url) => {
      for (let used = 1; used <= 3; used++) {
        const response = await get(url)
        assert.equal(response.status, 200)
        assert.equal(response.headers['x-ratelimit-remaining'], String(3 - used))
      }
      const denied = await get(url)
      assert.equal(denied.status, 429)
      const wait = Number(denied.headers['retry-after'])
      assert.ok(wait >= 50 && wait <= 62, `retry after ${wait}`)
    })
  })

  test('counts a route with a limit of its own apart', async () => {
    await withApp({}, { max: 3, timeWindow: 60_000 }, async (url) => {
      assert.equal((await get(url)).headers['x-ratelimit-remaining'], '2')
      assert.equal((await get(`${url}once`)).status, 200)
      assert.equal((await get(`${url}once`)).status, 429)
      assert.equal((await get(url)).headers['x-ratelimit-remaining'], '1')
    })
  })

  test('counts the routes of a group together, and groups apart', async () => {
    const key = randomUUID()
    const store = tollgateStore({ nodes: node.url, deadlineMs: 5000, policy: 'inline' })
    const app = fastify({ forceCloseConnections: true })
    await app.register(rateLimit, { global: false, keyGenerator: () => key, store })
    const route = (path, groupId) =>
      app.get(path, { config: { rateLimit: { max: 2, timeWindow: 60_000, groupId } } }, async () => 'hello')
    for (const path of ['/a', '/b']) route(path, 'g')
    route('/c', 'h')
    route('/d', undefined)
    const url = await app.listen({ port: 0, host: '127.0.0.1' })
    try {
      const statuses = []
      for (const path of ['/a', '/b', '/a', '/b', '/c', '/d']) statuses.push((await get(url + path)).status)
      assert.deepEqual(statuses, [200, 200, 429, 429, 200, 200])
    } finally {
      await app.close()
    }
  })

  test('admits exactly max of 64 concurrent requests', async () => {
    await withApp({ deadlineMs: 5000 }, { max: 10, timeWindow: '1 hour' }, async (url) => {
      const responses = await Promise.all(Array.from({ length: 64 }, () => get(url)))
      assert.equal(responses.filter(({ status }) => status === 200).length, 10)
    })
  })

  test('reads the count without a charge', async () => {
    await withApp({}, { max: 3, timeWindow: 60_000 }, async (url) => {
      assert.deepEqual(JSON.parse((await get(`${url}look`)).body), { remaining: 3, isExceeded: false })
      assert.deepEqual(JSON.parse((await get(`${url}look`)).body), { remaining: 3, isExceeded: false })
    })
  })

  test('admits nobody with a max of 0', async () => {
    await withApp({}, { max: 0, timeWindow: 60_000 }, async (url) => assert.equal((await get(url)).status, 429))
  })

  test('rejects without a node, and skipOnError passes the request', async () => {
    const nodes = `http://127.0.0.1:${await freePort()}`
    await withApp({ nodes }, { max: 3 }, async (url) => assert.equal((await get(url)).status, 500))
    await withApp({ nodes }, { max: 3, skipOnError: true }, async (url) => assert.equal((await get(url)).status, 200))
  })

  test('rejects options that count denied requests', () => {
    const Store = tollgateStore({ nodes: node.url })
    for (const limits of [{ continueExceeding: true }, { exponentialBackoff: true }, { ban: 1 }]) {
      assert.throws(() => new Store(limits), /denied requests do not count/)
    }
    assert.ok(new Store({ ban: 0 }))
  })

  async function withApp(storeOptions, options, use) {
    const key = randomUUID()
    const store = tollgateStore({ nodes: node.url, deadlineMs: 1000, policy: 'inline', ...storeOptions })
    const app = fastify({ forceCloseConnections: true })
    await app.register(rateLimit, { keyGenerator: () => key, store, ...options })
    app.get('/', async () => 'hello')
    app.get('/once', { config: { rateLimit: { max: 1, timeWindow: 60_000 } } }, async () => 'hello')
    const look = app.createRateLimit()
    app.get('/look', { config: { rateLimit: false } }, async (request) => {
      const { remaining, isExceeded } = await look(request, { increment: false })
      return { remaining, isExceeded }
    })
    const url = `${await app.listen({ port: 0, host: '127.0.0.1' })}/`
    try {
      await use(url)
    } finally {
      await app.close()
    }
  }
})
