import type { Request, RequestHandler, Response } from 'express'

import { addFields } from './fields.js'
import { Limiter, type LimiterOptions, type Source, type Verdict } from './limiter.js'

export type { LimiterOptions } from './limiter.js'
export type ExpressOptions = LimiterOptions<Request, Response>

const SOURCE: Source<Request, undefined> = {
  address: (request) => request.ip,
  ignoresProxy: ({ headers, app }) =>
    (headers['x-forwarded-for'] ?? headers.forwarded) !== undefined && [undefined, false].includes(app?.get('trust proxy')),
  setting: "Express's `trust proxy`",
}

/**
 * Middleware for Express: denied requests end with 429. The decision is `res.locals.tollgate`,
 * and the hold `res.locals.tollgateHold`.
 * The default key is `req.ip`, so `trust proxy` decides which address counts. `close` waits for
 * charges that follow responses.
 */
export function tollgate(options: ExpressOptions = {}): RequestHandler & { close(): Promise<void> } {
  const limiter = new Limiter(options, SOURCE)

  const handler: RequestHandler = (request, response, next) => {
    const pass = ({ decision, hold, reply, fields, after, answered }: Verdict<Response>) => {
      if (answered) return
      response.locals.tollgate = decision
      // Another limit may have a hold, too.
      response.locals.tollgateHold = hold ?? response.locals.tollgateHold
      // The request is over, and nothing would end its hold.
      if (hold !== undefined && (response.headersSent || response.closed)) limiter.expect(() => hold[Symbol.asyncDispose]())()
      // Another middleware has answered meanwhile, such as a timeout.
      if (response.headersSent) return reply === undefined ? next() : undefined
      const set = (added = {}) =>
        addFields(added, decision, (name) => response.getHeader(name), (name, value) => response.setHeader(name, value))
      if (reply !== undefined) {
        response.statusCode = reply.status
        set(reply.fields)
        response.end(reply.body)
        return
      }
      if (after !== undefined) {
        // The client left, and nobody would charge the units of the response.
        if (response.closed) return
        const ended = limiter.expect(() => after(response, response.headersSent))
        response.once('finish', ended).once('close', ended)
      }
      set(fields)
      next()
    }
    limiter.decide(request, undefined, request.get('traceparent'), response).then(pass).catch(next)
  }
  return Object.assign(handler, { close: () => limiter.close() })
}

export default tollgate
