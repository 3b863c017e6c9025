import { randomBytes, randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'

import { Coalescer, type Written } from './coalescer.js'
import { Denials } from './denials.js'
import { Denied, Problem, Unavailable, invalid } from './errors.js'
import { type Answer, type Call, checkToken, traceparentOf } from './exchange.js'
import { Hold, hasEnded, repeat } from './hold.js'
import type { Sale } from './leases.js'
import { Monitor, type Stats } from './monitor.js'
import { Nodes } from './nodes.js'
import { Purchases } from './purchases.js'
import type {
  BatchAnswer,
  Check,
  CheckAnswer,
  Decision,
  HoldName,
  ProblemDocument,
  Refund,
  RefundAnswer,
  RenewAnswer,
  SettleAnswer,
  Settlement,
  TogetherAnswer,
  Usage,
} from './types.js'

export interface ClientOptions {
  /** URLs of nodes, in the order of preference. By default `http://127.0.0.1:7070`. */
  nodes?: string | string[] | undefined
  /** The longest duration of a call, ms. By default 300 for each node, and at most 1000. */
  deadlineMs?: number | undefined
  /** A token, or a function that returns the present one. */
  token?: string | (() => string) | undefined
  /** A PEM file with the authorities of the nodes' certificates. */
  caFile?: string | undefined
  /** Repeat a call once after a broken connection, which may charge a check without id twice. By default true. */
  retry?: boolean | undefined
  /** Send concurrent checks as one batch. By default true. */
  coalesce?: boolean | undefined
  /** How long a denial of the pre-filter is believed, ms. 0 turns it off. By default 1000. */
  denialCacheMs?: number | undefined
  /** Buy units of policies that sell leases to callers, and decide in this process. By default true. */
  lease?: boolean | undefined
  /** Gets each decision of a check, also those of leases and of remembered denials. */
  onDecision?: ((decision: Decision) => void) | undefined
}

export const CLIENT_OPTIONS = [
  'nodes', 'deadlineMs', 'token', 'caFile', 'retry', 'coalesce', 'denialCacheMs', 'lease', 'onDecision',
] as const satisfies Array<keyof ClientOptions>

export interface CallOptions {
  /** Replaces the client's deadline for this call. Such a check goes alone. */
  deadlineMs?: number | undefined
  /** The W3C trace context to pass on. */
  traceparent?: string | undefined
}

export interface AcquireOptions extends CallOptions {
  /** Ends the wait. */
  signal?: AbortSignal | undefined
}

/** The longest body that a node reads. It closes the connection of a longer one before the end. */
const MOST_BYTES = 1024 * 1024

/** The longest time of a timer. */
const MOST_MS = 2 ** 31 - 1
const MOST_WAIT_MS = 3_600_000
const DEADLINE_OF_A_NODE_MS = 300
const MOST_DEFAULT_DEADLINE_MS = 1000
/** A record outlives the last repetition, also if clocks differ. */
const RECORD_MS = 10_000

/** Asks nodes of Tollgate. Calls reject with `Problem` or `Unavailable`. */
export class Client {
  /** @internal */
  readonly monitor: Monitor
  private readonly nodes: Nodes
  private readonly deadlineMs: number
  private readonly token: ClientOptions['token']
  private readonly retry: boolean
  private readonly denials: Denials
  private readonly coalescer: Coalescer | undefined
  private readonly purchases: Purchases | undefined
  private readonly idPrefix = randomBytes(12).toString('base64url')
  private ids = 0

  constructor(options: ClientOptions = {}) {
    checkNames(options, CLIENT_OPTIONS)
    this.monitor = new Monitor(options.onDecision)
    const urls = [options.nodes ?? 'http://127.0.0.1:7070'].flat()
    this.nodes = new Nodes(urls, options.caFile, this.monitor)
    this.deadlineMs = options.deadlineMs ?? Math.min(urls.length * DEADLINE_OF_A_NODE_MS, MOST_DEFAULT_DEADLINE_MS)
    if (!(typeof this.deadlineMs === 'number' && this.deadlineMs > 0 && this.deadlineMs <= MOST_MS)) {
      throw new RangeError(`deadlineMs must be a number above 0 and at most ${MOST_MS}`)
    }
    const { denialCacheMs = 1000 } = options
    if (!(typeof denialCacheMs === 'number' && denialCacheMs >= 0)) {
      throw new RangeError('denialCacheMs must be a number from 0 on')
    }
    this.denials = new Denials(denialCacheMs)
    this.token = options.token
    if (typeof this.token === 'string') checkToken(this.token)
    this.retry = options.retry ?? true
    if (options.lease ?? true) {
      this.purchases = new Purchases({
        buy: (order) => this.buy(order),
        settle: (body) => this.monitor.quietly(
          'the settle of leases failed', this.counted('/v1/settle', 'results', JSON.stringify(body), this.retry, {})),
        returned: (of) => this.denials.forget(of),
      })
    }
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
    const { monitor } = this
    const denial = this.denials.find(check)
    if (denial?.isFresh) return monitor.decided(denial.answerTo(check))
    const paid = this.purchases?.check(check)
    if (paid !== undefined) return monitor.decided(paid)
    const question = this.denials.ask()
    try {
      const answer = await this.ask(this.sendable(check, options), options)
      this.denials.learn(check, answer, question)
      this.purchases?.answered(check, answer)
      return check.over === 'drain' ? answer : monitor.decided(answer)
    } catch (error) {
      monitor.failed()
      if (denial?.holds && isFailure(error)) return monitor.decided(denial.answerTo(check))
      throw error
    }
  }

  /** Counts of decisions and failures, for metrics. */
  stats(): Stats {
    return this.monitor.stats()
  }

  /** Decides up to 1000 checks, each alone. */
  async checkBatch(checks: Check[], options: CallOptions = {}): Promise<BatchAnswer> {
    if (checks.some(hasBadCost)) throw badCost()
    const denials = checks.map((check) => this.denials.find(check))
    const isOpen = denials.map((denial) => !denial?.isFresh)
    const open = checks.filter((_, index) => isOpen[index])
    let answers: BatchAnswer['results'] = []
    try {
      const question = this.denials.ask()
      if (open.length > 0 || checks.length === 0) {
        answers = (await this.batch(open.map((check) => written(this.sendable(check, options))), options)).results
      }
      answers.forEach((answer, index) => {
        if (answer && 'allowed' in answer) this.denials.learn(open[index] as Check, answer, question)
      })
    } catch (error) {
      this.monitor.failed(open.length)
      if (!isFailure(error) || !denials.every((denial) => denial?.holds)) throw error
      isOpen.fill(false)
    }
    const next = answers.values()
    const results = checks.map((check, index) => {
      const result = (isOpen[index] ? next.next().value : denials[index]?.answerTo(check)) as BatchAnswer['results'][number]
      if ('error' in result) this.monitor.failed()
      else if (check.over !== 'drain') this.monitor.decided(result)
      return result
    })
    return { results }
  }

  /** Charges all of up to 16 checks, or none. This call is repeated only if each check has an id. */
  async checkAll(checks: Check[], options: CallOptions = {}): Promise<TogetherAnswer> {
    if (checks.some(hasBadCost)) throw badCost()
    const repeatable = this.retry && checks.every(({ id }) => id !== undefined)
    const answer: TogetherAnswer = await this.counted('/v1/check/all', 'allowed', JSON.stringify({ checks }), repeatable, options)
    for (const decision of answer.results) this.monitor.decided(decision)
    return answer
  }

  /**
   * Runs `work` under a hold of each check, all or none, and settles it at the end, also if `work`
   * fails. Rejects with `Denied` if the check is denied. Each id is random, unless the check has one.
   */
  async hold<T>(checks: Check | Check[], work: (hold: Hold) => T | Promise<T>, options: CallOptions = {}): Promise<T> {
    const hold = await this.openHold(checks, options)
    try {
      return await work(hold)
    } finally {
      await hold[Symbol.asyncDispose]()
    }
  }

  /** The same for `await using`, or for a caller that settles. */
  async openHold(checks: Check | Check[], options: CallOptions = {}): Promise<Hold> {
    return Hold.open(this, [checks].flat(), options)
  }

  /**
   * Waits in line for at most `waitMs`, under a token bucket, and resolves at the start of the check.
   * Rejects with `Denied` if no start lies within that time. An abort ends the wait, and gives the
   * place back. A policy with a `hold` needs an `id`, which the caller settles.
   */
  async acquire(check: Check, waitMs: number, { signal, ...options }: AcquireOptions = {}): Promise<CheckAnswer> {
    if (!(Number.isInteger(waitMs) && waitMs >= 0 && waitMs <= MOST_WAIT_MS)) {
      throw new RangeError(`waitMs must be an integer from 0 to ${MOST_WAIT_MS} (milliseconds), not ${waitMs}`)
    }
    signal?.throwIfAborted()
    // Many waits may share a signal. Node warns of more than ten listeners.
    if (signal !== undefined) setMaxListeners(0, signal)
    const waiting = { ...check, id: check.id ?? randomUUID(), once: check.id === undefined, wait_ms: waitMs }
    const { policy, key, id } = waiting
    const giveBack = () => void repeat(this, 'the refund of a place failed', () => this.refund({ policy, key, id }), 0)
    try {
      const decision = await this.check(waiting, options)
      if (!decision.allowed || hasEnded(decision)) throw new Denied(decision)
      if (waiting.once && decision.hold !== undefined) {
        giveBack()
        throw new TypeError(`the policy "${decision.policy}" has a \`hold\`, which the caller must settle: give the check an id`)
      }
      // The node counts from an earlier instant. So no start comes before its place.
      const start = performance.now() + (decision.start_in_ms ?? 0)
      for (let left; (left = start - performance.now()) > 0;) await sleep(left, undefined, { signal })
      signal?.throwIfAborted()
      return decision
    } catch (error) {
      // Without an answer, a node may have given a place.
      if (signal?.aborted || isFailure(error)) giveBack()
      signal?.throwIfAborted()
      throw error
    }
  }

  /** Ends a hold. `cost` replaces its charge. */
  async settle(settlement: Settlement, options: CallOptions = {}): Promise<SettleAnswer> {
    if (hasBadCost(settlement)) throw badCost()
    try {
      return await this.counted('/v1/settle', 'settled', JSON.stringify(settlement), this.retry, options)
    } finally {
      this.denials.forget(settlement)
    }
  }

  /** Lets a hold last for the `ttl` of its policy from now on. */
  async renew(hold: HoldName, options: CallOptions = {}): Promise<RenewAnswer> {
    return this.counted('/v1/renew', 'renewed', JSON.stringify(hold), this.retry, options)
  }

  /** Gives a charge back: exactly that of an id, or units from the oldest charge on. */
  async refund(refund: Refund, options: CallOptions = {}): Promise<RefundAnswer> {
    try {
      return await this.counted('/v1/refund', 'refunded', JSON.stringify(refund), 'id' in refund && this.retry, options)
    } finally {
      this.denials.forget(refund)
    }
  }

  /** The decision for cost 0, which charges nothing. `cost` asks for the decision of that cost. */
  async usage(of: { policy?: string | undefined; key: string; cost?: number | undefined }, options: CallOptions = {}): Promise<Usage> {
    return this.monitor.failing(this.call({ method: 'GET', path: `/v1/usage?${query(of)}`, repeatable: this.retry }, 'allowed', options))
  }

  /** Forgets the present counts of a key. It needs an admin token, if the node has one. */
  async reset(of: { policy?: string | undefined; key: string }, options: CallOptions = {}): Promise<Usage> {
    try {
      return await this.monitor.failing(this.call({ method: 'DELETE', path: `/v1/usage?${query(of)}`, repeatable: false }, 'allowed', options))
    } finally {
      this.denials.forget(of)
    }
  }

  /** Settles the units in hand, and closes all connections. */
  async close(): Promise<void> {
    await this.purchases?.close()
    this.nodes.close()
  }

  private ask(check: Check, options: CallOptions): Promise<CheckAnswer> {
    if (this.coalescer === undefined || options.deadlineMs !== undefined) {
      return this.checkAlone(written(check), options)
    }
    return this.coalescer.check(check, traceparentOf(options.traceparent))
  }

  private async checkAlone({ check, text }: Written, options: CallOptions): Promise<CheckAnswer> {
    const again = hasRecord(check) ? () => JSON.stringify(repetitionOf(check)) : undefined
    return this.post('/v1/check', 'allowed', text, this.retry, options, again)
  }

  private async batch(checks: Written[], options: CallOptions): Promise<BatchAnswer> {
    const body = bodyOf(checks.map(({ text }) => text))
    const again = checks.some(({ check }) => hasRecord(check))
      ? () => bodyOf(checks.map(({ check }) => JSON.stringify(repetitionOf(check))))
      : undefined
    const answer: BatchAnswer = await this.post('/v1/check/batch', 'results', body, this.retry, options, again)
    if (answer.results.length !== checks.length) throw new Unavailable(`${answer.results.length} results for ${checks.length} checks`)
    for (const result of answer.results) if ('error' in result) this.monitor.heed(result.error)
    return answer
  }

  /** A purchase of units. Its id makes a repetition safe. */
  private async buy(order: object): Promise<Sale> {
    return this.post('/v1/lease', 'granted', JSON.stringify(order), this.retry, {})
  }

  /** The check as a node reads it. */
  private sendable(check: Check, { deadlineMs = this.deadlineMs }: CallOptions): Check {
    if (check.once === undefined) return check
    const { once, ...sent } = check
    if (!once || sent.cost === 0 || sent.look) return sent
    sent.id ??= this.idPrefix + this.ids++
    sent.id_ttl_ms ??= Math.ceil(deadlineMs) + RECORD_MS
    return sent
  }

  private counted<T>(path: string, member: string, body: string, repeatable: boolean, options: CallOptions): Promise<T> {
    return this.monitor.failing(this.post(path, member, body, repeatable, options))
  }

  private async post<T>(path: string, member: string, body: string, repeatable: boolean, options: CallOptions, again?: () => string): Promise<T> {
    if (Buffer.byteLength(body) > MOST_BYTES) throw tooLarge()
    return this.call({ method: 'POST', path, body, again, repeatable }, member, options)
  }

  /** The answer of a node. `member` is one that each answer has. */
  private async call<T>(call: Call, member: string, options: CallOptions): Promise<T> {
    call.traceparent = traceparentOf(options.traceparent)
    const deadline = performance.now() + (options.deadlineMs ?? this.deadlineMs)
    const token = typeof this.token === 'function' ? this.token() : this.token
    try {
      return answerOf(await this.nodes.call(call, token, deadline), member) as T
    } catch (error) {
      if (error instanceof Problem) this.monitor.heed(error.document)
      throw error
    }
  }
}

/** Throws for a misspelt option, which would otherwise limit nothing, or something else. */
export function checkNames(options: object, known: readonly string[]): void {
  const unknown = Object.keys(options).find((name) => !known.includes(name))
  if (unknown !== undefined) throw new TypeError(`unknown option "${unknown}": the options are ${known.join(', ')}`)
}

/** The client to share, or one of its own. */
export function clientOf(options: ClientOptions & { client?: Client | undefined }, others: readonly string[]): Client {
  checkNames(options, ['client', ...CLIENT_OPTIONS, ...others])
  if (options.client !== undefined) return options.client
  return new Client(Object.fromEntries(CLIENT_OPTIONS.map((name) => [name, options[name]])))
}

function bodyOf(checks: string[]): string {
  return `{"checks":[${checks.join(',')}]}`
}

function hasRecord(check: Check): boolean {
  return check.id_ttl_ms !== undefined
}

/** Without `id_ttl_ms` a check with an id always asks the store. */
function repetitionOf(check: Check): Check {
  return hasRecord(check) ? { ...check, repeated: true } : check
}

/** Whether no node decided. Another node, or the same one later, may. */
export function isFailure(error: unknown): boolean {
  return error instanceof Unavailable || (error instanceof Problem && error.status >= 500)
}

function answerOf({ status, text, node }: Answer, member: string): object {
  let body: unknown
  try {
    body = JSON.parse(text)
  } catch {}
  if (typeof body === 'object' && body !== null) {
    const value = (body as Record<string, unknown>)[member]
    if (status === 200 && (member === 'allowed' ? typeof value === 'boolean' : value !== undefined)) return body
    if (status !== 200 && 'type' in body && String(body.type).startsWith('urn:tollgate:problem:')) {
      throw new Problem({ title: '', detail: '', ...body, status } as ProblemDocument)
    }
  }
  throw new Unavailable(`${node} is no node of Tollgate: it answered ${status} without a decision`)
}

function written(check: Check): Written {
  return { check, text: JSON.stringify(check) }
}

/** JSON has no NaN or Infinity: it would write null, and the node would charge 1. */
function hasBadCost({ cost }: Pick<Check, 'cost'>): boolean {
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
