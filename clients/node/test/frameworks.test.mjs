// Each framework: its trusted proxies, its scopes, and the decision for its handlers.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import net from 'node:net'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import express from 'express'
import fastify from 'fastify'
import { Hono } from 'hono'

import { Client } from 'tollgate-limiter'
import { tollgate as expressMiddleware } from 'tollgate-limiter/express'
import { tollgate as fastifyPlugin, tollgateHook } from 'tollgate-limiter/fastify'
import { tollgate as fetchLimiter } from 'tollgate-limiter/fetch'

import { EXPRESSES, FASTIFIES, servedByFetch, urlOf } from './applications.mjs'
import { get } from './http.mjs'
import { RealNode, silentNode, waitUntil } from './nodes.mjs'

describe('in a framework', () => {
  let node
  let client
  before(async () => {
    node = await RealNode.start()
    client = new Client({ nodes: node.url, deadlineMs: 5000 })
  })
  after(async () => {
    client?.close()
    await node?.kill()
  })

  const bound = (use, framework) => (...rest) => use(framework, ...rest)
  const frameworks = {
    ...Object.fromEntries(Object.entries(EXPRESSES).map(([name, express]) => [name, bound(withExpress, express)])),
    ...Object.fromEntries(Object.entries(FASTIFIES).map(([name, fastify]) => [name, bound(withFastify, fastify)])),
  }
  for (const [name, withApp] of Object.entries(frameworks)) {
    test(`the address behind a trusted proxy of ${name} counts`, async () => {
      await withApp({ policy: 'address' }, true, async (url) => {
        const from = async (address) => (await get(url, { 'x-forwarded-for': address })).status
        assert.deepEqual([await from('192.0.2.1'), await from('192.0.2.1'), await from('192.0.2.1')], [200, 200, 429])
        assert.equal(await from('192.0.2.2'), 200)
      })
    })

    test(`a denial of ${name} may be answered by the application`, async () => {
      const denied = (decision, _request, response) => {
        if (decision.reason !== 'deny_listed') return { status: 420 }
        response.raw === undefined ? response.status(451).send('own') : void response.code(451).send('own')
      }
      await withApp({ policy: 'listed', key: () => 'mallory', denied }, false, async (url) => {
        const { status, body } = await get(url)
        assert.deepEqual([status, body], [451, 'own'])
      })
    })

    test(`an address of ${name} counts without its port and its zone`, async () => {
      const forms = ['192.0.2.1:5000', '192.0.2.1', '::ffff:192.0.2.1%eth0', '[2001:db8::1]:80', '2001:db8::1%eth0', '[2001:db8::1]']
      await withApp({ policy: 'address' }, true, async (url) => {
        await client.reset({ policy: 'address', key: '2001:db8::1' })
        const statuses = []
        for (const address of forms) statuses.push((await get(url, { 'x-forwarded-for': address })).status)
        assert.deepEqual(statuses, [200, 200, 429, 200, 200, 429])
      })
    })

    test(`closing ${name} waits for its drains and refunds`, async () => {
      const key = randomUUID()
      const drain = async () => { await sleep(300); return 4 }
      await withApp({ policy: 'ten', key: () => key, drain, client: undefined, nodes: node.url }, false, async (url) => {
        assert.equal((await get(url)).status, 200)
      })
      assert.equal((await client.usage({ policy: 'ten', key })).remaining, 5)
    })

    test(`a handler of ${name} sees the decision`, async () => {
      const key = randomUUID()
      await withApp({ policy: 'ten', key: () => key, cost: 3 }, false, async (url) => {
        assert.equal((await get(url)).body, 'remaining 7')
      })
    })

    test(`a caller of ${name} that leaves at once does not evade the limit`, async () => {
      const policy = 'thousand'
      const usage = async () => (await client.usage({ policy, key: '127.0.0.1' })).remaining
      const before = await usage()
      let failed = 0
      let left = 0
      // A slow function, as one that asks a database: the address is gone with the connection.
      const skip = async ({ socket }) => {
        if (!socket.destroyed) await once(socket, 'close')
        left++
        return false
      }
      await withApp({ policy, skip, onError: () => failed++ }, false, async (url, passed) => {
        for (let time = 0; time < 3; time++) await sendAndLeave(url)
        await waitUntil('the end of 3 requests', () => left === 3 && passed() + failed === 3)
        assert.equal(passed(), before - (await usage()), 'as many requests pass as count')
      })
    })

    test(`a caller of ${name} that leaves before its response gets nothing back`, async () => {
      const key = randomUUID()
      let left = 0
      const refund = ({ statusCode }) => { left++; return statusCode === 200 }
      await withApp({ policy: 'ten', key: () => key, refund, drain: () => { left++; return 0 } }, false, async (url, passed) => {
        for (let time = 1; time <= 3; time++) {
          await sendAndLeave(`${url}slow`)
          await waitUntil('the end of the request', () => left >= time)
        }
        assert.equal(passed(), 0)
        assert.equal((await client.usage({ policy: 'ten', key })).remaining, 7)
      })
    })

    test(`a check of ${name} goes on when its caller leaves`, async () => {
      const key = randomUUID()
      await withApp({ policy: 'ten', key: () => key }, false, async (url) => {
        for (let time = 0; time < 3; time++) await sendAndLeave(url)
        await waitUntil('3 charges', async () => (await client.usage({ policy: 'ten', key })).remaining === 7)
      })
    })

    test(`keys of ${name} that are no Unicode count each for itself`, async () => {
      const key = ({ headers }) => `${headers['x-user']}${headers['x-half'] === 'high' ? '\ud800' : '\udfff'}`
      await withApp({ key }, false, async (url) => {
        const user = randomUUID()
        const statusOf = async (half) => (await get(url, { 'x-user': user, 'x-half': half })).status
        const statuses = [await statusOf('high'), await statusOf('high'), await statusOf('high'), await statusOf('low')]
        assert.deepEqual(statuses, [200, 200, 429, 200])
      })
    })

    test(`a failing key function of ${name} is an error of the application`, async () => {
      const key = () => { throw new Error('no user') }
      await withApp({ key }, false, async (url) => assert.equal((await get(url)).status, 500))
    })

    test(`a body of ${name} may be JSON or come from a function`, async () => {
      const key = () => 'mallory'
      await withApp({ policy: 'listed', key, body: { error: 'slow' } }, false, async (url) => {
        const { headers, body } = await get(url)
        assert.match(headers['content-type'], /^application\/json/)
        assert.deepEqual(JSON.parse(body), { error: 'slow' })
      })
      const body = (decision, request) => `${decision.reason} ${request.headers['x-user']}`
      await withApp({ policy: 'listed', key, body }, false, async (url) => {
        assert.equal((await get(url, { 'x-user': 'eve' })).body, 'deny_listed eve')
      })
    })
  }

  test('a response that Express sent meanwhile ends no process', async () => {
    const silent = await silentNode()
    const app = express()
    app.use((_request, response, next) => {
      setTimeout(() => response.status(503).end('timeout'), 20)
      next()
    })
    const limiter = expressMiddleware({ nodes: silent.url, deadlineMs: 100, onFailure: 'closed' })
    app.use(limiter)
    const server = app.listen(0, '127.0.0.1')
    await once(server, 'listening')
    try {
      assert.equal((await get(`http://127.0.0.1:${server.address().port}/`)).body, 'timeout')
      // Whatever the limiter throws now would fail this test.
      await sleep(200)
    } finally {
      limiter.close()
      server.close()
      server.closeAllConnections()
      await silent.close()
    }
  })

  test('an onError that throws after the response is a warning of the process', async () => {
    const warned = once(process, 'warning')
    const onError = () => { throw new Error('from onError') }
    const drain = () => { throw new Error('from drain') }
    await withExpress(express, { key: () => randomUUID(), drain, onError }, false, async (url) => {
      assert.equal((await get(url)).status, 200)
      assert.equal((await warned)[0].message, 'from onError')
    })
  })

  for (const [name, chain] of Object.entries({ Express: twoOfExpress, Fastify: twoOfFastify, Hono: twoOfHono })) {
    test(`two limits of ${name} list their fields together, with the policy in front of a name that stands there`, async () => {
      const { headers } = await chain()
      assert.equal(headers['ratelimit-policy'], '"1h";q=10;w=3600, "thousand/1h";q=1000;w=3600')
      assert.match(headers.ratelimit, /^"1h";r=9;t=\d+, "thousand\/1h";r=999;t=\d+$/)
    })
  }

  const limits = () => ['ten', 'thousand'].map((policy) => ({ client, policy, key: () => key }))
  const key = randomUUID()

  async function twoOfExpress() {
    const app = express()
    app.use(...limits().map(expressMiddleware))
    app.get('/', (_request, response) => { response.send('hello') })
    const server = app.listen(0, '127.0.0.1')
    await once(server, 'listening')
    try {
      return await get(`http://127.0.0.1:${server.address().port}/`)
    } finally {
      server.close()
      server.closeAllConnections()
      await Promise.all(limits().map(({ policy }) => client.reset({ policy, key })))
    }
  }

  async function twoOfFastify() {
    const app = fastify({ forceCloseConnections: true })
    for (const options of limits()) await app.register(fastifyPlugin, options)
    app.get('/', async () => 'hello')
    try {
      return await get(await app.listen({ port: 0, host: '127.0.0.1' }))
    } finally {
      await app.close()
      await Promise.all(limits().map(({ policy }) => client.reset({ policy, key })))
    }
  }

  async function twoOfHono() {
    const app = new Hono()
    // The inner one of Hono finishes first.
    for (const options of limits().reverse()) {
      const limiter = fetchLimiter(options)
      app.use(async (c, next) => {
        const { finish } = await limiter.decide(c.req.raw, c)
        await next()
        c.res = finish(c.res)
      })
    }
    app.get('/', (c) => c.text('hello'))
    const { headers } = await app.request('/')
    return { headers: { 'ratelimit-policy': headers.get('ratelimit-policy'), ratelimit: headers.get('ratelimit') } }
  }

  test('a status that no response can have is refused', () => {
    for (const status of [42, 600, '429', 429.5]) {
      assert.throws(() => expressMiddleware({ client, status }), /status must be an integer from 200 to 599/)
    }
  })

  test('an option that does not exist is an error', async () => {
    assert.throws(() => expressMiddleware({ client, polcy: 'login' }), /unknown option "polcy": the options are client, nodes, /)
    assert.throws(() => tollgateHook({ client, onfailure: 'closed' }), /unknown option "onfailure"/)
    assert.throws(() => fetchLimiter({ client, key: () => 'a', adress: () => 'a' }), /unknown option "adress"/)
    assert.throws(() => new Client({ node: 'http://127.0.0.1:7070' }), /unknown option "node"/)
    assert.throws(() => expressMiddleware({ client, look: true, refund: () => true }), /look charges nothing to refund/)
    assert.throws(() => fetchLimiter({ client }), /a Web request has no address: set `key`, or `address`/)
    await withFastify(fastify, { key: () => randomUUID(), prefix: '/v1', logLevel: 'warn' }, false, async () => {})
  })

  test('a handler of Web requests gets its context and the decision, and its immutable responses get the fields', async () => {
    const key = randomUUID()
    const limit = fetchLimiter({ client, policy: 'ten', key: async (_request, { user }) => user, cost: 2 })
    const handler = limit((request, { user }, decision) => {
      assert.equal(user, key)
      assert.equal(decision.remaining, 8)
      return Response.redirect(new URL('/there', request.url))
    })
    const response = await handler(new Request('http://a/'), { user: key })
    assert.equal(response.status, 302)
    assert.match(response.headers.get('ratelimit'), /^"1h";r=8;/)
    const failing = limit(() => { throw new Error('from the handler') })
    await assert.rejects(failing(new Request('http://a/'), { user: key }), /from the handler/)
    await limit.close()
  })

  test('a Web request charges its drain, also when its handler fails, and close waits for it', async () => {
    const key = randomUUID()
    const drain = async (_request, { status }) => { await sleep(200); return status === 500 ? 3 : 5 }
    const limit = fetchLimiter({ nodes: node.url, policy: 'ten', key: () => key, drain })
    assert.equal((await limit(() => new Response('hello'))(new Request('http://a/'))).status, 200)
    await assert.rejects(limit(() => { throw new Error('no') })(new Request('http://a/')))
    await limit.close()
    assert.equal((await client.usage({ policy: 'ten', key })).remaining, 0)
  })

  test('a Web request counts by the address that a function knows', async () => {
    const handler = fetchLimiter({ client, policy: 'address', address: (_request, env) => env.address })(() => new Response('hello'))
    await client.reset({ policy: 'address', key: '127.0.0.1' })
    const server = await servedByFetch(handler)
    try {
      const statuses = []
      for (let time = 0; time < 3; time++) statuses.push((await get(urlOf(server))).status)
      assert.deepEqual(statuses, [200, 200, 429])
    } finally {
      server.close()
      server.closeAllConnections()
    }
  })

  test('a hook of Fastify limits one route, and a plugin its scope', async () => {
    const app = fastify({ forceCloseConnections: true })
    const [route, scope] = [randomUUID(), randomUUID()]
    app.get('/free', async () => 'hello')
    app.get('/route', { onRequest: tollgateHook({ client, key: () => route }) }, async () => 'hello')
    await app.register(async (inner) => {
      await inner.register(fastifyPlugin, { client, key: () => scope })
      inner.get('/scope', async () => 'hello')
    })
    const url = await app.listen({ port: 0, host: '127.0.0.1' })
    try {
      for (const [path, statuses] of [['/free', [200, 200, 200]], ['/route', [200, 200, 429]], ['/scope', [200, 200, 429]]]) {
        for (const status of statuses) assert.equal((await get(url + path)).status, status, path)
      }
    } finally {
      await app.close()
    }
    assert.equal((await client.usage({ key: scope })).remaining, 0, 'the shared client stays open')
  })

  test('an injected request of Fastify charges its drain', async () => {
    const key = randomUUID()
    const app = fastify()
    await app.register(fastifyPlugin, { nodes: node.url, policy: 'ten', key: () => key, drain: () => 4 })
    app.get('/', async () => 'hello')
    assert.equal((await app.inject('/')).statusCode, 200)
    await app.close()
    assert.equal((await client.usage({ policy: 'ten', key })).remaining, 5)
  })

  async function sendAndLeave(url) {
    const { hostname, port, pathname } = new URL(url)
    const socket = net.connect(Number(port), hostname)
    await once(socket, 'connect')
    socket.write(`GET ${pathname} HTTP/1.1\r\nHost: a\r\n\r\n`)
    // A slow route has the request before its caller leaves.
    if (pathname !== '/') await sleep(300)
    socket.end(() => socket.destroy())
    await once(socket, 'close')
  }

  async function withExpress(express, options, trust, use) {
    const app = express()
    app.set('trust proxy', trust)
    const limiter = expressMiddleware({ client, ...options })
    app.use(limiter)
    let passed = 0
    app.get('/', (_request, response) => {
      passed++
      response.send(`remaining ${response.locals.tollgate.remaining}`)
    })
    app.get('/slow', () => {})
    app.use((_error, _request, response, _next) => { response.status(500).end() })
    const server = app.listen(0, '127.0.0.1')
    await once(server, 'listening')
    for (const key of ['192.0.2.1', '192.0.2.2']) await client.reset({ policy: 'address', key })
    try {
      await use(urlOf(server), () => passed)
    } finally {
      server.close()
      server.closeAllConnections()
      await limiter.close()
    }
  }

  async function withFastify(fastify, options, trust, use) {
    const app = fastify({ trustProxy: trust, forceCloseConnections: true })
    await app.register(fastifyPlugin, { client, ...options })
    let passed = 0
    app.get('/', async (request) => {
      passed++
      return `remaining ${request.tollgate.remaining}`
    })
    app.get('/slow', () => new Promise(() => {}))
    for (const key of ['192.0.2.1', '192.0.2.2']) await client.reset({ policy: 'address', key })
    try {
      await use(`${await app.listen({ port: 0, host: '127.0.0.1' })}/`, () => passed)
    } finally {
      await app.close()
    }
  }
})
