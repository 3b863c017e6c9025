// The transport: forms of HTTP/1 that a proxy may choose, and connections that end.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http from 'node:http'
import net from 'node:net'
import { describe, test } from 'node:test'

import { Client, Problem, Unavailable } from 'tollgate-limiter'

import { RealNode, freePort, silentNode } from './nodes.mjs'

const BODY = '{"allowed":true,"key":"日"}'
const LENGTH = `HTTP/1.1 200 OK\r\ncontent-Length: ${Buffer.byteLength(BODY)}\r\n\r\n${BODY}`
const FORMS = {
  'with a length': LENGTH,
  'in chunks': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n17;x=1\r\n{"allowed":true,"key":"\r\n5\r\n日"}\r\n0\r\n\r\n',
  'that ends with its connection': `HTTP/1.0 200 OK\r\n\r\n${BODY}`,
  'after an interim response': `HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n${LENGTH}`,
}

describe('a response', () => {
  for (const [form, text] of Object.entries(FORMS)) {
    test(`${form} is read`, async () => {
      assert.deepEqual(await answerTo(text), { allowed: true, key: '日' })
    })
  }

  test('that is cut short is none', async () => {
    await assert.rejects(answerTo(LENGTH.slice(0, -1)), Unavailable)
  })

  async function answerTo(text) {
    const server = net.createServer((socket) => socket.on('error', () => {}).once('data', () => socket.end(text)))
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const client = new Client({ nodes: `http://127.0.0.1:${server.address().port}`, deadlineMs: 5000 })
    try {
      return await client.usage({ key: 'a' })
    } finally {
      client.close()
      server.close()
    }
  }
})

