import { randomBytes } from 'node:crypto'

import { Coalescer, type Written } from './coalescer.js'
import { Problem, Unavailable, invalid } from './errors.js'
import { type Call, checkToken, traceparentOf } from './exchange.js'
import { Nodes } from './nodes.js'
import type { Answer } from './response.js'
import type {
  BatchAnswer,
  Check,
  CheckAnswer,
  ProblemDocument,
  Refund,
  RefundAnswer,
  TogetherAnswer,
  Usage,
} from './types.js'

export interface ClientOptions {
  /** URLs of nodes, in the order of preference. By default `http://127.0.0.1:7070`. */
  nodes?: string | string[] | undefined
  /** The longest duration of a call, ms. By default 100. */
  deadlineMs?: number | undefined
  /** A token, or a function that returns the present one. */
  token?: string | (() => string) | undefined
  /** A PEM file with the authorities of the nodes' certificates. */
  caFile?: string | undefined
  /** Repeat a call once after a broken connection. Each check then has an id. By default true. */
  retry?: boolean | undefined
  /** Send concurrent checks as one batch. By default true. */
  coalesce?: boolean | undefined
}

export interface CallOptions {
  /** Replaces the client's deadline for this call. Such a check goes alone. */
  deadlineMs?: number | undefined
  /** The W3C trace context to pass on. */
  traceparent?: string | undefined
}

/** The longest body that a node reads. It closes the connection of a longer one before the end. */
const MOST_BYTES = 1024 * 1024

/** The longest time of a timer. */
const MOST_MS = 2 ** 31 - 1

/** Asks nodes of Tollgate. Calls reject with `Problem` or `Unavailable`. */
export class Client {
  private readonly nodes: Nodes
  private readonly deadlineMs: number
  private readonly token: ClientOptions['token']
  private readonly retry: boolean
  private readonly coalescer: Coalescer | undefined
  private readonly idPrefix = randomBytes(12).toString('base64url')
  private ids = 0

  constructor(options: ClientOptions = {}) {
    const nodes = options.nodes ?? 'http://127.0.0.1:7070'
    this.nodes = new Nodes(typeof nodes === 'string' ? [nodes] : nodes, options.caFile)
    this.deadlineMs = options.deadlineMs ?? 100
    if (!(typeof this.deadlineMs === 'number' && this.deadlineMs > 0 && this.deadlineMs <= MOST_MS)) {
      throw new RangeError(`deadlineMs must be a number above 0 and at most ${MOST_MS}`)
    }
    this.token = options.token
    if (typeof this.token === 'string') checkToken(this.token)
    this.retry = options.retry ?? true
    if (options.coalesce ?? true) {
      this.coalescer = new Coalescer({
        one: (check, traceparent) => this.checkAlone(check, { traceparent }),
        many: (checks, traceparent) => this.batch(checks, { traceparent }),
      })
    }
  }

  /** Decides one check. */
  async check(check: Check, options: CallOptions = {}): Promise<CheckAnswer> {
    if (hasBadCost(check)) throw badCost()
    const charged = this.withId(check)
    if (this.coalescer === undefined || options.deadlineMs !== undefined) {
      return this.checkAlone(written(charged), options)
    }
    return this.coalescer.check(charged, traceparentOf(options.traceparent))
  }

  /** Decides up to 1000 checks, each alone. */
  async checkBatch(checks: Check[], options: CallOptions = {}): Promise<BatchAnswer> {
    if (checks.some(hasBadCost)) throw badCost()
    return this.batch(checks.map((check) => written(this.withId(check))), options)
  }

  /** Charges all of up to 16 checks, or none. They have no ids, so this call is never repeated. */
  async checkAll(checks: Check[], options: CallOptions = {}): Promise<TogetherAnswer> {
    if (checks.some(hasBadCost)) throw badCost()
    return this.post('/v1/check/all', JSON.stringify({ checks }), false, options)
  }

  /** Gives a charge back: exactly that of an id, or units from the oldest charge on. */
  async refund(refund: Refund, options: CallOptions = {}): Promise<RefundAnswer> {
    return this.post('/v1/refund', JSON.stringify(refund), 'id' in refund && this.retry, options)
  }

