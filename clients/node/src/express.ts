import type { Request, RequestHandler, Response } from 'express'

import { type Fields, joined } from './fields.js'
import { Limiter, type LimiterOptions, type Verdict } from './limiter.js'

export type { LimiterOptions } from './limiter.js'
export type ExpressOptions = LimiterOptions<Request, Response>

/**
 * Middleware for Express: denied requests end with 429. The decision is `res.locals.tollgate`.
 * The default key is `req.ip`, so `trust proxy` decides which address counts.
 */
export function tollgate(options: ExpressOptions = {}): RequestHandler & { close(): void } {
  const limiter = new Limiter<Request, Response>(options, (request) => request.ip)

  const handler: RequestHandler = (request, response, next) => {
    const pass = ({ decision, reply, fields, drain }: Verdict) => {
      response.locals.tollgate = decision
      // Another middleware has answered meanwhile, such as a timeout.
      if (response.headersSent) return reply === undefined ? next() : undefined
      if (reply !== undefined) {
        response.statusCode = reply.status
        setFields(response, reply.fields)
        response.end(reply.body)
        return
      }
      // The client left, and nobody would charge the units of the response.
      if (drain !== undefined && response.closed) return
      if (fields !== undefined) setFields(response, fields)
      if (drain !== undefined) response.once('close', drain)
      next()
    }
    limiter.decide(request, response, request.get('traceparent')).then(pass).catch(next)
  }
  return Object.assign(handler, { close: () => limiter.close() })
}

function setFields(response: Response, fields: Fields): void {
  for (const name in fields) response.setHeader(name, joined(name, response.getHeader(name), fields[name] as string))
}

export default tollgate
