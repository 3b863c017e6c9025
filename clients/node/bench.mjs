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

import { tollgate as expressMiddleware } from '@tollgate/client/express'
import { tollgate as fastifyPlugin } from '@tollgate/client/fastify'

import { RealNode, freePort } from './test/nodes.mjs'

const REQUESTS = 20_000
const WARM_UP = 4_000
const CONNECTIONS = 32
const ROUNDS = 3
const KEYS = 1000
const SELF = fileURLToPath(import.meta.url)

const APPLICATIONS = {
  'Express 5': { alone: expressApp, tollgate: expressTollgate, redis: expressRedis },
  'Fastify 5': { alone: fastifyApp, tollgate: fastifyTollgate, redis: fastifyRedis },
}

if (process.argv[2] === 'serve') await serve(...process.argv.slice(3))
else await compare()

async function compare() {
  const node = await RealNode.start('node/bench.yaml')
  const port = await freePort()
  const redis = spawn('redis-server', ['--port', port, '--save', '', '--appendonly', 'no'], { stdio: 'ignore' })
  try {
    console.log('| framework | alone | with Tollgate | with rate-limiter-flexible |\n|---|---|---|---|')
    for (const [framework, kinds] of Object.entries(APPLICATIONS)) {
      const least = {}
      for (let round = 0; round < ROUNDS; round++) {
        for (const kind of Object.keys(kinds)) {
          const micros = await measure([framework, kind, node.url, port])
          least[kind] = Math.min(least[kind] ?? Infinity, micros)
        }
      }
      const cells = Object.values(least).map((micros) => Math.round(micros))
      console.log(`| ${framework} | ${cells.join(' | ')} |`)
    }
  } finally {
    redis.kill()
    await node.kill()
  }
}

/** µs of CPU per request of one server process. */
async function measure(parameters) {
  const server = spawn(process.execPath, [SELF, 'serve', ...parameters], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
  try {
    const [{ url }] = await once(server, 'message')
    await load(url, WARM_UP)
    const before = await cpuOf(server)
    await load(url, REQUESTS)
    return (await cpuOf(server) - before) / REQUESTS
  } finally {
    server.kill()
  }
}

async function cpuOf(server) {
  server.send('cpu')
  const [{ cpu }] = await once(server, 'message')
  return cpu
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
  process.on('SIGTERM', () => process.exit())
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
    retry: process.env.RETRY !== 'off',
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
