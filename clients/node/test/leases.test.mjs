// Leases: the shared cases of the state machine, and a client that decides in its process.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, mock, test } from 'node:test'

import { Client, Unavailable } from 'tollgate-limiter'

import { Leases } from '../dist/esm/leases.js'
import { FRAMEWORKS } from './applications.mjs'
import { get } from './http.mjs'
import { CLIENTS, RealNode, proxyNode, startRedis, waitUntil } from './nodes.mjs'

const SPAN_MS = 1000
const SALE = { limit: 1000, quota: '1h', reset_after_ms: 60_000 }

describe('the state machine', () => {
  const { cases } = JSON.parse(readFileSync(join(CLIENTS, 'lease-cases.json'), 'utf8'))
  for (const { name, steps } of cases) {
    // A child process of Node is no copy of its parent.
    test(name, { skip: steps.some((step) => step.fork) }, () => {
      const leases = new Leases('id')
      const purchases = []
      const settles = new Map()
      const numberOf = (id) => purchases.findIndex((purchase) => purchase.id === id) + 1
      for (const step of steps) {
        const now = instant(step.at, step.wall)
        const where = JSON.stringify(step)
        if (step.answered) {
          const { allowed, span, ...check } = step.answered
          leases.answered(check, { charged: allowed ? check.cost : 0, lease_span_ms: span ?? undefined }, now)
        } else if (step.check) {
          const { paid, buy } = leases.check(step.check, now)
          if (buy) purchases.push(buy)
          assert.equal(paid ? paid.answerTo(step.check, now).remaining : false, step.paid, where)
          assert.equal(buy?.want ?? null, step.buy, where)
        } else if (step.bought) {
          const { purchase, granted, within, remaining, retry } = step.bought
          leases.bought(purchases[purchase - 1], { ...SALE, granted, spend_within_ms: within, remaining, retry_after_ms: retry }, now)
        } else if (step.failed) leases.failed(purchases[step.failed.purchase - 1], step.failed.unknown, now)
        else if (step.settled) leases.settled(settles.get(step.settled))
        else if (step.tick) leases.tick(now)
        else if (step.close) leases.close()
        else assert.fail(`unknown step ${where}`)
        const due = leases.takeDue()
        for (const settle of due) settles.set(numberOf(settle.id), settle)
        assert.deepEqual(due.map(({ id, cost }) => [numberOf(id), cost]), step.due ?? [], where)
      }
    })
  }

  const measured = (check = { key: 'k', cost: 10 }) => {
    const leases = new Leases('id')
    leases.answered(check, { charged: check.cost, lease_span_ms: SPAN_MS }, instant(5000))
    return leases
  }

  test('leaves checks alone that only the store can decide', () => {
    const leases = measured()
    const others = [
      { cost: 0 }, { id: 'a' }, { meta: 'a' }, { plan: 'a' }, { quotas: ['5 per 1m'] }, { look: true }, { over: 'drain' },
      { wait_ms: 5 }, { repeated: true },
    ]
    for (const other of others) {
      assert.deepEqual(leases.check({ key: 'k', ...other }, instant(5001)), { paid: undefined, buy: undefined }, JSON.stringify(other))
      leases.answered({ key: 'k', ...other }, { charged: 0 }, instant(5001))
    }
    for (const same of [{ once: true }, { policy: 'default' }, { over: 'deny', look: false, meta: undefined }]) {
      const { buy } = leases.check({ key: 'k', ...same }, instant(5002))
      assert.equal(buy?.want, 11, JSON.stringify(same))
      leases.failed(buy, false, instant(4000))
    }
  })

  test('reports the counts of the purchase, as they are after each check', () => {
    const leases = measured()
    const { buy } = leases.check({ key: 'k' }, instant(5001))
    const quotas = [{ name: '1h', limit: 1000, window_ms: 3_600_000, remaining: 80, reset_after_ms: 60_000 }]
    leases.bought(buy, { ...SALE, granted: 11, spend_within_ms: SPAN_MS, remaining: 80, retry_after_ms: 0, quotas }, instant(5002))
    const now = instant(5101.5)
    assert.deepEqual(leases.check({ key: 'k', cost: 2 }, now).paid.answerTo({ key: 'k', cost: 2 }, now), {
      allowed: true, policy: 'default', key: 'k', cost: 2, charged: 2, limit: 1000, remaining: 89, retry_after_ms: 0,
      reset_after_ms: 59_900, quota: '1h', source: 'lease', reason: 'ok',
      quotas: [{ ...quotas[0], remaining: 89, reset_after_ms: 59_900 }],
    })
  })

  test('measures 10,000 keys, and drops those without demand', () => {
    const leases = measured()
    const learn = (key, at) => leases.answered({ key, cost: 10 }, { charged: 10, lease_span_ms: SPAN_MS }, instant(at))
    const wants = (key, at) => leases.check({ key }, instant(at)).buy?.want
    for (let number = 1; number < 10_000; number++) learn(`k${number}`, 5000)
    learn('late', 5001)
    assert.equal(wants('late', 5002), undefined)
    assert.equal(wants('k1', 5002), 11)
    learn('late', 7001)
    assert.equal(wants('late', 7002), 11)
    // Its purchase is under way.
    assert.equal(leases.keys.size, 2)
  })

  test('does not buy by checks that no store charged', () => {
    const leases = measured({ key: 'k', cost: 1 })
    for (let at = 5001; at < 5020; at++) leases.answered({ key: 'k' }, { charged: 0, lease_span_ms: SPAN_MS }, instant(at))
    assert.equal(leases.check({ key: 'k' }, instant(5020)).buy, undefined)
  })

  test('draws an id for each purchase', () => {
    const leases = measured()
    leases.answered({ key: 'l', cost: 10 }, { charged: 10, lease_span_ms: SPAN_MS }, instant(5000))
    assert.deepEqual(['k', 'l'].map((key) => leases.check({ key }, instant(5001)).buy.id), ['id-1', 'id-2'])
  })

  function instant(ms, wall = ms) {
    return { us: ms * 1000, wallUs: wall * 1000 }
  }
})

