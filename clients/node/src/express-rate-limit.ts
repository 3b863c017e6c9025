import type { Options, Store } from 'express-rate-limit'

import { type Client, type ClientOptions, clientOf } from './client.js'
import { MOST_UNITS, fittingKey, quotaOf } from './limiter.js'
import type { CheckAnswer, Usage } from './types.js'

export interface StoreOptions extends ClientOptions {
  /** A client to share. By default the store has its own, with the options of a client. */
  client?: Client | undefined
  /** The policy, by default `default`. */
  policy?: string | undefined
  /**
   * Send `limit` and `windowMs` of the middleware as the quota of each check. The policy needs
   * `inline: true`. By default the quotas of the policy count.
   */
  inline?: boolean | undefined
  /** Precedes each key, for limiters that share a policy and count apart. */
  prefix?: string | undefined
  /** Gets the failures of `decrement`, which the middleware does not catch. */
  onError?: ((error: unknown) => void) | undefined
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
  private readonly client: Client
  private readonly uncharged = new Uncharged()
  private limit: number | undefined
  private quotas: string[] | undefined

  constructor(private readonly options: StoreOptions = {}) {
    this.client = clientOf(options, ['policy', 'inline', 'prefix', 'onError'])
  }

  /** What tells this store's counts from others: the middleware warns of a request that it counts twice. */
  get prefix(): string {
    const { policy = 'default', prefix = '' } = this.options
    return `${policy}/${this.quotas ?? ''}/${prefix}`
  }

  init(options: Options): void {
    // The middleware wants whole hits.
    this.limit = typeof options.limit === 'number' ? Math.min(Math.floor(options.limit), MOST_UNITS) : undefined
    const { skipFailedRequests, skipSuccessfulRequests } = options
    this.uncharged.enabled = skipFailedRequests || skipSuccessfulRequests
    if (!this.options.inline) return
    if (this.limit === undefined) throw new TypeError('inline needs a limit that is a number')
    if (skipFailedRequests || skipSuccessfulRequests) {
      throw new TypeError('inline quotas have no refunds: skipFailedRequests and skipSuccessfulRequests need a policy')
    }
    this.quotas = this.limit >= 1 ? [quotaOf(this.limit, options.windowMs)] : undefined
  }

  async increment(key: string): Promise<Hits> {
    if (this.closed) return { totalHits: 1, resetTime: new Date() }
    const decision = await this.client.check({ ...this.of(key), quotas: this.quotas })
    if (!decision.allowed) this.uncharged.add(key, decision.reset_after_ms ?? decision.retry_after_ms ?? 0)
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
  async shutdown(): Promise<void> {
    if (this.options.client === undefined) await this.client.close()
  }

  /** A limit below 1 admits nobody, and no quota can express it. */
  private get closed(): boolean {
    return this.limit !== undefined && this.limit < 1
  }

  private of(key: string): { policy: string | undefined; key: string } {
    return { policy: this.options.policy, key: fittingKey((this.options.prefix ?? '') + key) }
  }

  private hits(decision: CheckAnswer | Usage, least = 1): Hits {
    const limit = this.limit ?? decision.limit ?? 1
    const used = limit - (decision.remaining ?? limit)
    // A `limit` function may return any number.
    const beyond = this.limit === undefined ? Number.MAX_SAFE_INTEGER : limit + 1
    const totalHits = decision.allowed ? Math.max(least, Math.min(limit, used)) : beyond
    const wait = decision.allowed ? decision.reset_after_ms : (decision.retry_after_ms ?? decision.reset_after_ms)
    return { totalHits, resetTime: new Date(Date.now() + (wait ?? 0)) }
  }
}

/**
 * The denials of each key, which the middleware may decrement, too. The node charged nothing for
 * them. As in the memory store, they absorb decrements until the counts are whole again.
 */
class Uncharged {
  enabled = false
  private readonly denials = new Map<string, { count: number; until: number }>()

  add(key: string, resetMs: number): void {
    if (!this.enabled) return
    const count = this.counted(key)
    this.denials.delete(key)
    this.denials.set(key, { count: count + 1, until: performance.now() + resetMs })
    if (this.denials.size > MOST_DENIALS) this.denials.delete(this.denials.keys().next().value as string)
  }

  /** Whether a denial absorbs the decrement. */
  remove(key: string): boolean {
    const count = this.counted(key)
    const denial = this.denials.get(key)
    if (count > 1 && denial !== undefined) denial.count -= 1
    else this.denials.delete(key)
    return count > 0
  }

  private counted(key: string): number {
    const denial = this.denials.get(key)
    return denial !== undefined && performance.now() < denial.until ? denial.count : 0
  }
}

export default TollgateStore
