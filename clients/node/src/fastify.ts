import type { FastifyPluginAsync, FastifyReply, FastifyRequest, onRequestAsyncHookHandler } from 'fastify'

import { joined } from './fields.js'
import { Limiter, type LimiterOptions } from './limiter.js'
import type { CheckAnswer } from './types.js'

export type { LimiterOptions } from './limiter.js'
export type FastifyOptions = LimiterOptions<FastifyRequest, FastifyReply>

declare module 'fastify' {
  interface FastifyRequest {
    /** The decision of Tollgate, unless the request was skipped or there is none. */
    tollgate?: CheckAnswer
  }
}

/**
 * Plugin for Fastify: denied requests end with 429. The decision is `request.tollgate`. The default
 * key is `request.ip`, so `trustProxy` decides which address counts. It limits all routes of the
 * scope that registers it.
 */
export const tollgate: FastifyPluginAsync<FastifyOptions> = async (fastify, options) => {
  const limiter = limiterOf(options)
  if (!fastify.hasRequestDecorator('tollgate')) fastify.decorateRequest('tollgate', undefined)
  fastify.addHook('onRequest', hookOf(limiter))
  fastify.addHook('onClose', async () => limiter.close())
}

/** The same for single routes: `fastify.get('/', {onRequest: tollgateHook(options)}, handler)`. */
export function tollgateHook(options: FastifyOptions = {}): onRequestAsyncHookHandler {
  return hookOf(limiterOf(options))
}

function limiterOf(options: FastifyOptions): Limiter<FastifyRequest, FastifyReply> {
  return new Limiter(options, (request) => request.ip)
}

function hookOf(limiter: Limiter<FastifyRequest, FastifyReply>): onRequestAsyncHookHandler {
  return async (request, response) => {
    const { traceparent } = request.headers
    const trace = typeof traceparent === 'string' ? traceparent : undefined
    const { decision, reply, fields, drain } = await limiter.decide(request, response, trace)
    request.tollgate = decision
    if (reply !== undefined) {
      return response.code(reply.status).headers(reply.fields).send(reply.body)
    }
    // The client left, and nobody would charge the units of the response.
    if (drain !== undefined && response.raw.closed) return response.hijack()
    for (const name in fields) response.header(name, joined(name, response.getHeader(name), fields[name] as string))
    if (drain !== undefined) response.raw.once('close', drain)
  }
}

// As fastify-plugin does it: the hooks belong to the scope that registers the plugin.
Object.assign(tollgate, {
  [Symbol.for('skip-override')]: true,
  [Symbol.for('fastify.display-name')]: '@tollgate/client',
  [Symbol.for('plugin-meta')]: { name: '@tollgate/client', fastify: '5.x' },
})

export default tollgate
