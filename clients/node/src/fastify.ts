import type { FastifyPluginAsync, FastifyReply, FastifyRequest, onRequestAsyncHookHandler } from 'fastify'

import { addFields } from './fields.js'
import type { Hold } from './hold.js'
import { Limiter, type LimiterOptions, type Source } from './limiter.js'
import type { CheckAnswer } from './types.js'

export type { LimiterOptions } from './limiter.js'
export type FastifyOptions = LimiterOptions<FastifyRequest, FastifyReply>

declare module 'fastify' {
  interface FastifyRequest {
    /** The decision of Tollgate, unless the request was skipped or there is none. */
    tollgate?: CheckAnswer
    /** The hold, with the option `hold`. */
    tollgateHold?: Hold
  }
}

const SOURCE: Source<FastifyRequest, undefined> = {
  address: (request) => request.ip,
  // A request has `ips` exactly if `trustProxy` is set.
  ignoresProxy: ({ headers, ips }) => (headers['x-forwarded-for'] ?? headers.forwarded) !== undefined && ips === undefined,
  setting: "Fastify's `trustProxy`",
}

/**
 * Plugin for Fastify: denied requests end with 429. The decision is `request.tollgate`. The default
 * key is `request.ip`, so `trustProxy` decides which address counts. It limits all routes of the
 * scope that registers it. `fastify.close` waits for charges that follow responses.
 */
export const tollgate: FastifyPluginAsync<FastifyOptions> = async (fastify, options) => {
  // Fastify reads these itself.
  const { prefix: _, logLevel: __, logSerializers: ___, ...own } = options as FastifyOptions & Record<string, unknown>
  const hook = tollgateHook(own)
  for (const name of ['tollgate', 'tollgateHold']) {
    if (!fastify.hasRequestDecorator(name)) fastify.decorateRequest(name, undefined)
  }
  fastify.addHook('onRequest', hook)
  fastify.addHook('onClose', () => hook.close())
}

/** The same for single routes: `fastify.get('/', {onRequest: tollgateHook(options)}, handler)`. */
export function tollgateHook(options: FastifyOptions = {}): onRequestAsyncHookHandler & { close(): Promise<void> } {
  const limiter = new Limiter(options, SOURCE)

  const hook: onRequestAsyncHookHandler = async (request, response) => {
    const { traceparent } = request.headers
    const trace = typeof traceparent === 'string' ? traceparent : undefined
    const { decision, hold, reply, fields, after, answered } = await limiter.decide(request, undefined, trace, response)
    if (answered) return response
    request.tollgate = decision
    // Another limit may have a hold, too.
    request.tollgateHold = hold ?? request.tollgateHold
    // The request is over, and nothing would end its hold.
    if (hold !== undefined && response.raw.closed) limiter.expect(() => hold[Symbol.asyncDispose]())()
    const set = (added = {}) =>
      addFields(added, decision, (name) => response.getHeader(name), (name, value) => response.header(name, value))
    if (reply !== undefined) {
      set(reply.fields)
      return response.code(reply.status).send(reply.body)
    }
    if (after !== undefined) {
      // The client left, and nobody would charge the units of the response.
      if (response.raw.closed) return response.hijack()
      const ended = limiter.expect(() => after(response, response.raw.headersSent))
      response.raw.once('finish', ended).once('close', ended)
    }
    set(fields)
  }
  return Object.assign(hook, { close: () => limiter.close() })
}

// As fastify-plugin does it: the hooks belong to the scope that registers the plugin.
Object.assign(tollgate, {
  [Symbol.for('skip-override')]: true,
  [Symbol.for('fastify.display-name')]: 'tollgate-limiter',
  [Symbol.for('plugin-meta')]: { name: 'tollgate-limiter', fastify: '4.x || 5.x' },
})

export default tollgate
