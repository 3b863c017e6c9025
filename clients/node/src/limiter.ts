// The part that the middlewares share: from a request to a verdict, without a framework.
import { createHash, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'

import { addressIn } from './address.js'
import { type Client, type ClientOptions, clientOf } from './client.js'
import { Denied, Problem, Unavailable, invalid } from './errors.js'
import { type Fields, fieldsOf } from './fields.js'
import type { Hold } from './hold.js'
import type { Check, CheckAnswer } from './types.js'

export type Awaitable<T> = T | Promise<T>

/** `context` is the second argument of a handler with Web requests. Other frameworks have none. */
export interface LimiterOptions<Request, Response, Context = undefined> extends ClientOptions {
  /** A client to share. By default each middleware has its own, with the options of a client. */
  client?: Client | undefined
  /** The policy, by default `default`. */
  policy?: string | ((request: Request, context: Context) => Awaitable<string | undefined>) | undefined
  /** The key of a request. By default, and if it returns nothing, the address of the client. */
  key?: ((request: Request, context: Context) => Awaitable<string | number | null | undefined>) | undefined
  /** The plan of a request, whose quotas replace those of the policy. */
  plan?: string | ((request: Request, context: Context) => Awaitable<string | undefined>) | undefined
  /** The cost of a request, by default 1. Beside `drain`, 0 means `look`. */
  cost?: (number | ((request: Request, context: Context) => Awaitable<number>)) | undefined
  /**
   * Hold the cost, and a place, until the response has ended or the client has left. The handler may
   * set the true `cost` of the hold. The policy needs a `hold`.
   */
  hold?: boolean | undefined
  /** Charge nothing, and deny a request whose cost does not fit now. */
  look?: boolean | undefined
  /** Charge once, also if the client repeats the check. Such a check always asks the store. */
  once?: boolean | undefined
  /** The cause of the charge, kept by sliding logs. */
  meta?: ((request: Request, context: Context) => Awaitable<string | undefined>) | undefined
  /** Quotas in place of the policy's own, if it has `inline: true`. */
  quotas?: (Check['quotas'] | ((request: Request, context: Context) => Awaitable<Check['quotas']>)) | undefined
  /** Requests to pass uncounted. */
  skip?: ((request: Request, context: Context) => Awaitable<boolean>) | undefined
  /**
   * Units to charge on top of `cost`, once the response ended or its connection closed. If a client
   * may leave before the units are known, return a promise of them.
   */
  drain?: ((request: Request, response: Response, context: Context) => Awaitable<number>) | undefined
  /** Whether to give the charge of a request back after its response, such as for a right password. */
  refund?: ((request: Request, response: Response, context: Context) => Awaitable<boolean>) | undefined
  /** Without a decision `open` passes a request, and `closed` ends it with 503. By default `open`. */
  onFailure?: 'open' | 'closed' | undefined
  /** The status of a denial, by default 429. */
  status?: number | undefined
  /** The body of a denial: a text, a value to send as JSON, or a function that returns one of them. */
  body?: string | object | ((decision: CheckAnswer, request: Request) => string | object) | undefined
  /**
   * The response of a denial: members that replace the default ones. A function that returns nothing
   * has answered by `response` itself. With Web requests there is no `response`.
   */
  denied?: ((decision: CheckAnswer, request: Request, response: Response) => Awaitable<Denial | void>) | undefined
  /** Gets each failure. By default the client logs the first one, and then at most one a second. */
  onError?: ((error: unknown, request: Request) => void) | undefined
}

const OPTIONS = [
  'policy', 'key', 'plan', 'cost', 'hold', 'look', 'once', 'meta', 'quotas', 'skip', 'drain', 'refund', 'onFailure', 'status', 'body', 'denied',
  'onError',
] as const satisfies Array<keyof LimiterOptions<unknown, unknown>>

/** What a framework knows of a request. */
export interface Source<Request, Context> {
  address(request: Request, context: Context): string | undefined
  /** Whether a proxy names its client, and the framework ignores it. */
  ignoresProxy?(request: Request): boolean
  /** The remedy. */
  setting?: string
}

/** A response to a denied request. `headers` come on top of the default ones; `body` as the option. */
export interface Denial {
  status?: number
  headers?: Record<string, string>
  body?: string | object
}

export interface Reply {
  status: number
  fields: Fields
  body: string
}

export interface Verdict<Response> {
  /** The decision, unless the request was skipped or there is none. */
  decision?: CheckAnswer
  /** The hold of a request that passes. */
  hold?: Hold
  /** The response that ends the request, if it does not pass. */
  reply?: Reply
  /** The option `denied` has answered. */
  answered?: true
  /** The fields of a request that passes. */
  fields?: Fields
  /** Charges after the response, and gives back if it was `sent`. Or settles the hold. */
  after?: (response: Response, sent: boolean) => Promise<void>
}

const MOST_KEY_BYTES = 1024
/** The longest response whose charge can be given back. */
const REFUND_MS = 300_000
/** How long `close` waits for charges that follow responses. */
const CLOSE_MS = 10_000
/** The largest cost and the largest limit of a node. */
export const MOST_UNITS = 10 ** 15
const HTTP_PROBLEMS = 'https://iana.org/assignments/http-problem-types#'
const REDUCED_CAPACITY = {
  type: `${HTTP_PROBLEMS}temporary-reduced-capacity`,
  title: 'Request cannot be satisfied due to temporary server capacity constraints',
}
const BAD_REQUEST = {
  type: 'urn:tollgate:problem:invalid-request',
  title: 'The rate limiter cannot count this request',
}

export class Limiter<Request, Response, Context = undefined> {
  readonly client: Client
  /** Responses whose charges are still to come. */
  private expected = 0
  private onIdle: (() => void) | undefined

  constructor(
    private readonly options: LimiterOptions<Request, Response, Context>,
    private readonly source: Source<Request, Context>,
  ) {
    if (!['open', 'closed', undefined].includes(options.onFailure)) {
      throw new TypeError('onFailure must be "open" or "closed"')
    }
    const { status = 429 } = options
    if (!(Number.isInteger(status) && status >= 200 && status <= 599)) {
      throw new RangeError('status must be an integer from 200 to 599')
    }
    if (options.body !== undefined && options.denied !== undefined) throw new TypeError('denied returns the body: remove body')
    if (options.look && options.refund) throw new TypeError('look charges nothing to refund: use one of them')
    if (options.hold && (options.look || options.drain || options.refund)) {
      throw new TypeError('hold settles the cost of a request: remove look, drain and refund')
    }
    this.client = clientOf(options, OPTIONS)
  }

  async decide(request: Request, context: Context, traceparent: string | undefined, response?: Response): Promise<Verdict<Response>> {
    const { options } = this
    if (options.skip !== undefined && (await options.skip(request, context))) return {}
    const check = await this.checkOf(request, context)
    let verdict: Verdict<Response>
    try {
      if (check.key === '') throw withoutKey()
      verdict = await this.ask(check, traceparent)
      const { decision } = verdict
      if (decision?.allowed === false) verdict = await this.denial(decision, request, response as Response)
    } catch (error) {
      verdict = this.withoutDecision(error, request)
    }
    const { hold } = verdict
    if (hold !== undefined) verdict.after = () => this.settled('settle', request, async () => void (await hold.settle()))
    else if (verdict.reply === undefined && (options.drain !== undefined || check.id !== undefined)) {
      verdict.after = (response, sent) =>
        this.follow(request, response, context, check, sent && verdict.decision !== undefined, traceparent)
    }
    return verdict
  }

  /** `after`, to be called once a response of Node ended. Until then `close` waits. */
  expect(after: () => Promise<void>): () => void {
    this.expected++
    let ended = false
    return () => {
      if (ended) return
      ended = true
      void after().finally(() => {
        if (--this.expected === 0) this.onIdle?.()
      })
    }
  }

  /** Waits for the charges that follow responses, and closes the client, unless it is shared. */
  async close(): Promise<void> {
    if (this.expected > 0) {
      const idle = new Promise<void>((resolve) => { this.onIdle = resolve })
      await Promise.race([idle, sleep(CLOSE_MS, undefined, { ref: false })])
    }
    if (this.options.client === undefined) await this.client.close()
  }

  private async ask(check: Check, traceparent: string | undefined): Promise<Verdict<Response>> {
    if (!this.options.hold) {
      const decision = await this.client.check(this.asked(check), { traceparent })
      return { decision, fields: fieldsOf(decision) }
    }
    try {
      const hold = await this.client.openHold(check, { traceparent })
      return { decision: hold.decision, fields: fieldsOf(hold.decision), hold }
    } catch (error) {
      if (error instanceof Denied) return { decision: error.decision as CheckAnswer }
      throw error
    }
  }

  private async checkOf(request: Request, context: Context): Promise<Check> {
    const { policy, key, plan, cost, meta, quotas, refund, once } = this.options
    const given = String((key === undefined ? undefined : await key(request, context)) ?? '')
    const check: Check = {
      policy: typeof policy === 'function' ? await policy(request, context) : policy,
      key: given === '' ? this.addressOf(request, context) : fittingKey(given),
    }
    if (plan !== undefined) check.plan = typeof plan === 'function' ? await plan(request, context) : plan
    if (cost !== undefined) check.cost = typeof cost === 'function' ? await cost(request, context) : cost
    if (meta !== undefined) check.meta = await meta(request, context)
    if (quotas !== undefined) check.quotas = typeof quotas === 'function' ? await quotas(request, context) : quotas
    if (once) check.once = true
    if (refund !== undefined && check.cost !== 0) {
      Object.assign(check, { once: true, id: randomUUID(), id_ttl_ms: REFUND_MS })
    }
    return check
  }

  /** The check before the request. A cost of 0 would never deny. */
  private asked(check: Check): Check {
    const { look, drain } = this.options
    if (!look && !(drain !== undefined && check.cost === 0)) return check
    const { once: _, ...looking } = check
    return { ...looking, cost: check.cost || undefined, look: true }
  }

  private addressOf(request: Request, context: Context): string {
    const { monitor } = this.client
    if (monitor.lacks('proxy') && this.source.ignoresProxy?.(request)) {
      monitor.warn(
        'proxy',
        'requests have X-Forwarded-For or Forwarded, but the framework trusts no proxy, ' +
          `so all clients behind one count as one: set ${this.source.setting}, or \`key\``,
      )
    }
    const written = this.source.address(request, context) ?? ''
    const address = addressIn(written)
    if (address !== written) {
      monitor.warn(
        'address',
        `the address of a client has a port or a zone ("${written}"), which does not count: ` +
          'let the proxy send addresses without it',
      )
    }
    return fittingKey(address)
  }

  private async denial(decision: CheckAnswer, request: Request, response: Response): Promise<Verdict<Response>> {
    const { body, denied } = this.options
    const own = await denied?.(decision, request, response)
    if (denied !== undefined && own === undefined && response !== undefined) return { decision, answered: true }
    const { status = this.options.status ?? 429, headers, body: content = typeof body === 'function' ? body(decision, request) : body } = own ?? {}
    const fields = fieldsOf(decision)
    const reply = content === undefined ? problem(status, fields, membersOf(decision)) : replyOf(status, fields, content)
    for (const name in headers) reply.fields[name.toLowerCase()] = headers[name] as string
    return { decision, reply }
  }

  private withoutDecision(error: unknown, request: Request): Verdict<Response> {
    if (!(error instanceof Problem) && !(error instanceof Unavailable)) throw error
    // Else a caller could evade the limit by a key or a cost that the node rejects.
    const isBad = error instanceof Problem && error.isBadCheck
    const isOpen = !isBad && this.options.onFailure !== 'closed'
    if (isOpen) this.client.monitor.passed()
    this.report(`no decision, so the request ${isOpen ? 'passes' : `ends with ${isBad ? 400 : 503}`}`, error, request)
    if (isOpen) return {}
    if (isBad) return { reply: problem(400, {}, BAD_REQUEST) }
    return { reply: problem(503, { 'retry-after': '1' }, { ...REDUCED_CAPACITY, retry_after_ms: 1000 }) }
  }

  /** Gives the charge back if a response was `sent`, and charges the units that are known now. */
  private async follow(request: Request, response: Response, context: Context, check: Check, sent: boolean, traceparent?: string): Promise<void> {
    const { policy, key, plan, id, meta, quotas } = check
    const { drain, refund, once } = this.options
    await this.settled('refund', request, async () => {
      if (!sent || id === undefined || !(await refund?.(request, response, context))) return
      await this.client.refund({ policy, key, id }, { traceparent })
    })
    await this.settled('drain', request, async () => {
      const cost = await drain?.(request, response, context)
      if (!cost || cost < 0) return
      await this.client.check({ policy, key, plan, meta, quotas, once, cost, over: 'drain' }, { traceparent })
    })
  }

  private report(what: string, error: unknown, request: Request): void {
    if (this.options.onError !== undefined) this.options.onError(error, request)
    else this.client.monitor.log(what, error)
  }

  /** The response has ended, and so nobody could catch what `onError` throws. */
  private async settled(what: string, request: Request, call: () => Promise<void>): Promise<void> {
    try {
      await call().catch((error) => this.report(`the ${what} after the response failed`, error, request))
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

/** The limit of another library as a quota. It may be a fraction, or Infinity. */
export function quotaOf(limit: number, windowMs: number): string {
  return `${Math.min(Math.floor(limit), MOST_UNITS)} per ${Math.ceil(windowMs)}ms`
}

function hashed(key: string | Buffer): string {
  return `sha256:${createHash('sha256').update(key).digest('hex')}`
}

/** A Unix socket has no address, and neither has a caller that left. */
function withoutKey(): Problem {
  return invalid('/key', 'the request has no address: set `key`')
}

function replyOf(status: number, fields: Fields, content: string | object): Reply {
  if (typeof content === 'string') return body(status, fields, 'text/plain; charset=utf-8', content)
  return body(status, fields, 'application/json', JSON.stringify(content))
}

/** A problem document (RFC 9457). */
function problem(status: number, fields: Fields, members: object): Reply {
  return body(status, fields, 'application/problem+json', JSON.stringify({ ...members, status }))
}

function body(status: number, fields: Fields, type: string, text: string): Reply {
  return { status, fields: { ...fields, 'content-type': type }, body: text }
}

function membersOf({ reason, retry_after_ms, quota }: CheckAnswer): object {
  if (reason === 'deny_listed') return { type: 'urn:tollgate:problem:deny-listed', title: 'Denied by a list' }
  if (reason === 'store_unavailable') return { ...REDUCED_CAPACITY, retry_after_ms }
  return {
    type: `${HTTP_PROBLEMS}quota-exceeded`,
    title: 'Request cannot be satisfied as assigned quota has been exceeded',
    'violated-policies': quota === null ? [] : [quota],
    retry_after_ms,
  }
}
