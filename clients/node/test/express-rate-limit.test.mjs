// The store of express-rate-limit, with the real middleware and a real node.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import express from 'express'
import { rateLimit } from 'express-rate-limit'

import { TollgateStore } from 'tollgate-limiter/express-rate-limit'

import { get } from './http.mjs'
import { RealNode, freePort, waitUntil } from './nodes.mjs'

describe('the store of express-rate-limit', () => {
  let node
  before(async () => { node = await RealNode.start() })
  after(() => node.kill())

  test('admits the limit and denies the next request with the time to wait', async () => {
    await withApp({ policy: 'ten' }, { limit: 10, windowMs: 3600_000 }, async (url) => {
      for (let used = 1; used <= 10; used++) {
        const response = await get(url)
        assert.equal(response.status, 200)
        assert.equal(response.headers['ratelimit-remaining'], String(10 - used))
      }
      const denied = await get(url)
      assert.equal(denied.status, 429)
      const wait = Number(denied.headers['retry-after'])
      assert.ok(wait > 3500 && wait <= 3720, `retry after ${wait}`)
    })
  })

  test('counts the limit of the middleware as an inline quota', async () => {
    await withApp({ policy: 'inline', inline: true }, { limit: 3, windowMs: 60_000 }, async (url) => {
      const statuses = []
      for (let time = 0; time < 5; time++) statuses.push((await get(url)).status)
      assert.deepEqual(statuses, [200, 200, 200, 429, 429])
    })
  })

  test('admits exactly the limit of 64 concurrent requests', async () => {
    await withApp({ policy: 'ten', deadlineMs: 5000 }, { limit: 10, windowMs: 3600_000 }, async (url) => {
      const responses = await Promise.all(Array.from({ length: 64 }, () => get(url)))
      assert.equal(responses.filter(({ status }) => status === 200).length, 10)
    })
  })

  test('gives failed requests back', async () => {
    const options = { limit: 2, windowMs: 60_000, skipFailedRequests: true }
    await withApp({ policy: 'default' }, options, async (url, key, store) => {
      assert.equal((await get(`${url}missing`)).status, 404)
      await waitUntil('the refund', async () => (await store.get(key)) === undefined)
      assert.equal((await get(url)).headers['ratelimit-remaining'], '1')
    })
  })

  test('gives nothing back for denied requests, which were not charged', async () => {
    const options = { limit: 2, windowMs: 60_000, skipFailedRequests: true }
    await withApp({ policy: 'default' }, options, async (url) => {
      const statuses = []
      for (let time = 0; time < 6; time++) {
        statuses.push((await get(url)).status)
        await sleep(30)
      }
      assert.deepEqual(statuses, [200, 200, 429, 429, 429, 429])
    })
  })

  test('gives nothing back for a denial that the application calls a success', async () => {
    const requestWasSuccessful = (_request, response) => response.statusCode !== 401
    const options = { limit: 2, windowMs: 60_000, skipSuccessfulRequests: true, requestWasSuccessful }
    await withApp({ policy: 'default' }, options, async (url) => {
      const statuses = []
      for (let time = 0; time < 8; time++) {
        statuses.push((await get(`${url}guess`)).status)
        await sleep(30)
      }
      assert.deepEqual(statuses, [401, 401, 429, 429, 429, 429, 429, 429])
    })
  })

  test('lets denials absorb decrements only until the counts are whole again', async () => {
    const store = new TollgateStore({ nodes: node.url, policy: 'blink', deadlineMs: 5000, prefix: `${randomUUID()}-` })
    store.init({ limit: 2, windowMs: 3000, skipFailedRequests: true })
    for (const hits of [1, 2, 3, 3]) assert.equal((await store.increment('a')).totalHits, hits)
    await waitUntil('the counts are whole', async () => (await store.get('a')) === undefined)
    assert.equal((await store.increment('a')).totalHits, 1)
    await store.decrement('a')
    assert.equal(await store.get('a'), undefined)
    store.shutdown()
  })

  test('denies when the node denies, whatever a limit function returns', async () => {
    await withApp({ policy: 'default' }, { limit: () => 100, windowMs: 60_000 }, async (url) => {
      const statuses = []
      for (let time = 0; time < 4; time++) statuses.push((await get(url)).status)
      assert.deepEqual(statuses, [200, 200, 429, 429])
    })
  })

  test('admits nobody with a limit of 0', async () => {
    await withApp({ policy: 'inline', inline: true }, { limit: 0, windowMs: 60_000 }, async (url) => {
      assert.equal((await get(url)).status, 429)
    })
  })

  test('counts, gives back and forgets hits', async () => {
    const store = new TollgateStore({ nodes: node.url, policy: 'ten', deadlineMs: 5000, prefix: `${randomUUID()}-` })
    store.init({ limit: 10, windowMs: 3600_000 })
    assert.equal(await store.get('a'), undefined)
    assert.equal((await store.increment('a')).totalHits, 1)
    assert.equal((await store.increment('a')).totalHits, 2)
    assert.equal((await store.increment('b')).totalHits, 1)
    await store.decrement('a')
    assert.equal((await store.get('a')).totalHits, 1)
    await store.resetKey('a')
    assert.equal(await store.get('a'), undefined)
    assert.ok((await store.increment('a')).resetTime > new Date())
    store.shutdown()
  })

  test('rejects without a node, and passOnStoreError passes the request', async () => {
    const nodes = `http://127.0.0.1:${await freePort()}`
    const options = { limit: 2, windowMs: 60_000, logger: { error() {}, warn() {} } }
    await withApp({ nodes }, options, async (url) => assert.equal((await get(url)).status, 500))
    await withApp({ nodes }, { ...options, passOnStoreError: true }, async (url) => {
      assert.equal((await get(url)).status, 200)
    })
  })

  test('two stores of a request that count apart raise no alarm', async () => {
    const alarms = []
    const logger = { error: (error) => alarms.push(error.code), warn: (error) => alarms.push(error.code) }
    const key = randomUUID()
    const limited = (store, options = {}) =>
      rateLimit({ limit: 2, windowMs: 60_000, store, logger, keyGenerator: () => key, ...options })
    const store = (options) => new TollgateStore({ nodes: node.url, deadlineMs: 5000, ...options })
    const app = express()
    app.get(
      '/apart',
      limited(store({ policy: 'ten' })),
      limited(store({ policy: 'thousand' })),
      limited(store({ policy: 'ten', prefix: 'a-' })),
      limited(store({ policy: 'inline', inline: true })),
      limited(store({ policy: 'inline', inline: true }), { windowMs: 3600_000 }),
      (_request, response) => { response.send('hello') },
    )
    const same = [limited(store({ policy: 'ten' })), limited(store({ policy: 'ten' }))]
    app.get('/twice', ...same, (_request, response) => { response.send('hello') })
    const server = app.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const url = `http://127.0.0.1:${server.address().port}`
    try {
      assert.equal((await get(`${url}/apart`)).status, 200)
      assert.deepEqual(alarms, [])
      await get(`${url}/twice`)
      assert.deepEqual(alarms, ['ERR_ERL_DOUBLE_COUNT'])
    } finally {
      server.close()
      server.closeAllConnections()
    }
  })

  test('counts a limit that is a fraction or infinite', async () => {
    await withApp({ policy: 'inline', inline: true }, { limit: 2.5, windowMs: 60_000.5 }, async (url) => {
      const statuses = []
      for (let time = 0; time < 3; time++) statuses.push((await get(url)).status)
      assert.deepEqual(statuses, [200, 200, 429])
    })
    await withApp({ policy: 'inline', inline: true }, { limit: Infinity, windowMs: 60_000 }, async (url) => {
      assert.equal((await get(url)).status, 200)
    })
  })

  async function withApp(storeOptions, options, use) {
    const key = randomUUID()
    const store = new TollgateStore({ nodes: node.url, deadlineMs: 1000, ...storeOptions })
    const app = express()
    app.use(rateLimit({ standardHeaders: true, legacyHeaders: false, keyGenerator: () => key, store, ...options }))
    app.get('/', (_request, response) => { response.send('hello') })
    app.get('/guess', (_request, response) => { response.status(401).end() })
    app.use((_error, _request, response, _next) => { response.status(500).end() })
    const server = app.listen(0, '127.0.0.1')
    await once(server, 'listening')
    try {
      await use(`http://127.0.0.1:${server.address().port}/`, key, store)
    } finally {
      store.shutdown()
      server.close()
      server.closeAllConnections()
    }
  }
})
