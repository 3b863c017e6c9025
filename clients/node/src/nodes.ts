import { Unavailable } from './errors.js'
import { type Answer, type Call, Link, type NoAnswer } from './exchange.js'
import type { Monitor } from './monitor.js'

/** The time for which the client avoids a node that does not answer. */
export const AVOID_MS = 500

/** How long a question for the timeout may last. No caller waits for it. */
const HEALTH_MS = 1000

/** The nodes of a client, in the order of preference. */
export class Nodes {
  private readonly nodes: Node[]

  constructor(urls: string[], caFile: string | undefined, monitor: Monitor) {
    if (urls.length === 0) throw new TypeError('nodes must name at least one URL')
    this.nodes = urls.map((url) => new Node(new Link(url, caFile), monitor))
  }

  /** The answer of the first node that answers until `deadline`. */
  async call(call: Call, token: string | undefined, deadline: number): Promise<Answer> {
    let failure: unknown
    const candidates = this.nodes.filter((node) => node.mayBeAsked())
    for (const [index, node] of candidates.entries()) {
      // A trial that began meanwhile occupies the node.
      if (!node.mayBeAsked()) continue
      // No other node may get a call that must not be repeated.
      const nodesLeft = call.repeatable ? candidates.length - index : 1
      const now = performance.now()
      const share = (deadline - now) / nodesLeft
      if (share <= 0) break
      try {
        return await node.call(call, token, now + share)
      } catch (error) {
        failure = error
        const { fate } = error as NoAnswer
        if (fate === 'silent') void node.compareTimeout(token, share, nodesLeft)
        if (!call.repeatable && fate !== 'refused') break
        if (fate !== 'refused') call = repetitionOf(call)
        // The time for which this process was late is not that of the next node.
        deadline += Math.max(0, performance.now() - now - share)
      }
    }
    if (candidates.length === 0) throw new Unavailable('all nodes failed less than 500 ms ago')
    throw new Unavailable((failure as Error | undefined)?.message ?? 'the deadline passed', failure)
  }

  close(): void {
    for (const node of this.nodes) node.link.close()
  }
}

class Node {
  private avoidUntil = 0
  private onTrial = false
  private lastAnswer = 0
  private compared = false

  constructor(readonly link: Link, private readonly monitor: Monitor) {}

  mayBeAsked(): boolean {
    return this.avoidUntil === 0 || (!this.onTrial && performance.now() >= this.avoidUntil)
  }

  async call(call: Call, token: string | undefined, deadline: number): Promise<Answer> {
    const trial = this.avoidUntil !== 0
    this.onTrial ||= trial
    try {
      return await this.callAgain(call, token, deadline, call.repeatable)
    } finally {
      if (trial) this.onTrial = false
    }
  }

  private async callAgain(call: Call, token: string | undefined, deadline: number, again: boolean): Promise<Answer> {
    const start = performance.now()
    try {
      const answer = await this.link.exchange(call, token, deadline - start)
      this.lastAnswer = performance.now()
      this.avoidUntil = 0
      return answer
    } catch (error) {
      const { fate } = error as NoAnswer
      const now = performance.now()
      if (fate === 'broken' && again && now < deadline) return this.callAgain(repetitionOf(call), token, deadline, false)
      // One broken connection is no sign of a dead node. Another answer since the start is one of life.
      const dead = fate === 'broken' ? call.repeatable : fate === 'refused' || this.lastAnswer < start
      if (dead) this.avoidUntil = now + AVOID_MS
      throw error
    }
  }

  /** Warns if a silent node had less time than it takes while its store is away. It answers this once. */
  async compareTimeout(token: string | undefined, shareMs: number, nodes: number): Promise<void> {
    if (this.compared) return
    this.compared = true
    try {
      const { text } = await this.link.exchange({ method: 'GET', path: '/health/ready', repeatable: true }, token, HEALTH_MS)
      const { timeout_ms } = JSON.parse(text)
      if (!(timeout_ms >= shareMs)) return
      const each = nodes > 1 ? ` for each of ${nodes} nodes` : ''
      this.monitor.warn(
        'deadline',
        `the deadline of ${Math.round(shareMs)} ms${each} is not above the node's timeout of ${timeout_ms} ms: ` +
          `set the deadline to at least ${2 * timeout_ms * nodes} ms`,
      )
    } catch {
      this.compared = false
    }
  }
}

function repetitionOf(call: Call): Call {
  return call.again === undefined ? call : { ...call, body: call.again(), again: undefined }
}
