// Holds: their renewal, each way out of their work, and responses that hold a place.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import express from 'express'
import fastify from 'fastify'
import { Client, Denied, HoldEnded } from 'tollgate-limiter'
import { tollgate as expressMiddleware } from 'tollgate-limiter/express'
import { tollgate as fastifyPlugin } from 'tollgate-limiter/fastify'
import { tollgate as fetchLimiter } from 'tollgate-limiter/fetch'

import { listening, servedByFetch, urlOf } from './applications.mjs'
import { RealNode, waitUntil } from './nodes.mjs'

describe('a hold', () => {
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

  const inFlight = async (policy, key) => (await client.usage({ policy, key })).in_flight
  const isFree = (policy, key) =>
    waitUntil(`the place of ${key}`, async () => (await inFlight(policy, key)) === 0)

  test('stops its work when the node is silent for the ttl, and frees its place after it', async () => {
    const key = randomUUID()
    const impatient = new Client({ nodes: node.url, deadlineMs: 2000 })
    const opened = performance.now()
    const hold = await impatient.openHold({ policy: 'brief', key, cost: 4 })
    node.process.kill('SIGSTOP')
    try {
      await once(hold.signal, 'abort')
      const lasted = performance.now() - opened
      assert.ok(lasted >= 950 && lasted < 20_000, `it lasted ${lasted} ms`)
      assert.ok(hold.signal.reason instanceof HoldEnded)
      assert.equal(hold.signal.reason.reason, 'expired')
      await assert.rejects(hold.settle(1), { name: 'Unavailable' })
    } finally {
      node.process.kill('SIGCONT')
    }
    await isFree('brief', key)
    // The settle without an answer goes on.
    await waitUntil('the settle', async () => (await client.usage({ policy: 'brief', key })).remaining === 9)
    impatient.close()
  })

  test('stops its work when somebody else ends it', async () => {
    const key = randomUUID()
    const hold = await client.openHold({ policy: 'steady', key, id: key })
    await client.settle({ policy: 'steady', key, id: key })
    await once(hold.signal, 'abort')
    assert.equal(hold.signal.reason.reason, 'settled')
    assert.equal((await hold.settle())[0].replayed, true)
  })

  test('never lets more work at once than the policy', async () => {
    const key = randomUUID()
    let running = 0
    const job = () => client.hold({ policy: 'tokens', key }, async () => {
      running++
      assert.ok(running <= 2, `${running} at once`)
      await sleep(2)
      running--
    })
    const untilDone = async () => {
      for (;;) {
        const denied = await job().then(() => undefined, (error) => error)
        if (denied === undefined) return
        assert.ok(denied instanceof Denied, String(denied))
        await sleep(2)
      }
    }
    await Promise.all(Array.from({ length: 64 }, untilDone))
    assert.deepEqual(await client.usage({ policy: 'tokens', key }).then(({ remaining, in_flight }) => [remaining, in_flight]), [936, 0])
  })

  test('settles once, also by await using', async () => {
    const key = randomUUID()
    const hold = await client.openHold({ policy: 'tokens', key, cost: 900 })
    hold.cost = 100
    await hold[Symbol.asyncDispose]()
    assert.equal(hold.signal.aborted, true)
    const [answer] = await hold.settle(200)
    assert.equal(answer.charged, 100)
    assert.equal(answer.replayed, false)
  })

  test('of a killed process frees its place after the ttl', async () => {
    const key = randomUUID()
    const program = `
      import { Client } from 'tollgate-limiter'
      const client = new Client({ nodes: '${node.url}', deadlineMs: 5000 })
      await client.hold({ policy: 'brief', key: '${key}' }, async () => {
        console.log('open')
        await new Promise((resolve) => setTimeout(resolve, 600_000))
      })`
    const child = spawn(process.execPath, ['--input-type=module', '-e', program], { stdio: ['ignore', 'pipe', 'inherit'] })
    await once(child.stdout, 'data')
    child.kill('SIGKILL')
    await once(child, 'exit')
    await isFree('brief', key)
  })

  // ---- responses ----

  /** Streams parts until the hold ends or the caller has left. The hold costs what was sent. */
  async function* parts(hold, seen) {
    seen.hold = hold
    for (let part = 1; !hold.signal.aborted; part++) {
      hold.cost = part
      yield `part ${part}\n`
      await sleep(20)
    }
  }

  const frameworks = {
    Express: async (options, seen) => {
      const app = express()
      app.use(expressMiddleware(options))
      app.get('/', async (_request, response) => {
        for await (const part of parts(response.locals.tollgateHold, seen)) response.write(part)
      })
      app.get('/fails', (_request, response) => {
        response.write('a part')
        response.destroy(new Error('from the model'))
      })
      app.get('/throws', () => { throw new Error('from the handler') })
      // A logger of Express would print the error.
      app.use((_error, _request, response, _next) => response.sendStatus(500))
      return listening(app)
    },
    Fastify: async (options, seen) => {
      const app = fastify({ forceCloseConnections: true })
      await app.register(fastifyPlugin, options)
      app.get('/', async (request, response) => {
        response.hijack()
        for await (const part of parts(request.tollgateHold, seen)) response.raw.write(part)
      })
      app.get('/fails', async (_request, response) => {
        response.hijack()
        response.raw.write('a part')
        response.raw.destroy(new Error('from the model'))
      })
      app.get('/throws', async () => { throw new Error('from the handler') })
      await app.listen({ port: 0, host: '127.0.0.1' })
      return app.server
    },
    'Web requests': async (options, seen) => {
      const encode = new TextEncoder()
      const streamOf = (source) => new ReadableStream({
        async pull(controller) {
          const { done, value } = await source.next()
          if (done) controller.close()
          else controller.enqueue(encode.encode(value))
        },
        cancel: () => source.return(),
      })
      async function* failing() {
        yield 'a part'
        throw new Error('from the model')
      }
      const limit = fetchLimiter(options)
      const handler = limit((request, _env, _decision, hold) => {
        const { pathname } = new URL(request.url)
        if (pathname === '/throws') throw new Error('from the handler')
        return new Response(streamOf(pathname === '/fails' ? failing() : parts(hold, seen)))
      })
      return servedByFetch((request, env) => handler(request, env).catch(() => new Response(null, { status: 500 })))
    },
  }
  for (const [name, serve] of Object.entries(frameworks)) {
    test(`of a response of ${name} lasts as long as its stream, and ends when its caller leaves`, async () => {
      const key = randomUUID()
      const seen = {}
      const server = await serve({ client, policy: 'places', key: () => key, hold: true }, seen)
      try {
        const request = http.get(urlOf(server))
        const [response] = await once(request, 'response')
        response.on('error', () => {}).resume()
        assert.equal(await inFlight('places', key), 1)
        const second = await fetch(urlOf(server))
        assert.equal(second.status, 429)
        assert.deepEqual((await second.json())['violated-policies'], ['in_flight'])
        request.destroy()
        await isFree('places', key)
        assert.ok(seen.hold.signal.aborted, 'the handler stops')
      } finally {
        server.close()
        server.closeAllConnections()
      }
    })

    test(`of a response of ${name} ends when its handler or its stream fails`, async () => {
      const key = randomUUID()
      const server = await serve({ client, policy: 'places', key: () => key, hold: true }, {})
      try {
        await assert.rejects(fetch(`${urlOf(server)}fails`).then((response) => response.text()))
        await isFree('places', key)
        assert.equal((await fetch(`${urlOf(server)}throws`)).status, 500)
        await isFree('places', key)
      } finally {
        server.close()
        server.closeAllConnections()
      }
    })
  }

  test('excludes options that charge otherwise', () => {
    for (const other of [{ look: true }, { drain: () => 1 }, { refund: () => true }]) {
      assert.throws(() => expressMiddleware({ client, hold: true, ...other }), /hold settles the cost of a request/)
    }
  })
})
