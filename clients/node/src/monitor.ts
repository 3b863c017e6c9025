// What a client counts and logs. A limiter that fails open would otherwise pass requests in silence.
import { Problem } from './errors.js'
import type { Decision, ProblemDocument } from './types.js'

/** The counts of a client since it was made. */
export interface Stats {
  /** Allowed decisions. Drains, settles and refunds are no decisions. */
  allowed: number
  /** Denied decisions. */
  denied: number
  /** All decisions by their `source`, such as `store`, `prefilter`, `fallback`, `lease`, `client`. */
  sources: Record<string, number>
  /** Requests that a middleware passed without a decision. */
  passed: number
  /** Checks and calls that no node answered, or that one rejected. */
  failures: number
}

/** The shortest time between two lines about failures. */
const LINE_MS = 1000

export class Monitor {
  private readonly counts: Stats = { allowed: 0, denied: 0, sources: {}, passed: 0, failures: 0 }
  private readonly given = new Set<string>()
  /** Failures since the last return of decisions. */
  private outage = 0
  private began = 0
  private newest = 0
  private logged = Number.NEGATIVE_INFINITY

  constructor(private readonly onDecision: ((decision: Decision) => void) | undefined) {}

  stats(): Stats {
    return { ...this.counts, sources: { ...this.counts.sources } }
  }

  decided<D extends Decision>(decision: D): D {
    const { counts } = this
    if (decision.allowed) counts.allowed++
    else counts.denied++
    counts.sources[decision.source] = (counts.sources[decision.source] ?? 0) + 1
    if (this.outage > 0) this.returned(decision)
    try {
      this.onDecision?.(decision)
    } catch (error) {
      this.log('onDecision failed', error)
    }
    return decision
  }

  /** A request passes without a decision. */
  passed(): void {
    this.counts.passed++
  }

  /** Counts the failure of a call. */
  async failing<T>(call: Promise<T>): Promise<T> {
    try {
      return await call
    } catch (error) {
      this.failed()
      throw error
    }
  }

  failed(count = 1): void {
    this.counts.failures += count
  }

  /** Logs a failure that no caller sees: the first one, and then at most one a second. */
  log(what: string, error: unknown): void {
    const now = performance.now()
    if (this.outage++ === 0) this.began = now
    this.newest = now
    if (now - this.logged < LINE_MS) return
    this.logged = now
    const cause = error instanceof Error ? error.message : String(error)
    console.warn(`Tollgate: ${what}: ${cause}${this.outage > 1 ? ` (${this.summary(now)})` : ''}`)
  }

  /** Waits for a call whose failure no caller sees. */
  async quietly(what: string, call: Promise<unknown>): Promise<void> {
    await call.catch((error) => this.log(what, error))
  }

  /** Whether a warning of this kind is still due. */
  lacks(kind: string): boolean {
    return !this.given.has(kind)
  }

  /** Warns of a mistake once. */
  warn(kind: string, text: string): void {
    if (!this.lacks(kind)) return
    this.given.add(kind)
    console.warn(`Tollgate: ${text}`)
  }

  /** Warns of a problem that each further check would have, too. */
  heed(document: ProblemDocument): void {
    const { status, type, detail, known } = document
    if (String(type).endsWith(':unknown-policy')) {
      const names = Array.isArray(known) ? ` (the node has ${known.slice(0, 20).join(', ')})` : ''
      this.warn('policy', `${detail}${names}: set \`policy\` to one of the node's. Until then its checks get no decision`)
    } else if (new Problem(document).isUnknownPlan) {
      this.warn('plan', `${detail}: set \`plan\` to one of them. Until then its checks get no decision`)
    } else if (String(type).endsWith(':no-hold')) {
      this.warn('hold', detail)
    } else if (status === 401 || status === 403) {
      this.warn('token', `the node refused the token (${status} ${detail}): set \`token\` to one that may make this call`)
    }
  }

  /** Failures go on for a while beside decisions, so that decisions return only after a quiet second. */
  private returned({ source }: Decision): void {
    const now = performance.now()
    if (now - this.newest < LINE_MS || source === 'client' || source === 'lease') return
    console.warn(`Tollgate: decisions are back after ${this.summary(this.newest)}`)
    this.outage = 0
    this.logged = now
  }

  private summary(now: number): string {
    const failures = this.outage === 1 ? '1 failure' : `${this.outage} failures`
    return `${failures} in ${((now - this.began) / 1000).toFixed(1)} s`
  }
}
