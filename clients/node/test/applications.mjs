// A hello world of each framework behind its middleware: `application(framework, options)`.
import { once } from 'node:events'
import http from 'node:http'
import { Readable, pipeline } from 'node:stream'

import express from 'express'
import express4 from 'express4'
import fastify from 'fastify'
import fastify4 from 'fastify4'
import { Hono } from 'hono'

import { tollgate as expressMiddleware } from 'tollgate-limiter/express'
import { tollgate as fastifyPlugin } from 'tollgate-limiter/fastify'
import { tollgate as fetchLimiter } from 'tollgate-limiter/fetch'

export const EXPRESSES = { 'Express 5': express, 'Express 4': express4 }
export const FASTIFIES = { 'Fastify 5': fastify, 'Fastify 4': fastify4 }

export const FRAMEWORKS = {
  ...mapped(EXPRESSES, expressApplication),
  ...mapped(FASTIFIES, fastifyApplication),
  Hono: honoApplication,
  'Web requests': webApplication,
}

async function expressApplication(express, options) {
  const limiter = expressMiddleware(options)
  const app = express()
  app.use(limiter)
  app.get('/', (request, response) => {
    setCost(response.locals.tollgateHold, request.get('x-used'))
    response.send('hello')
  })
  const server = await listening(app)
  return { url: urlOf(server), close: () => closed(server, limiter) }
}

async function fastifyApplication(fastify, options) {
  const app = fastify({ forceCloseConnections: true })
  await app.register(fastifyPlugin, options)
  app.get('/', async (request) => {
    setCost(request.tollgateHold, request.headers['x-used'])
    return 'hello'
  })
  return { url: `${await app.listen({ port: 0, host: '127.0.0.1' })}/`, close: () => app.close() }
}

async function honoApplication(options) {
  const limiter = fetchLimiter({ address: (_request, c) => c.env.address, ...options })
  const app = new Hono()
  app.use(async (c, next) => {
    const { hold, denial, finish } = await limiter.decide(c.req.raw, c)
    if (denial) return denial
    setCost(hold, c.req.header('x-used'))
    await next()
    c.res = finish(c.res)
  })
  app.get('/', (c) => c.text('hello'))
  const server = await servedByFetch((request, env) => app.fetch(request, env))
  return { url: urlOf(server), close: () => closed(server, limiter) }
}

async function webApplication(options) {
  const limiter = fetchLimiter({ address: (_request, env) => env.address, ...options })
  const handler = (request, _env, _decision, hold) => {
    setCost(hold, request.headers.get('x-used') ?? undefined)
    return new Response('hello')
  }
  const server = await servedByFetch(limiter(handler))
  return { url: urlOf(server), close: () => closed(server, limiter) }
}

/** The true cost of a request is that of its header. */
function setCost(hold, used) {
  if (hold !== undefined && used !== undefined) hold.cost = Number(used)
}

/** Serves a handler of Web requests, as Bun and the adapters of frameworks do. */
export function servedByFetch(handler) {
  return listening(async (incoming, outgoing) => {
    const { method, url, socket } = incoming
    const headers = Object.entries(incoming.headers).flatMap(([name, value]) => [value].flat().map((each) => [name, each]))
    const request = new Request(`http://${incoming.headers.host}${url}`, { method, headers })
    const response = await handler(request, { address: socket.remoteAddress })
    outgoing.writeHead(response.status, Object.fromEntries(response.headers))
    if (response.body === null) outgoing.end()
    // As adapters do, it cancels the body if the caller has left.
    else pipeline(Readable.fromWeb(response.body), outgoing, () => {})
  })
}

export async function listening(handler) {
  const server = http.createServer(handler).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return server
}

export function urlOf(server) {
  return `http://127.0.0.1:${server.address().port}/`
}

async function closed(server, limiter) {
  server.close()
  server.closeAllConnections()
  await limiter.close()
}

function mapped(versions, application) {
  return Object.fromEntries(Object.entries(versions).map(([name, framework]) => [name, (options) => application(framework, options)]))
}
