// CPU time of the server process per request, in µs: a hello world alone, with the middleware of
// Tollgate, and with rate-limiter-flexible on Redis. All requests are allowed.
//
//   npm run build && TOLLGATE_BIN=../../target/release/tollgate node bench.mjs
//
// It needs redis-server. The load comes from another process. CPU time hardly depends on other load
// of the machine, but compare only numbers of one run.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import http from 'node:http'
import { fileURLToPath } from 'node:url'

import express from 'express'
import fastify from 'fastify'
import { Redis } from 'ioredis'
import { RateLimiterRedis } from 'rate-limiter-flexible'

import { tollgate as expressMiddleware } from 'tollgate-limiter/express'
import { tollgate as fastifyPlugin } from 'tollgate-limiter/fastify'

import { RealNode, freePort } from './test/nodes.mjs'

const REQUESTS = 5_000
const WARM_UP = 10_000
const CONNECTIONS = 32
const ROUNDS = 12
const KEYS = 1000
const SELF = fileURLToPath(import.meta.url)

const APPLICATIONS = {
  'Express 5': { alone: expressApp, tollgate: expressTollgate, redis: expressRedis },
  'Fastify 5': { alone: fastifyApp, tollgate: fastifyTollgate, redis: fastifyRedis },
}

async function compare() {
  const node = await RealNode.start('node/bench.yaml')
  const port = await freePort()
  const redis = spawn('redis-server', ['--port', port, '--save', '', '--appendonly', 'no'], { stdio: 'ignore' })
  try {
    console.log('| framework | alone | with Tollgate | with rate-limiter-flexible |\n|---|---|---|---|')
    for (const [framework, kinds] of Object.entries(APPLICATIONS)) {
      const servers = await Promise.all(Object.keys(kinds).map((kind) => Server.start([framework, kind, node.url, port])))
      for (const server of servers) await load(server.url, WARM_UP)
      // Short rounds by turns: the least of them met the least other load.
      for (let round = 0; round < ROUNDS; round++) {
        for (const server of servers) await server.measure()
      }
      console.log(`| ${framework} | ${servers.map((server) => Math.round(server.least)).join(' | ')} |`)
      for (const server of servers) server.process.kill()
    }
  } finally {
    redis.kill()
    await node.kill()
  }
}

class Server {
  /** µs of CPU per request. */
  least = Number.POSITIVE_INFINITY

  static async start(parameters) {
    const server = new Server()
    const stdio = ['ignore', 'inherit', 'inherit', 'ipc']
    server.process = spawn(process.execPath, [SELF, 'serve', ...parameters], { stdio })
    const [{ url }] = await once(server.process, 'message')
    server.url = url
    return server
  }

  async measure() {
    const before = await this.cpu()
    await load(this.url, REQUESTS)
    this.least = Math.min(this.least, (await this.cpu() - before) / REQUESTS)
  }

  async cpu() {
    this.process.send('cpu')
    const [{ cpu }] = await once(this.process, 'message')
    return cpu
  }
}

async function load(url, requests) {
  const agent = new http.Agent({ keepAlive: true })
  let left = requests
  const loop = async () => {
    while (left-- > 0) {
      const status = await get(url, agent, `user-${left % KEYS}`)
      if (status !== 200) throw new Error(`status ${status}`)
    }
  }
  await Promise.all(Array.from({ length: CONNECTIONS }, loop))
  agent.destroy()
}

function get(url, agent, user) {
  return new Promise((resolve, reject) => {
    http.get(url, { agent, headers: { 'x-user': user } }, (response) => {
      response.resume().once('end', () => resolve(response.statusCode))
    }).once('error', reject)
  })
}

async function serve(framework, kind, nodeUrl, redisPort) {
  const url = await APPLICATIONS[framework][kind](nodeUrl, Number(redisPort))
  process.on('message', () => {
    const { user, system } = process.cpuUsage()
    process.send({ cpu: user + system })
  })
  process.send({ url })
}

async function expressApp(limit) {
  const app = express()
  if (typeof limit === 'function') app.use(limit)
  app.get('/', (_request, response) => { response.send('hello') })
  const server = app.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return `http://127.0.0.1:${server.address().port}/`
}

function expressTollgate(nodes) {
  return expressApp(expressMiddleware(optionsOf(nodes)))
}

function expressRedis(_nodes, port) {
  const limiter = flexible(port)
  return expressApp((request, response, next) => {
    limiter.consume(request.headers['x-user']).then((rest) => {
      response.set(fieldsOf(rest))
      next()
    }, next)
  })
}

async function fastifyApp() {
  return listening(fastify())
}

async function fastifyTollgate(nodes) {
  const app = fastify()
  await app.register(fastifyPlugin, optionsOf(nodes))
  return listening(app)
}

async function fastifyRedis(_nodes, port) {
  const limiter = flexible(port)
  const app = fastify()
  app.addHook('onRequest', async (request, response) => {
    const rest = await limiter.consume(request.headers['x-user'])
    response.headers(fieldsOf(rest))
  })
  return listening(app)
}

function listening(app) {
  app.get('/', async () => 'hello')
  return app.listen({ port: 0, host: '127.0.0.1' })
}

function optionsOf(nodes) {
  return {
    nodes,
    deadlineMs: 5000,
    policy: 'bench',
    onFailure: 'closed',
    key: (request) => request.headers['x-user'],
  }
}

/** The same two fields as those of Tollgate. */
function fieldsOf({ remainingPoints, msBeforeNext }) {
  return {
    'ratelimit-policy': '"1h";q=1000000;w=3600',
    ratelimit: `"1h";r=${remainingPoints};t=${Math.ceil(msBeforeNext / 1000)}`,
  }
}

function flexible(port) {
  return new RateLimiterRedis({ storeClient: new Redis(port), points: 1_000_000, duration: 3600 })
}

if (process.argv[2] === 'serve') await serve(...process.argv.slice(3))
else await compare()
