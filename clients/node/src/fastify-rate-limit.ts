import { type Client, type ClientOptions, clientOf } from './client.js'
import { fittingKey, quotaOf } from './limiter.js'
import type { CheckAnswer } from './types.js'

export interface StoreOptions extends ClientOptions {
  /** A client to share. By default the store has its own, with the options of a client. */
  client?: Client | undefined
  /** A policy with `inline: true`. By default `default`. */
  policy?: string | undefined
  /** Precedes each key, for limiters that share a policy and count apart. */
  prefix?: string | undefined
}

type Callback = (error: Error | null, result?: { current: number; ttl: number }) => void

/** The options of the plugin, or of a route. */
interface Limits {
  continueExceeding?: boolean
  exponentialBackoff?: boolean
  ban?: number
  groupId?: string
  routeInfo?: { method?: string | string[]; url?: string }
}

interface Store {
  incr(key: string, callback: Callback, timeWindow: number, max: number): void
  read(key: string, callback: Callback, timeWindow: number, max: number): void
  child(limits: object): Store
}

/**
 * A store for @fastify/rate-limit: `{store: tollgateStore({policy: 'routes'})}`. Each check carries
 * `max` and `timeWindow` as its quota. The node decides: `current` exceeds `max` exactly if it denies.
 */
export function tollgateStore(options: StoreOptions = {}): new (limits: object) => Store {
  const client = clientOf(options, ['policy', 'prefix'])

  class TollgateStore implements Store {
    constructor(limits: object, private readonly prefix = options.prefix ?? '') {
      const { continueExceeding, exponentialBackoff, ban = -1 } = limits as Limits
      if (continueExceeding || exponentialBackoff || ban > 0) {
        throw new TypeError('no continueExceeding, exponentialBackoff or ban above 0: denied requests do not count')
      }
    }

    incr(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.ask(key, 1, timeWindow, max).then((result) => callback(null, result), callback)
    }

    read(key: string, callback: Callback, timeWindow: number, max: number): void {
      this.ask(key, 0, timeWindow, max).then((result) => callback(null, result), callback)
    }

    child(limits: object): Store {
      // Routes of a group with equal limits count together. The plugin has the group in the key, but
      // a prefix keeps groups apart.
      const { groupId, routeInfo: { method = '', url = '' } = {} } = limits as Limits
      return new TollgateStore(limits, `${this.prefix}${groupId === undefined ? `${method}${url}` : `group ${groupId}`}-`)
    }

    private async ask(key: string, cost: number, timeWindow: number, max: number) {
      // A limit below 1 admits nobody, and no quota can express it.
      if (max < 1) return { current: cost, ttl: timeWindow }
      const quotas = [quotaOf(max, timeWindow)]
      return counted(await client.check({ policy: options.policy, key: fittingKey(this.prefix + key), cost, quotas }), max)
    }
  }
  return TollgateStore
}

function counted(decision: CheckAnswer, max: number): { current: number; ttl: number } {
  const { allowed, remaining, reset_after_ms, retry_after_ms } = decision
  if (allowed) return { current: max - (remaining ?? max), ttl: reset_after_ms ?? 0 }
  return { current: max + 1, ttl: retry_after_ms ?? reset_after_ms ?? 0 }
}

export default tollgateStore
