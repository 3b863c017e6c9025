// A caller whose own process is late: no request passes because of it. All deadlines are the default.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import http from 'node:http'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import express from 'express'
import fastify from 'fastify'

import { Client } from 'tollgate-limiter'
import { tollgate as expressMiddleware } from 'tollgate-limiter/express'
import { tollgate as fastifyPlugin } from 'tollgate-limiter/fastify'

import { urlOf } from './applications.mjs'
import { get } from './http.mjs'
import { RealNode, silentNode, waitUntil } from './nodes.mjs'

const RUNS = Number(process.env.TOLLGATE_RUNS ?? 3)

describe('a late caller', () => {
  let node
  before(async () => { node = await RealNode.start() })
  after(() => node.kill())

  for (const [name, application] of Object.entries({ Express: withExpress, Fastify: withFastify })) {
    test(`passes exactly the limit beside a route of ${name} that blocks 150 ms`, async () => {
      for (let run = 0; run < RUNS; run++) {
        const key = randomUUID()
        await application(key, ['3 per 1h'], async (url) => {
          const sent = Array.from({ length: 64 }, (_, index) => get(index % 16 === 8 ? `${url}block` : url, { 'x-user': key }))
          const statuses = (await Promise.all(sent)).map(({ status }) => status)
          assert.equal(statuses.filter((status) => status === 200).length, 3 + 4, `run ${run}`)
        })
      }
    })

    test(`passes exactly the limit of ${name} over 512 connections`, async () => {
      for (let run = 0; run < RUNS; run++) {
        const key = randomUUID()
        await application(key, ['100 per 1h'], async (url) => {
          const agent = new http.Agent({ keepAlive: true })
          let passed = 0
          const loop = async () => {
            for (let time = 0; time < 2; time++) if ((await get(url, { 'x-user': key }, agent)).status === 200) passed++
          }
          await Promise.all(Array.from({ length: 512 }, loop))
          agent.destroy()
          assert.equal(passed, 100, `run ${run}`)
        })
      }
    })
  }

  test('waits for the answer as long again as its timer was late', async () => {
    const client = new Client({ nodes: node.url })
    try {
      // The connection, too, is made only after the block.
      const answer = client.check({ policy: 'ten', key: randomUUID() })
      setImmediate(() => block(1000))
      assert.equal((await answer).allowed, true)
    } finally {
      client.close()
    }
  })

  test('asks the next node after a silent one, however late it was', async () => {
    const silent = await silentNode()
    const client = new Client({ nodes: [silent.url, node.url] })
    try {
      const answer = client.check({ policy: 'ten', key: randomUUID() })
      await sleep(250)
      block(800)
      assert.equal((await answer).allowed, true)
    } finally {
      client.close()
      silent.close()
    }
  })

  function limit(key, quotas) {
    return { nodes: node.url, policy: 'inline', quotas, key: () => key, skip: ({ url }) => url === '/block' }
  }

  async function withExpress(key, quotas, use) {
    const limiter = expressMiddleware(limit(key, quotas))
    const app = express()
    app.use(limiter)
    app.get('/', (_request, response) => { response.send('hello') })
    app.get('/block', (_request, response) => { block(150); response.send('hello') })
    const server = app.listen(0, '127.0.0.1')
    // By default it closes a connection after 5 s, just when a late caller sends over it.
    server.keepAliveTimeout = 60_000
    await waitUntil('the server', () => server.listening)
    try {
      await use(urlOf(server))
    } finally {
      server.close()
      server.closeAllConnections()
      await limiter.close()
    }
  }

  async function withFastify(key, quotas, use) {
    const app = fastify({ forceCloseConnections: true, keepAliveTimeout: 60_000 })
    await app.register(fastifyPlugin, limit(key, quotas))
    app.get('/', async () => 'hello')
    app.get('/block', async () => { block(150); return 'hello' })
    try {
      await use(`${await app.listen({ port: 0, host: '127.0.0.1' })}/`)
    } finally {
      await app.close()
    }
  }
})

function block(ms) {
  for (const end = performance.now() + ms; performance.now() < end;);
}
