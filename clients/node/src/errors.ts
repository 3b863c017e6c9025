import type { CheckAnswer, ProblemDocument } from './types.js'

/** The node rejected the call. */
export class Problem extends Error {
  override readonly name = 'Problem'
  readonly status: number
  /** Such as `urn:tollgate:problem:unknown-policy`. */
  readonly type: string
  readonly document: ProblemDocument

  constructor(document: ProblemDocument) {
    super(`Tollgate: ${document.status} ${document.detail}`)
    this.status = document.status
    this.type = document.type
    this.document = document
  }

  /** Whether the check itself is at fault, and every node would reject it. */
  get isBadCheck(): boolean {
    return [400, 409, 413, 422].includes(this.status) && !this.isUnknownPlan
  }

  /** As an unknown policy, a mistake of the program and not of the check. */
  get isUnknownPlan(): boolean {
    const { violations } = this.document
    return violations?.length === 1 && violations[0]?.pointer.endsWith('/plan') === true
  }
}

/** No node answered within the deadline. */
export class Unavailable extends Error {
  override readonly name = 'Unavailable'

  constructor(reason: string, cause?: unknown) {
    super(`no node answered: ${reason}`, { cause })
  }
}

/** `hold` or `acquire` begins no work: the check is denied, or the hold of its id has ended before. */
export class Denied extends Error {
  override readonly name = 'Denied'

  constructor(readonly decision: CheckAnswer) {
    const { policy, hold, reason } = decision
    super(`Tollgate: ${policy} denies the check: ${hold?.ended ?? reason}`)
  }
}

/** The reason of the signal of a hold: its work no longer has its place. */
export class HoldEnded extends Error {
  override readonly name = 'HoldEnded'

  /** `reason` is `settled`, `expired`, `unknown_id` or another one of a node. */
  constructor(readonly reason: string) {
    super(`Tollgate: the hold has ended: ${reason}`)
  }
}

/** A problem as a node reports it, for a check that is not sent. */
export function invalid(pointer: string, detail: string): Problem {
  return new Problem({
    type: 'urn:tollgate:problem:invalid-request',
    title: 'Invalid request',
    status: 422,
    detail: `${pointer} ${detail}`,
    violations: [{ pointer, detail }],
  })
}

/** Every hold of this policy would fail alike. */
export function withoutHold(policy: string): Problem {
  return new Problem({
    type: 'urn:tollgate:problem:no-hold',
    title: 'The policy has no hold',
    status: 404,
    detail: `the policy "${policy}" opened no hold: add \`hold: {ttl: 60s}\` to it, and give the check a cost above 0`,
  })
}
