import type { Options, Store } from 'express-rate-limit'

import { Client, type ClientOptions } from './client.js'
import { fittingKey } from './limiter.js'
import type { CheckAnswer, Usage } from './types.js'

export interface StoreOptions extends ClientOptions {
  /** A client to share. By default the store has its own, with the options of a client. */
  client?: Client
  /** The policy, by default `default`. */
  policy?: string
  /**
   * Send `limit` and `windowMs` of the middleware as the quota of each check. The policy needs
   * `inline: true`. By default the quotas of the policy count.
   */
  inline?: boolean
  /** Precedes each key, for limiters that share a policy and count apart. */
  prefix?: string
  /** Gets the failures of `decrement`, which the middleware does not catch. */
  onError?: (error: unknown) => void
}

const MOST_DENIALS = 100_000

interface Hits {
  totalHits: number
  resetTime: Date
}

/**
 * A store for express-rate-limit. The node decides: `totalHits` exceeds `limit` exactly if it denies.
 * Denied requests do not count. Set `passOnStoreError` to pass requests while no node answers.
 */
export class TollgateStore implements Store {
  readonly localKeys = false
  readonly prefix: string
  private readonly client: Client
  private readonly uncharged = new Uncharged()
  private limit: number | undefined
  private quotas: string[] | undefined

  constructor(private readonly options: StoreOptions = {}) {
    this.client = options.client ?? new Client(options)
    this.prefix = options.prefix ?? ''
  }

  init(options: Options): void {
    this.limit = typeof options.limit === 'number' ? options.limit : undefined
    const { skipFailedRequests, skipSuccessfulRequests, statusCode = 429 } = options
    this.uncharged.enabled = statusCode < 400 ? skipSuccessfulRequests : skipFailedRequests
    if (!this.options.inline) return
    if (this.limit === undefined) throw new TypeError('inline needs a limit that is a number')
    if (skipFailedRequests || skipSuccessfulRequests) {
      throw new TypeError('inline quotas have no refunds: skipFailedRequests and skipSuccessfulRequests need a policy')
    }
    this.quotas = this.limit >= 1 ? [`${this.limit} per ${options.windowMs}ms`] : undefined
  }

  async increment(key: string): Promise<Hits> {
    if (this.closed) return { totalHits: 1, resetTime: new Date() }
    const decision = await this.client.check({ ...this.of(key), quotas: this.quotas })
    if (!decision.allowed) this.uncharged.add(key)
    return this.hits(decision)
  }

  async get(key: string): Promise<Hits | undefined> {
    if (this.closed) return undefined
    const now = await this.client.check({ ...this.of(key), quotas: this.quotas, cost: 0 })
    return now.remaining !== null && now.remaining === now.limit ? undefined : this.hits(now, 0)
  }

  async decrement(key: string): Promise<void> {
    if (this.closed || this.uncharged.remove(key)) return
    try {
      await this.client.refund({ ...this.of(key), cost: 1 })
    } catch (error) {
      this.options.onError?.(error)
    }
  }

  /** Forgets the counts of a key. It needs an admin token, if the node has one. */
  async resetKey(key: string): Promise<void> {
    if (this.options.inline) throw new Error('a node cannot reset inline quotas: use a policy')
    await this.client.reset(this.of(key))
  }

  /** Closes the client, unless the caller shares its own. */
  shutdown(): void {
    if (this.options.client === undefined) this.client.close()
  }

  /** A limit below 1 admits nobody, and no quota can express it. */
  private get closed(): boolean {
    return this.limit !== undefined && this.limit < 1
  }

  private of(key: string): { policy: string | undefined; key: string } {
    return { policy: this.options.policy, key: fittingKey(this.prefix + key) }
  }

  private hits(decision: CheckAnswer | Usage, least = 1): Hits {
    const limit = this.limit ?? decision.limit ?? 1
    const used = limit - (decision.remaining ?? limit)
    const totalHits = decision.allowed ? Math.max(least, Math.min(limit, used)) : limit + 1
    const wait = decision.allowed ? decision.reset_after_ms : (decision.retry_after_ms ?? decision.reset_after_ms)
    return { totalHits, resetTime: new Date(Date.now() + (wait ?? 0)) }
  }
}

/** The middleware may decrement after a denial, too. The node charged nothing for it. */
class Uncharged {
  enabled = false
  private readonly denials = new Map<string, number>()

  add(key: string): void {
    if (!this.enabled) return
    this.denials.set(key, (this.denials.get(key) ?? 0) + 1)
    // A denial that is never decremented would stay for ever.
    if (this.denials.size > MOST_DENIALS) this.denials.delete(this.denials.keys().next().value as string)
  }

  /** Whether the decrement belongs to a denial. */
  remove(key: string): boolean {
    const count = this.denials.get(key)
    if (count === undefined) return false
    if (count === 1) this.denials.delete(key)
    else this.denials.set(key, count - 1)
    return true
  }
}

export default TollgateStore
