// The part that the middlewares share: from a request to a verdict, without a framework.
import { createHash } from 'node:crypto'

import { Client, type ClientOptions } from './client.js'
import { Problem, Unavailable, invalid } from './errors.js'
import { type Fields, fieldsOf } from './fields.js'
import type { Check, CheckAnswer } from './types.js'

type Awaitable<T> = T | Promise<T>

export interface LimiterOptions<Request, Response> extends ClientOptions {
  /** A client to share. By default each middleware has its own, with the options of a client. */
  client?: Client | undefined
  /** The policy, by default `default`. */
  policy?: string | undefined
  /** The key of a request. By default, and if it returns nothing, the address of the client. */
  key?: ((request: Request) => Awaitable<string | number | null | undefined>) | undefined
  /** The cost of a request, by default 1. */
  cost?: (number | ((request: Request) => Awaitable<number>)) | undefined
  /** The cause of the charge, kept by sliding logs. */
  meta?: ((request: Request) => Awaitable<string | undefined>) | undefined
  /** Quotas in place of the policy's own, if it has `inline: true`. */
  quotas?: (Check['quotas'] | ((request: Request) => Awaitable<Check['quotas']>)) | undefined
  /** Requests to pass uncounted. */
  skip?: ((request: Request) => Awaitable<boolean>) | undefined
  /**
   * Units to charge on top of `cost`, once the response ended or its connection closed. If a client
   * may leave before the units are known, return a promise of them.
   */
  drain?: ((request: Request, response: Response) => Awaitable<number>) | undefined
  /** Without a decision `open` passes a request, and `closed` ends it with 503. By default `open`. */
  onFailure?: 'open' | 'closed' | undefined
  /** The status of a denial, by default 429. */
  status?: number | undefined
  /** The body of a denial: a text, a value to send as JSON, or a function that returns one of them. */
  body?: string | object | ((decision: CheckAnswer, request: Request) => string | object) | undefined
  /** Gets each failure. */
  onError?: ((error: unknown, request: Request) => void) | undefined
}

export interface Reply {
  status: number
  fields: Fields
  body: string
}

export interface Verdict {
  /** The decision, unless the request was skipped or there is none. */
  decision?: CheckAnswer
  /** The response that ends the request, if it does not pass. */
  reply?: Reply
  /** The fields of a request that passes. */
  fields?: Fields
  /** Charges the units that are known after the response. */
  drain?: () => Promise<void>
}

const MOST_KEY_BYTES = 1024
const HTTP_PROBLEMS = 'https://iana.org/assignments/http-problem-types#'

export class Limiter<Request, Response> {
  readonly client: Client
  private readonly check: Pick<Check, 'policy'>

  constructor(
    private readonly options: LimiterOptions<Request, Response>,
    private readonly address: (request: Request) => string | undefined,
  ) {
    if (!['open', 'closed', undefined].includes(options.onFailure)) {
      throw new TypeError('onFailure must be "open" or "closed"')
    }
    const { status = 429 } = options
    if (!(Number.isInteger(status) && status >= 200 && status <= 599)) {
      throw new RangeError('status must be an integer from 200 to 599')
    }
    this.client = options.client ?? new Client(options)
    this.check = { policy: options.policy }
  }

  async decide(request: Request, response: Response, traceparent: string | undefined): Promise<Verdict> {
    const { options } = this
    if (options.skip !== undefined && (await options.skip(request))) return {}
    const check = await this.checkOf(request)
    let verdict: Verdict
    try {
      if (check.key === '') throw withoutKey()
      verdict = this.verdict(await this.client.check(check, { traceparent }), request)
    } catch (error) {
      verdict = this.withoutDecision(error, request)
    }
    if (options.drain !== undefined && verdict.reply === undefined) {
      verdict.drain = () => this.drain(request, response, check, traceparent)
    }
    return verdict
  }

  /** Closes the client, unless the caller shares its own. */
  close(): void {
    if (this.options.client === undefined) this.client.close()
  }

  private async checkOf(request: Request): Promise<Check> {
    const { key, cost, meta, quotas } = this.options
    const given = key === undefined ? undefined : await key(request)
    const check: Check = { ...this.check, key: fittingKey(String(given ?? '') || this.address(request) || '') }
    if (cost !== undefined) check.cost = typeof cost === 'function' ? await cost(request) : cost
    if (meta !== undefined) check.meta = await meta(request)
    if (quotas !== undefined) check.quotas = typeof quotas === 'function' ? await quotas(request) : quotas
    return check
  }

