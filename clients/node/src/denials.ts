// The denials that this process knows. Only the pre-filter's are learned: they are final until
// their `retry_after_ms`, whatever other callers do.
import type { Check, CheckAnswer } from './types.js'

const MOST_DENIALS = 10_000

/** When a check was sent, and how many refunds and resets had ended then. */
export interface Question {
  sent: number
  generation: number
}

export class Denials {
  private readonly known = new Map<string, Denial>()
  private generation = 0

  constructor(private readonly freshMs: number) {}

  /** What the process knows of a check until its `retry_after_ms`. */
  find(check: Check): Denial | undefined {
    if (this.known.size === 0 || !mayBeDenied(check)) return undefined
    const name = nameOf(check)
    const denial = this.known.get(name)
    if (denial === undefined) return undefined
    if (denial.holds) return denial.answers(check) ? denial : undefined
    this.known.delete(name)
    return undefined
  }

  ask(): Question {
    return { sent: performance.now(), generation: this.generation }
  }

  learn(check: Check, answer: CheckAnswer, question: Question): void {
    if (answer.allowed || answer.source !== 'prefilter' || !(Number(answer.retry_after_ms) > 0)) return
    // A refund may have ended meanwhile what this answer says.
    if (this.freshMs === 0 || question.generation !== this.generation || !mayBeDenied(check)) return
    const name = nameOf(check)
    this.known.delete(name)
    this.known.set(name, new Denial(answer, check, question.sent, this.freshMs))
    if (this.known.size > MOST_DENIALS) this.known.delete(this.known.keys().next().value as string)
  }

  /** After a refund or a reset. Quotas of a check have neither. */
  forget(of: { policy?: string | undefined; key: string }): void {
    this.generation++
    this.known.delete(nameOf(of))
  }
}

export class Denial {
  private readonly until: number
  private readonly freshUntil: number

  constructor(private readonly answer: CheckAnswer, private readonly check: Check, private readonly sent: number, freshMs: number) {
    // The node counts from a later instant, so this one is never too late.
    this.until = sent + (answer.retry_after_ms as number)
    this.freshUntil = Math.min(this.until, sent + freshMs)
  }

  /** Whether it may answer without a question to a node. */
  get isFresh(): boolean {
    return performance.now() < this.freshUntil
  }

  /** Whether it is still true, unless someone gave units back. */
  get holds(): boolean {
    return performance.now() < this.until
  }

  /** Whether it denies a check of the same name. A plan has quotas of its own. */
  answers({ cost = 1, plan }: Check): boolean {
    return plan === this.check.plan && cost >= (this.check.cost ?? 1)
  }

  answerTo({ policy = 'default', key, cost = 1 }: Check): CheckAnswer {
    const { limit, remaining, quota, reset_after_ms } = this.answer
    const now = performance.now()
    return {
      allowed: false,
      policy,
      key,
      cost,
      charged: 0,
      limit,
      remaining,
      retry_after_ms: Math.max(1, Math.ceil(this.until - now)),
      reset_after_ms: reset_after_ms === null ? null : Math.max(0, Math.ceil(this.sent + reset_after_ms - now)),
      quota,
      source: 'client',
      reason: 'over_limit',
    }
  }
}

/**
 * A drain always charges, a cost of 0 always passes, an id of the caller may have a record, and a
 * wait may outlast a denial.
 */
function mayBeDenied({ cost, over, id, once, repeated, wait_ms }: Check): boolean {
  return cost !== 0 && over !== 'drain' && (id === undefined || once === true) && repeated !== true && !wait_ms
}

/** Lengths in front keep the parts apart. */
export function nameOf({ policy = 'default', key, quotas }: Pick<Check, 'policy' | 'key' | 'quotas'>): string {
  const inline = quotas === undefined ? '' : JSON.stringify(quotas)
  return `${policy.length} ${inline.length} ${policy}${inline}${key}`
}
