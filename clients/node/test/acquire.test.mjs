// Places in line: who leaves early gives its place back.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'

import { Client } from 'tollgate-limiter'

import { RealNode, proxyNode, waitUntil } from './nodes.mjs'

/** The policy `bucket` gives a unit in this time. */
const UNIT_MS = 360_000
const HOUR_MS = 3_600_000

describe('acquire', () => {
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

  const emptyLine = async () => {
    const key = randomUUID()
    await client.check({ policy: 'bucket', key, cost: 25 })
    return { policy: 'bucket', key }
  }
  const lineIsEmpty = ({ policy, key }) =>
    waitUntil('the place', async () => (await client.usage({ policy, key, cost: 1 })).retry_after_ms <= UNIT_MS)

  test('gives its place back when its caller aborts the wait', async () => {
    const check = await emptyLine()
    const caller = new AbortController()
    const waiting = client.acquire(check, HOUR_MS, { signal: caller.signal })
    await waitUntil('a line', async () => (await client.usage({ ...check, cost: 1 })).retry_after_ms > UNIT_MS)
    caller.abort(new Error('the caller leaves'))
    await assert.rejects(waiting, /the caller leaves/)
    await lineIsEmpty(check)
  })

  test('of many callers with one signal gives no warning of the process', async () => {
    const check = { policy: 'line', key: randomUUID() }
    const warnings = []
    const warned = (warning) => warnings.push(warning.name)
    process.on('warning', warned)
    const caller = new AbortController()
    const waits = Array.from({ length: 15 }, () => client.acquire(check, HOUR_MS, { signal: caller.signal }))
    await waitUntil('the line', async () => (await client.usage({ ...check, cost: 1 })).retry_after_ms > 36_000)
    caller.abort()
    const left = (await Promise.allSettled(waits)).filter(({ status }) => status === 'rejected')
    assert.ok(left.length > 10, `${left.length} callers left`)
    await new Promise((resolve) => setImmediate(resolve))
    process.off('warning', warned)
    assert.deepEqual(warnings, [])
  })

  test('gives its place back when its caller aborts before the answer, and asks nobody after it', async () => {
    const check = await emptyLine()
    const proxy = await proxyNode(node.url)
    const other = new Client({ nodes: proxy.url, deadlineMs: 5000 })
    try {
      const caller = new AbortController()
      const waiting = other.acquire(check, HOUR_MS, { signal: caller.signal })
      caller.abort()
      await assert.rejects(waiting, { name: 'AbortError' })
      await waitUntil('the refund', () => proxy.seen.calls.length === 2)
      await lineIsEmpty(check)
      await assert.rejects(other.acquire(check, HOUR_MS, { signal: caller.signal }), { name: 'AbortError' })
      assert.deepEqual(proxy.seen.calls.map(({ path }) => path), ['/v1/check', '/v1/refund'])
    } finally {
      other.close()
      proxy.close()
    }
  })

  test('starts many callers in order, no faster than the rate', async () => {
    const key = randomUUID()
    const starts = []
    const caller = async (number) => {
      const { start_in_ms } = await client.acquire({ policy: 'partner', key }, 60_000)
      starts.push({ number, at: performance.now(), start_in_ms })
    }
    await Promise.all(Array.from({ length: 60 }, (_, number) => caller(number)))
    assert.deepEqual(starts.map(({ number }) => number), starts.map((_, index) => index))
    const took = starts.at(-1).at - starts[0].at
    // 50 a second, after a burst of 10. All answers come with one batch.
    assert.ok(took >= 950, `${took} ms`)
  })

  test('gives a hold without an id of the caller back', async () => {
    const check = { policy: 'calls', key: randomUUID() }
    await assert.rejects(client.acquire(check, HOUR_MS), { name: 'TypeError', message: /give the check an id/ })
    await waitUntil('the place', async () => {
      const { in_flight, remaining } = await client.usage(check)
      return in_flight === 0 && remaining === 25
    })
  })

  test('rejects a wait outside of its bounds', async () => {
    const bounds = { name: 'RangeError', message: /waitMs must be an integer from 0 to 3600000 \(milliseconds\)/ }
    for (const waitMs of [Number.POSITIVE_INFINITY, Number.NaN, undefined, '30', 1.5, -1, HOUR_MS + 1]) {
      await assert.rejects(client.acquire({ policy: 'bucket', key: 'k' }, waitMs), bounds)
    }
  })
})
