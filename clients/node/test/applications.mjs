// A hello world of each framework behind its middleware: `application(framework, options)`.
import { once } from 'node:events'

import express from 'express'
import fastify from 'fastify'

import { tollgate as expressMiddleware } from '@tollgate/client/express'
import { tollgate as fastifyPlugin } from '@tollgate/client/fastify'

export const FRAMEWORKS = { express: expressApplication, fastify: fastifyApplication }

async function expressApplication(options) {
  const limiter = expressMiddleware(options)
  const app = express()
  app.use(limiter)
  app.get('/', (_request, response) => { response.send('hello') })
  const server = app.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    async close() {
      limiter.close()
      server.close()
      server.closeAllConnections()
    },
  }
}

async function fastifyApplication(options) {
  const app = fastify({ forceCloseConnections: true })
  await app.register(fastifyPlugin, options)
  app.get('/', async () => 'hello')
  return { url: `${await app.listen({ port: 0, host: '127.0.0.1' })}/`, close: () => app.close() }
}
