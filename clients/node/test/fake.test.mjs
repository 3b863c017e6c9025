// Unit tests of an application, without a node.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'

import express from 'express'
import { Denied, Unavailable, fake } from 'tollgate-limiter'
import { tollgate } from 'tollgate-limiter/express'

import { listening, urlOf } from './applications.mjs'
import { get } from './http.mjs'

describe('a fake client', () => {
  test('answers by a list, and the last decision goes on', async () => {
    const client = fake({ remaining: 1 }, { allowed: false })
    assert.equal((await client.check({ key: 'a' })).remaining, 1)
    for (let time = 0; time < 3; time++) assert.equal((await client.check({ policy: 'p', key: 'a' })).allowed, false)
    assert.deepEqual(client.checks[1], { policy: 'p', key: 'a' })
    assert.deepEqual([client.stats().allowed, client.stats().denied], [1, 3])
  })

  test('has every call', async () => {
    const client = fake()
    assert.equal((await client.checkAll([{ key: 'a' }, { key: 'b' }])).allowed, true)
    assert.equal((await client.checkBatch([{ key: 'a' }])).results[0].allowed, true)
    assert.equal(await client.hold({ key: 'a' }, () => 'done'), 'done')
    assert.equal((await client.acquire({ key: 'a' }, 0)).allowed, true)
    assert.equal((await client.refund({ key: 'a', cost: 1 })).refunded, 0)
    assert.equal((await client.usage({ key: 'a' })).remaining, 99)
    await client.close()
    await assert.rejects(fake({ allowed: false }).hold({ key: 'a' }, () => {}), Denied)
    await assert.rejects(fake(new Error('away')).check({ key: 'a' }), Unavailable)
  })

  test('limits a middleware', async () => {
    const app = express()
    app.use(tollgate({ client: fake({}, { allowed: false, retry_after_ms: 30_000 }, new Error('away')), key: () => 'a', onError() {} }))
    app.get('/', (request, response) => { response.send('hello') })
    const server = await listening(app)
    const answers = [await get(urlOf(server)), await get(urlOf(server)), await get(urlOf(server))]
    assert.deepEqual(answers.map(({ status }) => status), [200, 429, 200])
    assert.equal(answers[1].headers['retry-after'], '30')
    server.close()
    server.closeAllConnections()
  })
})