for (const store of ['the embedded store', 'Redis']) {
  describe(`a client with leases, on ${store}`, () => {
    let redis
    let node
    let proxy
    before(async () => {
      if (store === 'Redis') redis = await startRedis()
      node = await RealNode.start('node/test/leases.yaml', undefined, redis?.environment)
      proxy = await proxyNode(node.url)
    })
    after(async () => {
      proxy?.close()
      await node?.kill()
      redis?.server.kill()
    })

    /** A client whose calls the proxy records. */
    const open = (options) => new Client({ nodes: proxy.url, deadlineMs: 5000, ...options })
    /** Waits until the units of a key are those, since the node may have units in hand. */
    const untilRemaining = async (policy, key, units) => {
      const client = new Client({ nodes: node.url, deadlineMs: 5000 })
      let remaining
      try {
        await waitUntil(`${units} units`, async () => {
          ({ remaining } = await client.usage({ policy, key }))
          return remaining === units
        })
      } catch (error) {
        throw new Error(`${error.message}, but ${remaining} remain`)
      } finally {
        await client.close()
      }
    }
    const isPaid = async (client, check) => {
      const before = proxy.seen.checks
      const { allowed, source } = await client.check(check)
      const paid = proxy.seen.checks === before
      if (paid) assert.deepEqual([allowed, source], [true, 'lease'])
      return paid
    }
    /** The checks until units are in hand. */
    const untilPaid = async (client, check) => {
      let spent = 0
      await waitUntil('a lease', async () => {
        spent++
        return isPaid(client, check)
      })
      return spent
    }

    test('pays at least 90 % of the checks of a hot key in the process, and returns the rest at its end', async () => {
      const key = randomUUID()
      const client = open()
      let left = 5000
      const loop = async () => {
        while (left-- > 0) assert.ok((await client.check({ policy: 'brief', key })).allowed)
      }
      const { checks, calls } = proxy.seen
      await Promise.all(Array.from({ length: 16 }, loop))
      const asked = proxy.seen.checks - checks
      assert.ok(asked <= 500, `${asked} of 5000 checks went to the node, in ${proxy.seen.calls.length - calls.length} calls`)
      await client.close()
      await untilRemaining('brief', key, 1_000_000 - 5000)
    })

    test('never passes the limit over two clients', async () => {
      const key = randomUUID()
      const clients = [open(), open()]
      let allowed = 0
      const loop = async (client) => {
        for (let denials = 0; denials < 3;) {
          if ((await client.check({ policy: 'few', key })).allowed) allowed++
          else denials++
        }
      }
      const { checks } = proxy.seen
      await Promise.all(clients.flatMap((client) => Array.from({ length: 4 }, () => loop(client))))
      const paid = allowed - (proxy.seen.checks - checks)
      assert.ok(allowed <= 2000 && allowed >= 1000, `${allowed} allowed`)
      assert.ok(paid >= 500, `${paid} paid`)
      await Promise.all(clients.map((client) => client.close()))
      await untilRemaining('few', key, 2000 - allowed)
    })

    test('returns the rest of a lease at its end', async () => {
      const client = open()
      const key = randomUUID()
      const spent = await untilPaid(client, { policy: 'brief', key })
      await untilRemaining('brief', key, 1_000_000 - spent)
      await client.close()
    })

    test('settles what it has spent when it closes, also without an await', async () => {
      const client = open()
      const key = randomUUID()
      const spent = await untilPaid(client, { policy: 'hot', key })
      const { calls } = proxy.seen
      const before = calls.length
      void client.close()
      await waitUntil('the settle', () => calls.slice(before).some(({ path }) => path === '/v1/settle'))
      await untilRemaining('hot', key, 1_000_000 - spent)
    })

    test('loses at most the units in hand when its process is killed', async () => {
      const key = randomUUID()
      const program = `
        import { Client } from 'tollgate-limiter'
        const client = new Client({ nodes: '${proxy.url}', deadlineMs: 5000 })
        for (let spent = 0; spent < 200; spent++) await client.check({ policy: 'few', key: '${key}' })
        console.log('spent')
        setInterval(() => {}, 1000)`
      const { checks } = proxy.seen
      const child = spawn(process.execPath, ['--input-type=module', '-e', program], { stdio: ['ignore', 'pipe', 'inherit'] })
      await once(child.stdout, 'data')
      child.kill('SIGKILL')
      await once(child, 'exit')
      assert.ok(proxy.seen.checks - checks < 200, 'it had a lease')
      const client = open()
      let allowed = 0
      for (let denials = 0; denials < 3;) {
        if ((await client.check({ policy: 'few', key })).allowed) allowed++
        else denials++
      }
      await client.close()
      // All callers together buy a quarter at most.
      assert.ok(allowed <= 1800 && allowed >= 1000, `${allowed} allowed after 200 spent`)
    })

    test('asks a node after a suspension, by the wall clock', async () => {
      const client = open()
      const check = { policy: 'hot', key: randomUUID() }
      await client.check({ ...check, cost: 100 })
      await untilPaid(client, check)
      const present = Date.now.bind(Date)
      const wall = mock.method(Date, 'now', () => present() + 9000)
      assert.equal(await isPaid(client, check), true)
      wall.mock.mockImplementation(() => present() + 11_000)
      assert.equal(await isPaid(client, check), false)
      wall.mock.restore()
      await client.close()
    })

    test('spends units in hand while no node answers', async () => {
      const way = await proxyNode(node.url)
      const client = open({ nodes: way.url })
      const key = randomUUID()
      const isFromLease = async () => (await client.check({ policy: 'hot', key })).source === 'lease'
      await client.check({ policy: 'hot', key, cost: 100 })
      await waitUntil('a lease', isFromLease)
      way.close()
      let paid = 0
      await assert.rejects(async () => {
        for (;;) if (await isFromLease()) paid++
      }, Unavailable)
      assert.ok(paid >= 50, `${paid} paid`)
      await client.close()
    })

    test('buys nothing with the option off, or under a policy without callers', async () => {
      const key = randomUUID()
      for (const [policy, options] of [['hot', { lease: false }], ['unsold', {}]]) {
        const client = open(options)
        const before = proxy.seen.calls.length
        for (let sent = 0; sent < 50; sent++) assert.equal(await isPaid(client, { policy, key }), false)
        await client.close()
        assert.ok(proxy.seen.calls.slice(before).every(({ path }) => path === '/v1/check'), policy)
      }
    })

    for (const [framework, application] of Object.entries(FRAMEWORKS)) {
      test(`serves requests of ${framework} without a call`, async () => {
        const user = randomUUID()
        const { url, close } = await application({ nodes: proxy.url, policy: 'brief', deadlineMs: 5000, key: () => user })
        const before = proxy.seen.calls.length
        const agent = new http.Agent({ keepAlive: true })
        for (let sent = 1; sent <= 100; sent++) {
          const { status, headers } = await get(url, {}, agent)
          assert.equal(status, 200)
          assert.equal(headers['ratelimit-policy'], '"1h";q=1000000;w=3600')
          assert.match(headers.ratelimit, /^"1h";r=999\d+;t=\d+$/)
        }
        agent.destroy()
        await close()
        const calls = proxy.seen.calls.length - before
        assert.ok(calls <= 50, `${calls} calls for 100 requests`)
        await untilRemaining('brief', user, 1_000_000 - 100)
      })
    }
  })
}

test('a purchase without an answer is settled with nothing spent', async () => {
  const settled = []
  const server = http.createServer(async (request, response) => {
    let body = ''
    for await (const part of request) body += part
    if (request.url === '/v1/lease') {
      settled.bought ??= JSON.parse(body).id
      response.writeHead(503).end('{"type":"urn:tollgate:problem:store-unavailable","detail":"no"}')
    } else if (request.url === '/v1/settle') {
      settled.push(...JSON.parse(body).settlements)
      response.end('{"results":[]}')
    } else response.end('{"allowed":true,"charged":1,"source":"store","lease_span_ms":60000}')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const client = new Client({ nodes: `http://127.0.0.1:${server.address().port}`, deadlineMs: 5000 })
  try {
    for (let sent = 0; sent < 10; sent++) await client.check({ policy: 'p', key: 'a' })
    await client.close()
    assert.deepEqual([...settled], [{ policy: 'p', key: 'a', id: settled.bought, cost: 0 }])
  } finally {
    server.close()
    server.closeAllConnections()
  }
})