  /** The decision for cost 0, which charges nothing. `cost` asks for the decision of that cost. */
  async usage(of: { policy?: string | undefined; key: string; cost?: number | undefined }, options: CallOptions = {}): Promise<Usage> {
    return this.call({ method: 'GET', path: `/v1/usage?${query(of)}`, repeatable: this.retry }, options)
  }

  /** Forgets the present counts of a key. It needs an admin token, if the node has one. */
  async reset(of: { policy?: string | undefined; key: string }, options: CallOptions = {}): Promise<Usage> {
    return this.call({ method: 'DELETE', path: `/v1/usage?${query(of)}`, repeatable: false }, options)
  }

  /** Closes all connections. */
  close(): void {
    this.nodes.close()
  }

  private async checkAlone({ check, text }: Written, options: CallOptions): Promise<CheckAnswer> {
    const answer: CheckAnswer = await this.post('/v1/check', text, this.repeatable(check), options)
    if (typeof answer.allowed !== 'boolean') throw noDecision()
    return answer
  }

  private async batch(checks: Written[], options: CallOptions): Promise<BatchAnswer> {
    const repeatable = checks.every(({ check }) => this.repeatable(check))
    const body = `{"checks":[${checks.map(({ text }) => text).join(',')}]}`
    const answer: BatchAnswer = await this.post('/v1/check/batch', body, repeatable, options)
    if (!Array.isArray(answer.results) || answer.results.length !== checks.length) throw noDecision()
    return answer
  }

  private repeatable(check: Check): boolean {
    return this.retry && (check.id !== undefined || check.cost === 0)
  }

  private withId(check: Check): Check {
    if (!this.retry || check.id !== undefined || check.cost === 0) return check
    return { ...check, id: this.idPrefix + this.ids++ }
  }

  private async post<T>(path: string, body: string, repeatable: boolean, options: CallOptions): Promise<T> {
    if (Buffer.byteLength(body) > MOST_BYTES) throw tooLarge()
    return this.call({ method: 'POST', path, body, repeatable }, options)
  }

  private async call<T>(call: Call, options: CallOptions): Promise<T> {
    call.traceparent = traceparentOf(options.traceparent)
    const deadline = performance.now() + (options.deadlineMs ?? this.deadlineMs)
    const token = typeof this.token === 'function' ? this.token() : this.token
    return parsed(await this.nodes.call(call, token, deadline)) as T
  }
}

function parsed(answer: Answer): unknown {
  let body: unknown
  try {
    body = JSON.parse(answer.text)
  } catch (error) {
    if (answer.status === 200) throw noDecision(error)
  }
  if (answer.status === 200) {
    if (typeof body !== 'object' || body === null) throw noDecision()
    return body
  }
  throw new Problem({
    type: 'about:blank',
    title: `status ${answer.status}`,
    detail: 'the answer is no problem document',
    ...(typeof body === 'object' ? (body as Partial<ProblemDocument>) : {}),
    status: answer.status,
  })
}

/** Something else than a node has answered. */
function noDecision(cause?: unknown): Unavailable {
  return new Unavailable('the answer is no decision', cause)
}

function written(check: Check): Written {
  return { check, text: JSON.stringify(check) }
}

/** JSON has no NaN or Infinity: it would write null, and the node would charge 1. */
function hasBadCost({ cost }: Check): boolean {
  return cost !== undefined && !(Number.isSafeInteger(cost) && cost >= 0)
}

function badCost(): Problem {
  return invalid('/cost', 'must be an integer from 0 to 10^15')
}

function tooLarge(): Problem {
  return new Problem({
    type: 'urn:tollgate:problem:too-large',
    title: 'The body is too large',
    status: 413,
    detail: 'the call has more than 1 MiB',
  })
}

function query(members: Record<string, string | number | undefined>): URLSearchParams {
  const parameters = new URLSearchParams()
  for (const [name, value] of Object.entries(members)) {
    if (value !== undefined) parameters.set(name, String(value))
  }
  return parameters
}
