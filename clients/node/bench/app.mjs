// Hello world in Express or Fastify behind a limiter, for clients/bench/run:
//
//   node app.mjs FRAMEWORK LIMITER SITUATION NODE_URL REDIS_URL CELL_URL PORT
import express from 'express'
import { rateLimit } from 'express-rate-limit'
import fastify from 'fastify'
import { Redis } from 'ioredis'
import { RedisStore } from 'rate-limit-redis'
import { RateLimiterRedis } from 'rate-limiter-flexible'

import { tollgate as expressMiddleware } from 'tollgate-limiter/express'
import { tollgate as fastifyPlugin } from 'tollgate-limiter/fastify'

const [framework, limiter, situation, nodes, redis, _cell, port] = process.argv.slice(2)
const UNITS = situation === 'denied' ? 1 : 1_000_000_000
const HOUR_S = 3600

const userOf = (request) => request.headers['x-user']
const tollgateOptions = { nodes, deadlineMs: 5000, policy: situation, onFailure: 'closed', key: userOf }

/** The same fields as those of Tollgate. */
function fieldsOf({ remainingPoints, msBeforeNext }) {
  return {
    'ratelimit-policy': `"1h";q=${UNITS};w=${HOUR_S}`,
    ratelimit: `"1h";r=${remainingPoints};t=${Math.ceil(msBeforeNext / 1000)}`,
  }
}

function flexible() {
  const limiter = new RateLimiterRedis({
    storeClient: new Redis(redis), keyPrefix: `flexible-${framework}-${situation}`, points: UNITS, duration: HOUR_S,
  })
  // A denial rejects, as a failure does.
  return async (key) => {
    const rest = await limiter.consume(key).catch((rest) => { if (rest instanceof Error) throw rest; return rest })
    return { fields: fieldsOf(rest), isDenied: rest.consumedPoints > UNITS, seconds: Math.ceil(rest.msBeforeNext / 1000) }
  }
}

const EXPRESS = {
  Tollgate: () => expressMiddleware(tollgateOptions),
  'express-rate-limit': () => {
    const client = new Redis(redis)
    const store = new RedisStore({ sendCommand: (...command) => client.call(...command), prefix: `express-${situation}:` })
    const options = { windowMs: HOUR_S * 1000, limit: UNITS, standardHeaders: 'draft-8', legacyHeaders: false }
    return rateLimit({ ...options, keyGenerator: userOf, store })
  },
  'rate-limiter-flexible': () => {
    const consume = flexible()
    return (request, response, next) => {
      consume(userOf(request)).then(({ fields, isDenied, seconds }) => {
        response.set(fields)
        if (isDenied) response.status(429).set('retry-after', seconds).send('Too many requests')
        else next()
      }, next)
    }
  },
}

const FASTIFY = {
  alone: () => {},
  Tollgate: (app) => app.register(fastifyPlugin, tollgateOptions),
  'rate-limiter-flexible': (app) => {
    const consume = flexible()
    app.addHook('onRequest', async (request, response) => {
      const { fields, isDenied, seconds } = await consume(userOf(request))
      response.headers(fields)
      if (isDenied) return response.code(429).header('retry-after', seconds).send('Too many requests')
    })
  },
}

if (framework === 'express') {
  const app = express()
  if (limiter !== 'alone') app.use(EXPRESS[limiter]())
  app.get('/', (_request, response) => { response.send('hello') })
  app.listen(Number(port), '127.0.0.1')
} else {
  const app = fastify()
  await FASTIFY[limiter](app)
  app.get('/', async () => 'hello')
  await app.listen({ port: Number(port), host: '127.0.0.1' })
}