describe('a client', () => {
  test('opens a new connection after the node closed an idle one', async () => {
    await withServer((_request, response) => response.end('{"allowed":true}'), async (client, server) => {
      for (let time = 0; time < 3; time++) {
        assert.equal((await client.check({ key: 'a' })).allowed, true)
        server.closeIdleConnections()
      }
    })
  })

  test('never repeats a call that waited for a connection and then was sent', async (t) => {
    const warned = t.mock.method(process, 'emitWarning', () => {})
    // The first calls open all connections, and each later one gets one of them.
    const used = new Set()
    let [broken, others] = [0, 0]
    const answer = ({ socket }, response) => {
      if (!used.has(socket)) return used.add(socket) && response.end('{"allowed":true}')
      broken++
      return socket.destroy()
    }
    await withServer((_request, response) => { others++; response.end('{"allowed":true}') }, async (_client, other) => {
      await withServer(answer, async (_client, server) => {
        const nodes = [server, other].map((each) => `http://127.0.0.1:${each.address().port}`)
        const client = new Client({ nodes, retry: false, coalesce: false, deadlineMs: 5000 })
        const checks = Array.from({ length: 80 }, () => client.check({ key: 'a' }))
        const failed = (await Promise.allSettled(checks)).filter(({ reason }) => reason instanceof Unavailable)
        await client.close()
        assert.ok(broken > 0)
        assert.deepEqual([failed.length, others], [broken, 0])
      })
    })
    assert.equal(warned.mock.callCount(), 0)
  })

  test('uses a connection once if the node says close', async () => {
    let connections = 0
    const answer = (_request, response) => response.writeHead(200, { connection: 'close' }).end('{"allowed":true}')
    await withServer(answer, async (client, server) => {
      server.on('connection', () => connections++)
      for (let time = 0; time < 3; time++) await client.check({ key: 'a' })
      assert.equal(connections, 3)
    })
  })

  test('finds a proxy that answers without the problem of a node unavailable', async () => {
    await withServer((_request, response) => response.writeHead(502).end('<html>'), async (client) => {
      await assert.rejects(client.check({ key: 'a' }), /is no node of Tollgate: it answered 502 without a decision/)
    })
  })

  test('finds a server of another protocol unavailable', async () => {
    const server = net.createServer((socket) => socket.on('error', () => {}).end('220 mail ready\r\n\r\n'))
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const client = new Client({ nodes: `http://127.0.0.1:${server.address().port}`, deadlineMs: 1000 })
    await assert.rejects(client.check({ key: 'a' }), Unavailable)
    client.close()
    server.close()
  })

  test('sends the path of its URL before each call', async () => {
    const paths = []
    const answer = (request, response) => { paths.push(request.url); response.end('{"allowed":true}') }
    await withServer(answer, (client) => client.usage({ key: 'a b' }), '/limits/')
    assert.deepEqual(paths, ['/limits/v1/usage?key=a+b'])
  })

  test('opens at most 64 connections, and later calls wait', async () => {
    const connections = new Set()
    const answer = ({ socket }, response) => {
      connections.add(socket)
      setTimeout(() => response.end('{"allowed":true}'), 20)
    }
    await withServer(answer, async (client) => {
      const answers = await Promise.all(Array.from({ length: 200 }, () => client.usage({ key: 'a' })))
      assert.equal(answers.length, 200)
      assert.equal(connections.size, 64)
    })
  })

  test('reads an answer that arrived while the process was busy', async () => {
    const node = await RealNode.start()
    const client = new Client({ nodes: node.url, deadlineMs: 200 })
    try {
      await client.check({ key: 'a', cost: 0 })
      const answer = client.check({ key: 'a', cost: 0 })
      // The check leaves at the end of this turn, and the next turn is long.
      setImmediate(() => setImmediate(() => { for (const end = Date.now() + 500; Date.now() < end;); }))
      assert.equal((await answer).allowed, true)
    } finally {
      client.close()
      await node.kill()
    }
  })

  test('finds a server that sends other JSON unavailable', async () => {
    for (const body of ['{}', '[]', 'null', '{"results":[]}', '{"allowed":"yes"}']) {
      await withServer((_request, response) => response.end(body), async (client) => {
        const checks = [client.check({ key: 'a' }), client.check({ key: 'b' })]
        for (const check of checks) await assert.rejects(check, Unavailable)
        await assert.rejects(client.check({ key: 'a' }), Unavailable)
      })
    }
  })

  test('waits the whole deadline for a call without ids', async () => {
    const silent = await silentNode()
    const client = new Client({ nodes: [silent.url, `http://127.0.0.1:${await freePort()}`], deadlineMs: 500 })
    try {
      const start = performance.now()
      await assert.rejects(client.checkAll([{ key: 'a' }]), Unavailable)
      const took = performance.now() - start
      assert.ok(took > 400, `ended after ${Math.round(took)} ms`)
    } finally {
      client.close()
      silent.close()
    }
  })

  test('passes on no traceparent of another form', async () => {
    const seen = []
    const answer = (request, response) => { seen.push(request.headers.traceparent); response.end('{"allowed":true}') }
    await withServer(answer, async (client) => {
      for (const traceparent of ['x'.repeat(10_000), '00-abc', '', `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01\r\nx: y`]) {
        await client.check({ key: 'a' }, { traceparent })
      }
    })
    assert.deepEqual(seen, [undefined, undefined, undefined, undefined])
  })

  test('sends the first valid traceparent of a batch', async () => {
    const seen = []
    const valid = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`
    const answer = (request, response) => {
      seen.push(request.headers.traceparent)
      response.end('{"results":[{"allowed":true},{"allowed":true}]}')
    }
    await withServer(answer, async (client) => {
      await Promise.all(['00-abc', valid].map((traceparent) => client.check({ key: 'a' }, { traceparent })))
    })
    assert.deepEqual(seen, [valid])
  })

  test('rejects a cost that JSON cannot write', async () => {
    const client = new Client()
    for (const cost of [Number.NaN, Number.POSITIVE_INFINITY, 1.5, -1]) {
      await assert.rejects(client.check({ key: 'a', cost }), (error) => error instanceof Problem && error.isBadCheck)
    }
    client.close()
  })

  test('refuses options that no call could use', () => {
    for (const token of ['a b', 'ü', '', 'secret\n']) {
      assert.throws(() => new Client({ token }), /a token must be visible ASCII characters/)
    }
    for (const deadlineMs of ['100', 0, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 31]) {
      assert.throws(() => new Client({ deadlineMs }), /deadlineMs must be a number above 0/)
    }
    for (const nodes of ['http://me@127.0.0.1:7070', 'http://127.0.0.1:7070?x=1', 'http://127.0.0.1:7070#x']) {
      assert.throws(() => new Client({ nodes }), /a node is a URL without a user/)
    }
  })

  test('lets no faulty check spoil the others of its turn', async () => {
    const node = await RealNode.start()
    const client = new Client({ nodes: node.url, deadlineMs: 5000 })
    const circular = {}
    circular.self = circular
    const large = Promise.allSettled(Array.from({ length: 40 }, () => client.check({ key: 'x'.repeat(60_000) })))
    const [first, tooLong, noJson, last] = await Promise.allSettled([
      client.check({ policy: 'thousand', key: 'a' }),
      client.check({ policy: 'thousand', key: 'x'.repeat(32_000_000) }),
      client.check({ policy: 'thousand', key: 'a', meta: circular }),
      client.check({ policy: 'thousand', key: 'b' }),
    ])
    assert.ok(first.value?.allowed && last.value?.allowed, String(first.reason ?? last.reason))
    assert.ok(tooLong.reason instanceof Problem && tooLong.reason.status === 413, String(tooLong.reason))
    assert.ok(noJson.reason instanceof TypeError, String(noJson.reason))
    for (const { reason } of await large) assert.equal(reason?.status, 422)
    client.close()
    await node.kill()
  })

  async function withServer(answer, use, path = '') {
    const server = http.createServer(answer).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const client = new Client({ nodes: `http://127.0.0.1:${server.address().port}${path}`, deadlineMs: 5000 })
    try {
      await use(client, server)
    } finally {
      client.close()
      server.close()
      server.closeAllConnections()
    }
  }
})
