// Denials in the process: what is learned, what forgets it, and how much is kept.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { describe, test } from 'node:test'

import { Client } from 'tollgate-limiter'

import { Denials } from '../dist/esm/denials.js'
import { RealNode, proxyNode } from './nodes.mjs'

const DENIED = {
  allowed: false, policy: 'p', key: 'a', cost: 1, charged: 0, limit: 5, remaining: 0, retry_after_ms: 60_000,
  reset_after_ms: 61_000, quota: '1m', source: 'prefilter', reason: 'over_limit',
}

describe('a client', () => {
  test('denies an exhausted key itself, and asks again each second', async () => {
    const node = await RealNode.start()
    const proxy = await proxyNode(node.url)
    const client = new Client({ nodes: proxy.url, deadlineMs: 5000 })
    const key = randomUUID()
    const sources = {}
    try {
      await client.check({ key, cost: 2 })
      const start = performance.now()
      for (let sent = 0; sent < 2000; sent++) {
        const { allowed, source } = await client.check({ key })
        assert.equal(allowed, false)
        sources[source] = (sources[source] ?? 0) + 1
      }
      const seconds = Math.ceil((performance.now() - start) / 1000)
      assert.ok(proxy.seen.calls.length <= 2 + seconds, `${proxy.seen.calls.length} calls in ${seconds} s`)
      assert.ok(((sources.client ?? 0) + (sources.prefilter ?? 0)) / 2000 >= 0.99, JSON.stringify(sources))
    } finally {
      client.close()
      proxy.close()
      await node.kill()
    }
  })

  test('learns only final denials of the pre-filter', async () => {
    const answers = [
      { ...DENIED, source: 'store' },
      { ...DENIED, source: 'fallback', reason: 'store_unavailable', retry_after_ms: 1000 },
      { ...DENIED, retry_after_ms: 0 },
      { ...DENIED, retry_after_ms: null },
      { ...DENIED, allowed: true },
      DENIED,
    ]
    await withAnswers(answers, async (client, calls) => {
      for (let sent = 1; sent <= answers.length; sent++) {
        await client.check({ policy: 'p', key: 'a' })
        assert.equal(calls.length, sent)
      }
      assert.equal((await client.check({ policy: 'p', key: 'a' })).source, 'client')
    })
  })

  test('denies no longer than the node, counted from when the check was sent', async () => {
    await withAnswers([{ ...DENIED, retry_after_ms: 400, reset_after_ms: 700 }, { allowed: true }], async (client) => {
      const start = performance.now()
      await client.check({ policy: 'p', key: 'a' })
      const answered = performance.now()
      const known = await client.check({ policy: 'p', key: 'a' })
      assert.equal(known.source, 'client')
      assert.ok(known.retry_after_ms <= Math.ceil(400 - (performance.now() - answered)) + 1, `${known.retry_after_ms}`)
      assert.equal(known.reset_after_ms - known.retry_after_ms, 300)
      while (!(await client.check({ policy: 'p', key: 'a' })).allowed) assert.ok(performance.now() - start < 5000)
      // A timer of the test may be late, and never early.
      assert.ok(performance.now() - start >= 400)
    })
  })

  test('asks the node again after a second by default', async () => {
    const answers = [DENIED, { ...DENIED, retry_after_ms: 59_000 }]
    await withAnswers(answers, async (client, calls) => {
      const start = performance.now()
      while (calls.length < 2) await client.check({ policy: 'p', key: 'a' })
      assert.ok(performance.now() - start >= 1000)
    })
  })

  test('forgets a denial whose answer arrives after a refund', async () => {
    let answerLater
    await withAnswers([(response) => { answerLater = () => response.end(JSON.stringify(DENIED)) }, { refunded: 1 }, { allowed: true }], async (client, calls) => {
      const denied = client.check({ policy: 'p', key: 'a' })
      while (calls.length < 1) await new Promise(setImmediate)
      await client.refund({ policy: 'p', key: 'a', cost: 1 })
      answerLater()
      assert.equal((await denied).allowed, false)
      assert.equal((await client.check({ policy: 'p', key: 'a' })).allowed, true)
    })
  })

  test('forgets a denial at a reset', async () => {
    await withAnswers([DENIED, { allowed: true }, { allowed: true }], async (client) => {
      await client.check({ policy: 'p', key: 'a' })
      assert.equal((await client.check({ policy: 'p', key: 'a' })).source, 'client')
      await client.reset({ policy: 'p', key: 'a' })
      assert.equal((await client.check({ policy: 'p', key: 'a' })).allowed, true)
    })
  })

  test('denies by a remembered denial while a node answers with an error', async () => {
    const broken = (response) => response.writeHead(503).end('{"type":"urn:tollgate:problem:store-unavailable","detail":"no"}')
    await withAnswers([DENIED, broken, broken], async (client) => {
      await client.check({ policy: 'p', key: 'a' })
      assert.equal((await client.check({ policy: 'p', key: 'a' })).source, 'client')
      assert.equal((await client.checkBatch([{ policy: 'p', key: 'a' }])).results[0].source, 'client')
      await assert.rejects(client.check({ policy: 'p', key: 'b' }))
    }, { denialCacheMs: 0.001 })
  })

  test('keeps 10,000 denials, and drops the oldest', () => {
    const denials = new Denials(1000)
    for (let index = 0; index <= 10_000; index++) denials.learn({ policy: 'p', key: `k${index}` }, DENIED, denials.ask())
    assert.equal(denials.find({ policy: 'p', key: 'k0' }), undefined)
    assert.ok(denials.find({ policy: 'p', key: 'k1' }))
    assert.ok(denials.find({ policy: 'p', key: 'k10000' }))
  })

  test('keeps keys apart that share their text', () => {
    const denials = new Denials(1000)
    denials.learn({ policy: 'p', key: 'qa' }, DENIED, denials.ask())
    assert.equal(denials.find({ policy: 'pq', key: 'a' }), undefined)
    assert.equal(denials.find({ key: 'pqa' }), undefined)
    assert.equal(denials.find({ policy: 'p', key: 'qa', quotas: ['1 per 1s'] }), undefined)
  })
})

/** A client of a server that gives these answers, one after another. */
async function withAnswers(answers, use, options = {}) {
  const calls = []
  const server = http.createServer((request, response) => {
    const answer = answers[Math.min(calls.push(request.url), answers.length) - 1]
    request.resume()
    if (typeof answer === 'function') answer(response)
    else response.end(JSON.stringify(request.url.endsWith('/batch') ? { results: [answer] } : answer))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const client = new Client({ nodes: `http://127.0.0.1:${server.address().port}`, deadlineMs: 5000, ...options })
  try {
    await use(client, calls)
  } finally {
    client.close()
    server.close()
    server.closeAllConnections()
  }
}
