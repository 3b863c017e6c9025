// Each mistake is reported once for each client, with the remedy.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { after, before, describe, mock, test } from 'node:test'

import { Client } from 'tollgate-limiter'
import { tollgate as expressMiddleware } from 'tollgate-limiter/express'
import { tollgate as fastifyPlugin } from 'tollgate-limiter/fastify'

import { addressIn } from '../dist/esm/address.js'
import { EXPRESSES, FASTIFIES, urlOf } from './applications.mjs'
import { get } from './http.mjs'
import { CLIENTS, RealNode, waitUntil } from './nodes.mjs'

describe('a warning', () => {
  let node
  before(async () => { node = await RealNode.start() })
  after(() => node.kill())

  test('names an unknown policy and the known ones, once, and onError gets each failure', async () => {
    const errors = []
    const warnings = await warningsOf(async () => {
      const options = { nodes: node.url, deadlineMs: 5000, policy: 'tne', onError: (error) => errors.push(error.status) }
      await withExpress(EXPRESSES['Express 5'], options, false, async (url) => {
        await Promise.all([get(url), get(url), get(url)])
      })
    })
    assert.equal(warnings.length, 1, warnings)
    assert.match(warnings[0], /^Tollgate: the policy "tne" is not configured.* \(the node has address, .*thousand.*\): set `policy` to one of the node's\./)
    assert.deepEqual(errors, [404, 404, 404])
  })

  test('says that the policy of a hold has none', async () => {
    const warnings = await warningsOf(async () => {
      const client = new Client({ nodes: node.url, deadlineMs: 5000 })
      for (let time = 0; time < 2; time++) await assert.rejects(client.openHold({ policy: 'ten', key: 'a' }), { status: 404 })
      client.close()
    })
    assert.deepEqual(warnings, ['Tollgate: the policy "ten" opened no hold: add `hold: {ttl: 60s}` to it, and give the check a cost above 0'])
  })

  test('names the token that the node refused', async () => {
    const secure = await RealNode.start('cases-secure.yaml')
    const warnings = await warningsOf(async () => {
      const client = new Client({ nodes: secure.url, token: 'wrong', caFile: `${CLIENTS}/testdata/ca.pem`, deadlineMs: 5000 })
      for (let time = 0; time < 2; time++) await assert.rejects(client.check({ key: 'a' }), { status: 401 })
      client.close()
    })
    await secure.kill()
    assert.equal(warnings.length, 1, warnings)
    assert.match(warnings[0], /the node refused the token \(401 .*\): set `token` to one that may make this call/)
  })

  for (const [name, express] of Object.entries(EXPRESSES)) {
    test(`names the trust proxy that ${name} lacks`, async () => {
      const options = { nodes: node.url, deadlineMs: 5000, policy: 'thousand' }
      const forwarded = { 'x-forwarded-for': '192.0.2.1' }
      const ask = (url) => get(url, forwarded).then(() => get(url, { forwarded: 'for=192.0.2.1' }))
      const warnings = await warningsOf(() => withExpress(express, options, false, ask))
      assert.equal(warnings.length, 1, warnings)
      assert.match(warnings[0], /the framework trusts no proxy, .*: set Express's `trust proxy`, or `key`$/)
      assert.deepEqual(await warningsOf(() => withExpress(express, options, true, ask)), [])
      assert.deepEqual(await warningsOf(() => withExpress(express, options, 'loopback', ask)), [])
      assert.deepEqual(await warningsOf(() => withExpress(express, options, false, (url) => get(url))), [])
      assert.deepEqual(await warningsOf(() => withExpress(express, { ...options, key: () => 'a' }, false, ask)), [])
    })
  }

  for (const [name, fastify] of Object.entries(FASTIFIES)) {
    test(`names the trustProxy that ${name} lacks`, async () => {
      const ask = async (trustProxy) => {
        const app = fastify({ trustProxy, forceCloseConnections: true })
        await app.register(fastifyPlugin, { nodes: node.url, deadlineMs: 5000, policy: 'thousand' })
        app.get('/', async () => 'hello')
        const url = await app.listen({ port: 0, host: '127.0.0.1' })
        for (let time = 0; time < 2; time++) await get(url, { 'x-forwarded-for': '192.0.2.1' })
        await app.close()
      }
      const warnings = await warningsOf(() => ask(false))
      assert.equal(warnings.length, 1, warnings)
      assert.match(warnings[0], /set Fastify's `trustProxy`, or `key`$/)
      assert.deepEqual(await warningsOf(() => ask(true)), [])
    })
  }

  test('names an address with a port, once', async () => {
    const warnings = await warningsOf(async () => {
      await withExpress(EXPRESSES['Express 5'], { nodes: node.url, deadlineMs: 5000, policy: 'thousand' }, true, async (url) => {
        for (const port of [1000, 2000]) await get(url, { 'x-forwarded-for': `192.0.2.1:${port}` })
      })
    })
    assert.equal(warnings.length, 1, warnings)
    assert.match(warnings[0], /has a port or a zone \("192\.0\.2\.1:1000"\), which does not count: let the proxy send/)
  })

  test('names a deadline that is not above the timeout of a silent node, and asks the node once', async () => {
    for (const [timeout_ms, expected] of [[100, 1], [40, 0], [undefined, 0]]) {
      let asked = 0
      const server = http.createServer((request, response) => {
        if (request.url !== '/health/ready') return
        asked++
        response.end(JSON.stringify({ status: 'ok', timeout_ms }))
      }).listen(0, '127.0.0.1')
      await once(server, 'listening')
      const client = new Client({ nodes: `http://127.0.0.1:${server.address().port}`, deadlineMs: 60 })
      const warnings = await warningsOf(async () => {
        await assert.rejects(client.check({ key: 'a' }))
        await waitUntil('the question', () => asked === 1)
        // An unused node is asked again after 500 ms.
        await waitUntil('another silence', () => client.check({ key: 'a' }).then(() => false, ({ message }) => /in time/.test(message)))
        await waitUntil('the answer', () => true)
      })
      assert.equal(asked, 1)
      assert.equal(warnings.length, expected, warnings)
      if (expected) assert.match(warnings[0], /^Tollgate: the deadline of 60 ms is not above the node's timeout of 100 ms: set the deadline to at least 200 ms$/)
      client.close()
      server.close()
      server.closeAllConnections()
    }
  })

  test('of an address is due for a port or a zone, and for no other text', () => {
    const texts = {
      '203.0.113.7:51234': '203.0.113.7',
      '[2001:db8::1]:443': '2001:db8::1',
      '[2001:db8::1]': '2001:db8::1',
      'fe80::1%eth0': 'fe80::1',
      '[fe80::1%eth0]:80': 'fe80::1',
      '::ffff:203.0.113.7:80': '::ffff:203.0.113.7',
      '203.0.113.7': '203.0.113.7',
      '2001:db8::1:80': '2001:db8::1:80',
      'unknown:80': 'unknown:80',
      '100%': '100%',
      '': '',
    }
    for (const [text, address] of Object.entries(texts)) assert.equal(addressIn(text), address, text)
  })
})

async function warningsOf(work) {
  const warn = mock.method(console, 'warn', () => {})
  try {
    await work()
    return warn.mock.calls.map(({ arguments: [text] }) => text)
  } finally {
    warn.mock.restore()
  }
}

async function withExpress(express, options, trust, use) {
  const limiter = expressMiddleware(options)
  const app = express()
  app.set('trust proxy', trust)
  app.use(limiter)
  app.get('/', (_request, response) => { response.send(randomUUID()) })
  const server = app.listen(0, '127.0.0.1')
  await once(server, 'listening')
  try {
    await use(urlOf(server))
  } finally {
    server.close()
    server.closeAllConnections()
    await limiter.close()
  }
}
