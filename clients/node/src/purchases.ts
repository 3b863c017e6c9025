// The calls and the timers of leases: purchases, settles, and the instants at which leases end.
import { randomBytes } from 'node:crypto'

import { isFailure } from './client.js'
import { type Instant, type Key, type Lease, Leases, type Purchase, type Sale, type Settle } from './leases.js'
import type { Check, CheckAnswer } from './types.js'

/** So many settles of the longest keys have less than 1 MiB. */
const MOST_SETTLES = 100
/** The longest time of a timer. */
const MOST_MS = 2 ** 31 - 1

interface Calls {
  buy(body: object): Promise<Sale>
  /** Never rejects. */
  settle(body: { settlements: object[] }): Promise<void>
  /** Units of a key have come back. */
  returned(of: Key): void
}

export class Purchases {
  private readonly leases = new Leases(randomBytes(16).toString('hex'))
  private readonly underWay = new Set<Promise<void>>()

  constructor(private readonly calls: Calls) {}

  /** The decision of a check that units in hand pay. */
  check(check: Check): CheckAnswer | undefined {
    const now = present()
    const { paid, buy } = this.leases.check(check, now)
    const answer = paid?.answerTo(check, now)
    if (buy !== undefined) this.track(this.buy(buy))
    this.settleDue()
    return answer
  }

  answered(check: Check, answer: CheckAnswer): void {
    this.leases.answered(check, answer, present())
    this.settleDue()
  }

  /** Settles all leases, and waits for the answers. */
  async close(): Promise<void> {
    this.leases.close()
    this.settleDue()
    while (this.underWay.size > 0) await Promise.all(this.underWay)
  }

  private async buy(purchase: Purchase): Promise<void> {
    const { key: { policy, key }, id, want } = purchase
    try {
      const sale = await this.calls.buy({ policy, key, id, want })
      const lease = this.leases.bought(purchase, sale, present())
      if (lease !== undefined) this.watch(purchase.key, lease, 2)
    } catch (error) {
      this.leases.failed(purchase, isFailure(error), present())
    }
    this.settleDue()
  }

  /** Ends the lease at half of its time, if nothing is spent, and else at its end. */
  private watch(key: Key, lease: Lease, part: 1 | 2): void {
    const left = Math.ceil((lease.lastsUs / part - lease.ageUs(present())) / 1000)
    setTimeout(() => {
      this.leases.tick(present(), [key])
      this.settleDue()
      if (key.hands.includes(lease)) this.watch(key, lease, 1)
    }, Math.min(Math.max(0, left) + 1, MOST_MS)).unref()
  }

  private settleDue(): void {
    const due = this.leases.takeDue()
    for (let from = 0; from < due.length; from += MOST_SETTLES) this.track(this.settle(due.slice(from, from + MOST_SETTLES)))
  }

  /** Without an answer the rest is lost, until it leaves the window. */
  private async settle(settles: Settle[]): Promise<void> {
    const settlements = settles.map(({ key: { policy, key }, id, cost }) => ({ policy, key, id, cost }))
    await this.calls.settle({ settlements })
    for (const settle of settles) {
      this.leases.settled(settle)
      if (settle.rest > 0) this.calls.returned(settle.key)
    }
  }

  private track(call: Promise<void>): void {
    this.underWay.add(call)
    void call.finally(() => this.underWay.delete(call))
  }
}

function present(): Instant {
  return { us: Math.floor(performance.now() * 1000), wallUs: Date.now() * 1000 }
}
