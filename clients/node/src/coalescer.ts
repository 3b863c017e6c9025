import { Problem, Unavailable } from './errors.js'
import type { BatchAnswer, Check, CheckAnswer, ProblemDocument } from './types.js'

/** The largest batch: 100 of the longest checks stay below the 1 MiB that a node reads. */
const MOST_CHECKS = 100

interface Calls {
  one(check: Check, traceparent: string | undefined): Promise<CheckAnswer>
  many(checks: Check[], traceparent: string | undefined): Promise<BatchAnswer>
}

interface Waiting {
  check: Check
  traceparent: string | undefined
  resolve(answer: CheckAnswer | Promise<CheckAnswer>): void
  reject(error: unknown): void
}

/** Sends the checks of one turn of the event loop as one batch. */
export class Coalescer {
  private queue: Waiting[] = []

  constructor(private readonly calls: Calls) {}

  check(check: Check, traceparent: string | undefined): Promise<CheckAnswer> {
    return new Promise((resolve, reject) => {
      if (this.queue.push({ check, traceparent, resolve, reject }) === 1) setImmediate(() => this.flush())
    })
  }

  private flush(): void {
    const queue = this.queue
    this.queue = []
    for (let start = 0; start < queue.length; start += MOST_CHECKS) {
      void this.send(queue.slice(start, start + MOST_CHECKS))
    }
  }

  private async send(batch: Waiting[]): Promise<void> {
    const [first] = batch
    if (first === undefined) return
    if (batch.length === 1) return this.sendAlone(first)
    const traceparent = batch.find((waiting) => waiting.traceparent !== undefined)?.traceparent
    try {
      const { results } = await this.calls.many(batch.map((waiting) => waiting.check), traceparent)
      batch.forEach((waiting, index) => settle(waiting, results[index]))
    } catch (error) {
      // The node could not read the batch and charged nothing. One check is at fault, but not which.
      if (error instanceof Problem && error.isBadCheck) batch.forEach((waiting) => this.sendAlone(waiting))
      else batch.forEach((waiting) => waiting.reject(error))
    }
  }

  private sendAlone({ check, traceparent, resolve }: Waiting): void {
    resolve(this.calls.one(check, traceparent))
  }
}

function settle(waiting: Waiting, result: BatchAnswer['results'][number] | undefined): void {
  if (result && 'error' in result) waiting.reject(new Problem(ofOneCheck(result.error)))
  else if (typeof result?.allowed === 'boolean') waiting.resolve(result)
  else waiting.reject(new Unavailable('the answer is no decision'))
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
