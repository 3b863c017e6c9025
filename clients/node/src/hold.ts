// Holds from their opening to their end.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'

import { type CallOptions, type Client, isFailure } from './client.js'
import { Denied, HoldEnded, withoutHold } from './errors.js'
import type { Check, CheckAnswer, HoldName, SettleAnswer } from './types.js'

/** The shortest time between two attempts to renew. */
const SHORTEST_RENEWAL_MS = 50
/** How long a call without an answer is repeated. */
const REPEAT_MS = 60_000
const FIRST_PAUSE_MS = 100
const LONGEST_PAUSE_MS = 5000
const SETTLE_FAILED = 'the settle of a hold failed'

/** Units and places that are held until `settle`. It renews them, and no other process can free them. */
export class Hold {
  /** The true cost, for `settle`. Without one the charge stays. */
  cost: number | undefined
  /** Aborts when the hold ends: work under it has to stop. Its reason is `HoldEnded`. */
  readonly signal: AbortSignal
  private readonly end = new AbortController()
  private readonly held: Held[]
  private answers: Promise<SettleAnswer[]> | undefined

  private constructor(private readonly client: Client, checks: Named[], readonly decisions: CheckAnswer[], sent: number) {
    this.signal = this.end.signal
    const lose = (reason: string) => this.end.abort(new HoldEnded(reason))
    this.held = checks.flatMap(({ policy, key, id }, index) => {
      const { hold, source, reason } = decisions[index] as CheckAnswer
      // Without a hold, the policy has none and the charge is final, or the store has not decided.
      if (hold === undefined && source === 'store' && reason === 'ok') return []
      return new Held(client, { policy, key, id }, lose, sent, hold?.expires_in_ms)
    })
  }

  /** @internal Opens a hold for each check, all or none. */
  static async open(client: Client, checks: Check[], options: CallOptions): Promise<Hold> {
    const named = checks.map((check) => ({ ...check, id: check.id ?? randomUUID() }))
    const sent = performance.now()
    try {
      const answer = await (named.length === 1 ? client.check(named[0] as Check, options) : client.checkAll(named, options))
      const decisions: CheckAnswer[] = 'results' in answer ? answer.results : [answer]
      const ended = decisions.find(hasEnded)
      if (answer.allowed && ended === undefined) {
        const hold = new Hold(client, named, decisions, sent)
        if (hold.held.length > 0) return hold
        const problem = withoutHold(hold.decision.policy)
        client.monitor.heed(problem.document)
        throw problem
      }
      if (answer.allowed) giveBack(client, named.filter((_, index) => !decisions[index]?.replayed))
      throw new Denied(ended ?? longest(decisions))
    } catch (error) {
      // A node may have opened the hold, and its answer is lost.
      if (isFailure(error)) giveBack(client, named)
      throw error
    }
  }

  /** The decision of the first check. */
  get decision(): CheckAnswer {
    return this.decisions[0] as CheckAnswer
  }

  /**
   * Ends the hold. The places are free, and `cost` replaces the charge of each check. There is an
   * answer for each check under a policy with a hold. A settle without an answer rejects, and is
   * repeated in the background for a minute.
   */
  settle(cost: number | undefined = this.cost): Promise<SettleAnswer[]> {
    this.answers ??= Promise.all(this.held.map((held) => held.settle(cost)))
    this.end.abort(new HoldEnded('settled'))
    return this.answers
  }

  /** Settles by the present `cost`. It never rejects. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.client.monitor.quietly(SETTLE_FAILED, this.settle())
  }
}

type Named = Check & HoldName

/** One id that is open at the nodes. */
class Held {
  private renewal: NodeJS.Timeout | undefined
  private expiry: NodeJS.Timeout | undefined
  private endsAt = 0
  private isOver = false

  constructor(
    private readonly client: Client,
    private readonly name: HoldName,
    private readonly lose: (reason: string) => void,
    sent: number,
    expiresInMs: number | undefined,
  ) {
    if (expiresInMs !== undefined) this.extend(sent, expiresInMs)
  }

  async settle(cost: number | undefined): Promise<SettleAnswer> {
    this.stop()
    const settlement = { ...this.name, cost }
    try {
      return await this.client.settle(settlement)
    } catch (error) {
      if (isFailure(error)) void repeat(this.client, SETTLE_FAILED, () => this.client.settle(settlement))
      throw error
    }
  }

  /** The node counts from a later instant than `sent`, so the hold is open until the expiry. */
  private extend(sent: number, expiresInMs: number): void {
    this.endsAt = sent + expiresInMs
    clearTimeout(this.expiry)
    this.expiry = setTimeout(() => this.stop('expired'), this.endsAt - performance.now()).unref()
    this.renewLater()
  }

  /** After a third of the time that is left. So a failure is followed by further attempts. */
  private renewLater(): void {
    const pause = Math.max((this.endsAt - performance.now()) / 3, SHORTEST_RENEWAL_MS)
    this.renewal = setTimeout(() => void this.renew(), pause).unref()
  }

  private async renew(): Promise<void> {
    const sent = performance.now()
    try {
      const { renewed, expires_in_ms, reason = 'expired' } = await this.client.renew(this.name)
      if (this.isOver) return
      if (renewed) this.extend(sent, expires_in_ms)
      else this.stop(reason)
    } catch {
      if (!this.isOver) this.renewLater()
    }
  }

  private stop(lost?: string): void {
    this.isOver = true
    clearTimeout(this.renewal)
    clearTimeout(this.expiry)
    if (lost !== undefined) this.lose(lost)
  }
}

/** Whether the hold of a repeated id has ended, so that no work may begin. */
export function hasEnded({ hold }: CheckAnswer): boolean {
  return hold?.ended !== undefined
}

/** Settles holds that no work began under. */
function giveBack(client: Client, names: HoldName[]): void {
  for (const { policy, key, id } of names) void repeat(client, SETTLE_FAILED, () => client.settle({ policy, key, id, cost: 0 }), 0)
}

/** Makes a call until a node answers it, for a minute. */
export async function repeat(client: Client, failed: string, call: () => Promise<unknown>, pause = FIRST_PAUSE_MS): Promise<void> {
  const end = performance.now() + REPEAT_MS
  while (performance.now() < end) {
    await sleep(pause, undefined, { ref: false })
    try {
      await call()
      return
    } catch (error) {
      client.monitor.log(failed, error)
      if (!isFailure(error)) return
    }
    pause = Math.min(2 * pause || FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
  }
}

/** The denied decision with the longest wait. */
function longest(decisions: CheckAnswer[]): CheckAnswer {
  const waitOf = ({ allowed, retry_after_ms }: CheckAnswer) => (allowed ? -1 : (retry_after_ms ?? Number.POSITIVE_INFINITY))
  return decisions.reduce((one, other) => (waitOf(other) > waitOf(one) ? other : one))
}