  private verdict(decision: CheckAnswer, request: Request): Verdict {
    const fields = fieldsOf(decision)
    if (decision.allowed) return { decision, fields }
    const { status = 429, body } = this.options
    const content = typeof body === 'function' ? body(decision, request) : body
    return { decision, reply: reply(status, fields, content ?? problemOf(decision, status)) }
  }

  private withoutDecision(error: unknown, request: Request): Verdict {
    if (!(error instanceof Problem) && !(error instanceof Unavailable)) throw error
    this.options.onError?.(error, request)
    // Else a caller could evade the limit by a key or a cost that the node rejects.
    if (error instanceof Problem && error.isBadCheck) return { reply: reply(400, {}, badRequest()) }
    if (this.options.onFailure !== 'closed') return {}
    return { reply: reply(503, { 'retry-after': '1' }, reducedCapacity(503)) }
  }

  private async drain(
    request: Request,
    response: Response,
    check: Check,
    traceparent: string | undefined,
  ): Promise<void> {
    try {
      const cost = await this.options.drain?.(request, response)
      if (!cost || cost < 0) return
      await this.client.check({ ...check, cost, over: 'drain' }, { traceparent })
    } catch (error) {
      this.tell(error, request)
    }
  }

  /** The response has ended, and so nobody could catch what `onError` throws. */
  private tell(error: unknown, request: Request): void {
    try {
      this.options.onError?.(error, request)
    } catch (thrown) {
      process.emitWarning(thrown instanceof Error ? thrown : new Error(String(thrown)))
    }
  }
}

/** A key that a node accepts. Longer keys and lone surrogates become their hash, so that they count. */
export function fittingKey(key: string): string {
  // Ill-formed texts that differ are equal in UTF-8: it has no surrogates.
  if (!key.isWellFormed()) return hashed(Buffer.from(key, 'utf16le'))
  // A UTF-16 unit has at most three bytes in UTF-8.
  if (key.length * 3 <= MOST_KEY_BYTES || Buffer.byteLength(key) <= MOST_KEY_BYTES) return key
  return hashed(key)
}

function hashed(key: string | Buffer): string {
  return `sha256:${createHash('sha256').update(key).digest('hex')}`
}

/** A Unix socket has no address, and neither has a caller that left. */
function withoutKey(): Problem {
  return invalid('/key', 'the request has no address: set `key`')
}

function reply(status: number, fields: Fields, content: string | object): Reply {
  if (typeof content === 'string') {
    return { status, fields: { ...fields, 'content-type': 'text/plain; charset=utf-8' }, body: content }
  }
  const type = content instanceof ProblemBody ? 'application/problem+json' : 'application/json'
  return { status, fields: { ...fields, 'content-type': type }, body: JSON.stringify(content) }
}

class ProblemBody {
  constructor(members: Record<string, unknown>) {
    Object.assign(this, members)
  }
}

function problemOf(decision: CheckAnswer, status: number): ProblemBody {
  const { retry_after_ms, quota } = decision
  if (decision.reason === 'deny_listed') {
    return new ProblemBody({ type: 'urn:tollgate:problem:deny-listed', title: 'Denied by a list', status })
  }
  if (decision.reason === 'store_unavailable') return reducedCapacity(status, retry_after_ms)
  return new ProblemBody({
    type: `${HTTP_PROBLEMS}quota-exceeded`,
    title: 'Request cannot be satisfied as assigned quota has been exceeded',
    status,
    'violated-policies': quota === null ? [] : [quota],
    retry_after_ms,
  })
}

function reducedCapacity(status: number, retry_after_ms: number | null = 1000): ProblemBody {
  return new ProblemBody({
    type: `${HTTP_PROBLEMS}temporary-reduced-capacity`,
    title: 'Request cannot be satisfied due to temporary server capacity constraints',
    status,
    retry_after_ms,
  })
}

function badRequest(): ProblemBody {
  return new ProblemBody({
    type: 'urn:tollgate:problem:invalid-request',
    title: 'The rate limiter cannot count this request',
    status: 400,
  })
}
