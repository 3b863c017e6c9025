import type { Request, RequestHandler, Response } from 'express'

import { Limiter, type LimiterOptions } from './limiter.js'

export type { LimiterOptions } from './limiter.js'
export type ExpressOptions = LimiterOptions<Request, Response>

/**
 * Middleware for Express: denied requests end with 429. The decision is `res.locals.tollgate`.
 * The default key is `req.ip`, so `trust proxy` decides which address counts.
 */
export function tollgate(options: ExpressOptions = {}): RequestHandler & { close(): void } {
  const limiter = new Limiter<Request, Response>(options, (request) => request.ip)

  const handler: RequestHandler = (request, response, next) => {
    limiter.decide(request, response, request.get('traceparent')).then(({ decision, reply, fields, drain }) => {
      response.locals.tollgate = decision
      if (reply !== undefined) {
        response.status(reply.status).set(reply.fields).end(reply.body)
        return
      }
      // The client left, and nobody would charge the units of the response.
      if (drain !== undefined && response.closed) return
      if (fields !== undefined) response.set(fields)
      if (drain !== undefined) response.once('close', drain)
      next()
    }).catch(next)
  }
  return Object.assign(handler, { close: () => limiter.close() })
}

export default tollgate
