import type { ProblemDocument } from './types.js'

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
    return [400, 409, 413, 422].includes(this.status)
  }
}

/** No node answered within the deadline. */
export class Unavailable extends Error {
  override readonly name = 'Unavailable'

  constructor(reason: string, cause?: unknown) {
    super(`Tollgate is unavailable: ${reason}`, { cause })
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
