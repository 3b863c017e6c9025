import { Unavailable } from './errors.js'
import { type Answer, type Call, Link, NoAnswer } from './exchange.js'

/** The time for which the client avoids a node that does not answer. */
export const AVOID_MS = 500

/** The nodes of a client, in the order of preference. */
export class Nodes {
  private readonly nodes: Node[]

  constructor(urls: string[], caFile: string | undefined) {
    if (urls.length === 0) throw new TypeError('nodes must name at least one URL')
    this.nodes = urls.map((url) => new Node(new Link(url, caFile)))
  }

  /** The answer of the first node that answers until `deadline`. */
  async call(call: Call, token: string | undefined, deadline: number): Promise<Answer> {
    let failure: unknown
    const candidates = this.nodes.filter((node) => node.mayBeAsked())
    for (const [index, node] of candidates.entries()) {
      // A trial that began meanwhile occupies the node.
      if (!node.mayBeAsked()) continue
      const nodesLeft = candidates.length - index
      const share = (deadline - performance.now()) / nodesLeft
      if (share <= 0) break
      try {
        return await node.call(call, token, performance.now() + share)
      } catch (error) {
        failure = error
        if (!call.repeatable && (error as NoAnswer).fate !== 'refused') break
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

  constructor(readonly link: Link) {}

  mayBeAsked(): boolean {
    return this.avoidUntil === 0 || (!this.onTrial && performance.now() >= this.avoidUntil)
  }

  async call(call: Call, token: string | undefined, deadline: number): Promise<Answer> {
    const trial = this.avoidUntil !== 0
    const start = performance.now()
    this.onTrial ||= trial
    try {
      const answer = await this.callTwice(call, token, deadline)
      this.lastAnswer = performance.now()
      this.avoidUntil = 0
      return answer
    } catch (error) {
      // A node that answers other calls is alive, and only slow for this one.
      const alive = (error as NoAnswer).fate === 'silent' && this.lastAnswer >= start
      if (!alive) this.avoidUntil = performance.now() + AVOID_MS
      throw error
    } finally {
      if (trial) this.onTrial = false
    }
  }

  private async callTwice(call: Call, token: string | undefined, deadline: number): Promise<Answer> {
    const start = performance.now()
    try {
      return await this.link.exchange(call, token, deadline - start)
    } catch (error) {
      const left = deadline - performance.now()
      if ((error as NoAnswer).fate !== 'broken' || !call.repeatable || left <= 0) throw error
      return this.link.exchange(call, token, left)
    }
  }
}
