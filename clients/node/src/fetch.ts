import { addFields } from './fields.js'
import type { Hold } from './hold.js'
import { type Awaitable, Limiter, type LimiterOptions } from './limiter.js'
import type { CheckAnswer } from './types.js'

export type { LimiterOptions } from './limiter.js'

export interface FetchOptions<Context> extends LimiterOptions<Request, Response, Context> {
  /** The address of the client, which a Web request does not have. Needed without `key`. */
  address?: ((request: Request, context: Context) => string | undefined) | undefined
}

export interface FetchVerdict {
  /** The decision, unless the request was skipped or there is none. */
  decision: CheckAnswer | undefined
  /** The hold of a request that passes, with the option `hold`. */
  hold: Hold | undefined
  /** The response that ends the request, if it does not pass. */
  denial: Response | undefined
  /** The response with the fields. It also charges the units that are known now, gives back, or settles the hold at its end. */
  finish(response: Response): Response
}

type Handler<Context> = (
  request: Request,
  context: Context,
  decision: CheckAnswer | undefined,
  hold: Hold | undefined,
) => Awaitable<Response>

export interface FetchLimiter<Context> {
  /** A handler that denies requests over the limit. */
  <More extends Context>(
    handler: Handler<More>,
  ): (request: Request, context: More) => Promise<Response>
  /** The same in steps, for a middleware of any framework. */
  decide(request: Request, context: Context): Promise<FetchVerdict>
  /** Waits for charges that follow responses. */
  close(): Promise<void>
}

/**
 * A limit for handlers of Web `Request` and `Response`: Hono, Next, Bun. `context` is the second
 * argument of the handler, for the options that are functions.
 */
export function tollgate<Context = any>(options: FetchOptions<Context>): FetchLimiter<Context> {
  const { address, ...others } = options
  if (address === undefined && options.key === undefined) {
    throw new TypeError('a Web request has no address: set `key`, or `address` to a function that knows it')
  }
  const limiter = new Limiter(others, { address: (request, context) => address?.(request, context) })

  async function decide(request: Request, context: Context): Promise<FetchVerdict> {
    const traceparent = request.headers.get('traceparent') ?? undefined
    const { decision, hold, reply, fields = {}, after } = await limiter.decide(request, context, traceparent)
    const withFields = (response: Response, added: Record<string, string>) => {
      addFields(added, decision, (name) => response.headers.get(name) ?? undefined, (name, value) => response.headers.set(name, value))
      return response
    }
    return {
      decision,
      hold,
      denial: reply && withFields(new Response(reply.body, { status: reply.status }), reply.fields),
      finish(response) {
        if (after !== undefined) response = followed(request, response, hold !== undefined, limiter.expect(() => after(response, true)))
        try {
          return withFields(response, fields)
        } catch {
          // The headers of redirects and of fetched responses are immutable.
          return withFields(new Response(response.body, response), fields)
        }
      },
    }
  }

  function limit<More extends Context>(handler: Handler<More>) {
    return async (request: Request, context: More): Promise<Response> => {
      const { decision, hold, denial, finish } = await decide(request, context)
      if (denial !== undefined) return denial
      try {
        return finish(await handler(request, context, decision, hold))
      } catch (error) {
        finish(new Response(null, { status: 500 }))
        throw error
      }
    }
  }
  return Object.assign(limit, { decide, close: () => limiter.close() })
}

/** Calls `ended` now, or with a hold at the end of the body, or when its reader has left. */
function followed(request: Request, response: Response, waits: boolean, ended: () => void): Response {
  const reader = waits ? response.body?.getReader() : undefined
  if (reader === undefined) {
    ended()
    return response
  }
  request.signal.addEventListener('abort', ended, { once: true })
  const body = new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.read().catch((error) => {
        ended()
        throw error
      })
      if (!done) return controller.enqueue(value)
      controller.close()
      ended()
    },
    cancel(reason) {
      ended()
      return reader.cancel(reason)
    },
  })
  return new Response(body, response)
}

export default tollgate
