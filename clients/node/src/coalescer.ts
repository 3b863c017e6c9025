import { Problem } from './errors.js'
import type { BatchAnswer, Check, CheckAnswer, ProblemDocument } from './types.js'

/** The largest batch. A node reads 1000 checks and 1 MiB. */
const MOST_CHECKS = 100
const MOST_BYTES = 512 * 1024
/** The longest wait for the end of a call, since a node may be silent. */
const LONGEST_WAIT_MS = 5

/** A check, and its JSON. */
export interface Written {
  check: Check
  text: string
}

interface Calls {
  one(check: Written, traceparent: string | undefined): Promise<CheckAnswer>
  many(checks: Written[], traceparent: string | undefined): Promise<BatchAnswer>
}

interface Waiting extends Written {
  traceparent: string | undefined
  resolve(answer: CheckAnswer | Promise<CheckAnswer>): void
  reject(error: unknown): void
}

/**
 * Sends the checks of one turn of the event loop as one batch. While a call is under way, checks wait
 * for its end: more small calls would only cost more.
 */
export class Coalescer {
  private queue: Waiting[] = []
  private underWay = 0

  constructor(private readonly calls: Calls) {}

  check(check: Check, traceparent: string | undefined): Promise<CheckAnswer> {
    return new Promise((resolve, reject) => {
      // A check that has no JSON throws here, and so rejects alone.
      const waiting = { check, text: JSON.stringify(check), traceparent, resolve, reject }
      if (this.queue.push(waiting) > 1) return
      if (this.underWay === 0) setImmediate(() => this.flush())
      else setTimeout(() => this.flush(), LONGEST_WAIT_MS)
    })
  }

  private flush(): void {
    const queue = this.queue
    this.queue = []
    let batch: Waiting[] = []
    let bytes = 0
    for (const waiting of queue) {
      const length = Buffer.byteLength(waiting.text)
      if (batch.length === MOST_CHECKS || bytes + length > MOST_BYTES) {
        void this.send(batch)
        batch = []
        bytes = 0
      }
      batch.push(waiting)
      bytes += length
    }
    void this.send(batch)
  }

  private async send(batch: Waiting[]): Promise<void> {
    const [first] = batch
    if (first === undefined) return
    this.underWay++
    try {
      if (batch.length === 1) first.resolve(await this.calls.one(first, first.traceparent))
      else await this.sendTogether(batch)
    } catch (error) {
      first.reject(error)
    } finally {
      this.underWay--
      this.flush()
    }
  }

  private async sendTogether(batch: Waiting[]): Promise<void> {
    const traceparent = batch.find((waiting) => waiting.traceparent !== undefined)?.traceparent
    try {
      const { results } = await this.calls.many(batch, traceparent)
      batch.forEach((waiting, index) => settle(waiting, results[index]))
    } catch (error) {
      // The node could not read the batch and charged nothing. One check is at fault, but not which.
      if (error instanceof Problem && error.isBadCheck) batch.forEach((waiting) => this.sendAlone(waiting))
      else batch.forEach((waiting) => waiting.reject(error))
    }
  }

  private sendAlone(waiting: Waiting): void {
    waiting.resolve(this.calls.one(waiting, waiting.traceparent))
  }
}

function settle(waiting: Waiting, result: BatchAnswer['results'][number] | undefined): void {
  if (result && 'error' in result) waiting.reject(new Problem(ofOneCheck(result.error)))
  else waiting.resolve(result as CheckAnswer)
}

/** The problem as a call with this check alone has it: `/key`, not `/checks/3/key`. */
function ofOneCheck(problem: ProblemDocument): ProblemDocument {
  const detail = problem.detail.replace(/^\/checks\/\d+/, '')
  const violations = problem.violations?.map((violation) => ({
    ...violation,
    pointer: violation.pointer.replace(/^\/checks\/\d+/, ''),
  }))
  return { ...problem, detail, violations }
}
