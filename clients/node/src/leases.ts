// Leases of a caller: units of a key that a client has bought, and spends in its process. This file
// decides when to buy, which lease pays, and when one ends. It calls no node and reads no clock.
import { nameOf } from './denials.js'
import type { Check, CheckAnswer, Decision } from './types.js'

/** The fewest units of a purchase. */
const LEAST = 4
/** A lease ends by this part earlier, since clocks differ. */
const DRIFT = 256
/** The next lease is bought when this part of the units or of the time is left. */
const AHEAD = 8
/** After a purchase without an answer. */
const PAUSE_US = 1_000_000
/** The monotonic clock stops in suspension. A wall clock that is further ahead of it counts instead. */
const SUSPENDED_US = 1_000_000
const MOST_KEYS = 10_000

/** An instant by both clocks. */
export interface Instant {
  us: number
  wallUs: number
}

/** The answer to a purchase. Without units it has only the pause, and with units the counts. */
export interface Sale extends Pick<Decision, 'limit' | 'remaining' | 'reset_after_ms' | 'quota' | 'quotas'> {
  granted: number
  spend_within_ms: number
  retry_after_ms: number
}

export interface Settle {
  key: Key
  id: string
  /** Units that were spent. */
  cost: number
  /** Units that return. */
  rest: number
}

export interface Purchase {
  key: Key
  id: string
  want: number
  sent: Instant
}

/** How a check of a measured key is decided. */
export interface Outcome {
  /** The lease that paid. Without one a node decides. */
  paid: Lease | undefined
  /** The purchase to send. */
  buy: Purchase | undefined
}

const ASK: Outcome = { paid: undefined, buy: undefined }

export class Lease {
  left: number
  readonly lastsUs: number

  constructor(readonly id: string, readonly sale: Sale, private readonly sent: Instant) {
    this.left = sale.granted
    const within = sale.spend_within_ms * 1000
    this.lastsUs = within - Math.ceil(within / DRIFT)
  }

  /** The time since the purchase was sent. A wall clock that is set back has no effect. */
  ageUs(now: Instant): number {
    const age = now.us - this.sent.us
    const wall = now.wallUs - this.sent.wallUs
    return wall > age + SUSPENDED_US ? wall : age
  }

  answerTo({ policy = 'default', key, cost = 1 }: Check, now: Instant): CheckAnswer {
    const { limit, quota, quotas } = this.sale
    const ageMs = Math.floor(this.ageUs(now) / 1000)
    const remaining = (units: number) => units + this.left
    const reset = (ms: number) => Math.max(0, ms - ageMs)
    return {
      allowed: true,
      policy,
      key,
      cost,
      charged: cost,
      limit,
      remaining: remaining(this.sale.remaining ?? 0),
      retry_after_ms: 0,
      reset_after_ms: reset(this.sale.reset_after_ms ?? 0),
      quota,
      source: 'lease',
      reason: 'ok',
      quotas: quotas?.map((state) => ({
        ...state,
        remaining: remaining(state.remaining),
        reset_after_ms: reset(state.reset_after_ms),
      })),
    }
  }
}

/** A key whose policy sells leases to callers. */
export class Key {
  /** At most two leases, the older one first. */
  readonly hands: Lease[] = []
  buying = false
  /** Settles without an answer yet. */
  settling = 0
  /** Whether the last purchase got fewer units than it wanted. */
  wasCut = false
  pauseUntil = 0
  private spanUs = 0
  private number = 0
  private present = 0
  private previous = 0

  constructor(readonly policy: string | undefined, readonly key: string) {}

  setSpan(us: number): void {
    if (us === this.spanUs) return
    this.spanUs = us
    this.number = this.present = this.previous = 0
  }

  /** Adds units, and returns those of the last span, as a sliding counter estimates them. */
  demand(now: number, units: number): number {
    const number = Math.floor(now / this.spanUs)
    if (number !== this.number) {
      this.previous = number === this.number + 1 ? this.present : 0
      this.number = number
      this.present = 0
    }
    this.present += units
    return this.present + Math.floor((this.previous * (this.spanUs - (now % this.spanUs))) / this.spanUs)
  }

  isIdle(now: number): boolean {
    return this.hands.length === 0 && !this.buying && Math.floor(now / this.spanUs) > this.number + 1
  }

  /** Whether to buy now: without a lease, or ahead of the end of the only one. */
  mayBuy(now: Instant): boolean {
    const [lease] = this.hands
    if (lease === undefined) return this.settling === 0 || !this.wasCut
    if (this.hands.length > 1 || this.wasCut) return false
    return lease.left * AHEAD <= lease.sale.granted || lease.ageUs(now) * AHEAD >= lease.lastsUs * (AHEAD - 1)
  }
}

/** The leases of one client. */
export class Leases {
  private readonly keys = new Map<string, Key>()
  private due: Settle[] = []
  private ids = 0
  private roomAt = 0
  private isClosed = false

  /** `text` is part of each id, and no other process has it. */
  constructor(private readonly text: string) {}

  check(check: Check, now: Instant): Outcome {
    const key = this.keys.size === 0 || !mayBeLeased(check) ? undefined : this.keys.get(nameOf(check))
    if (key === undefined) return ASK
    const { cost = 1 } = check
    this.endOld(key, now)
    // A denied check raises no demand.
    const demand = key.demand(now.us, 0) + cost
    const paid = key.hands.find(({ left }) => left >= cost)
    if (paid !== undefined) {
      paid.left -= cost
      key.demand(now.us, cost)
      if (paid.left === 0) this.end(key, paid)
    }
    const want = demand - (demand % cost)
    if (key.buying || now.us < key.pauseUntil || want < LEAST || !key.mayBuy(now)) return { paid, buy: undefined }
    key.buying = true
    return { paid, buy: { key, id: `${this.text}-${++this.ids}`, want, sent: now } }
  }

  /** Learns from the answer of a node to `check`. */
  answered(check: Check, { charged, lease_span_ms }: Pick<CheckAnswer, 'charged' | 'lease_span_ms'>, now: Instant): void {
    const spanUs = (lease_span_ms ?? 0) * 1000
    if (this.isClosed || (spanUs === 0 && this.keys.size === 0) || !mayBeLeased(check)) return
    const name = nameOf(check)
    let key = this.keys.get(name)
    if (spanUs === 0) {
      if (key !== undefined) this.endAll(key)
      this.keys.delete(name)
      return
    }
    if (key === undefined) {
      if (!this.hasRoom(now.us)) return
      key = new Key(check.policy, check.key)
      this.keys.set(name, key)
    }
    key.setSpan(spanUs)
    key.demand(now.us, charged)
  }

  /** Returns the lease, unless it has ended already. */
  bought({ key, id, want, sent }: Purchase, sale: Sale, now: Instant): Lease | undefined {
    key.buying = false
    if (sale.granted === 0) {
      key.pauseUntil = now.us + sale.retry_after_ms * 1000
      return undefined
    }
    key.wasCut = sale.granted < want
    const lease = new Lease(id, sale, sent)
    key.hands.push(lease)
    const isForgotten = this.keys.get(nameOf(key)) !== key
    if (!isForgotten && lease.ageUs(now) < lease.lastsUs) return lease
    this.end(key, lease)
    return undefined
  }

  /** `mayHaveHappened`: no node has answered, and one may have sold the units. */
  failed({ key, id, want }: Purchase, mayHaveHappened: boolean, now: Instant): void {
    key.buying = false
    key.pauseUntil = now.us + PAUSE_US
    if (mayHaveHappened) this.settle({ key, id, cost: 0, rest: want })
  }

  /** After the answer to a settle, or without one. */
  settled({ key }: Settle): void {
    key.settling--
  }

  /** Ends the leases of `keys` whose time is over, or half of it and nothing is spent. */
  tick(now: Instant, keys: Iterable<Key> = this.keys.values()): void {
    for (const key of keys) this.endOld(key, now, true)
  }

  /** Ends all leases. None is bought any more. */
  close(): void {
    this.isClosed = true
    for (const key of this.keys.values()) this.endAll(key)
    this.keys.clear()
  }

  /** The settles that became due since the last call. */
  takeDue(): Settle[] {
    if (this.due.length === 0) return this.due
    const due = this.due
    this.due = []
    return due
  }

  private hasRoom(now: number): boolean {
    if (this.keys.size < MOST_KEYS) return true
    if (now < this.roomAt) return false
    this.roomAt = now + PAUSE_US
    for (const [name, key] of this.keys) if (key.isIdle(now)) this.keys.delete(name)
    return this.keys.size < MOST_KEYS
  }

  private endOld(key: Key, now: Instant, unspentToo = false): void {
    for (let index = 0; index < key.hands.length;) {
      const lease = key.hands[index] as Lease
      const age = lease.ageUs(now)
      const isOver = age >= lease.lastsUs || (unspentToo && lease.left === lease.sale.granted && age * 2 >= lease.lastsUs)
      if (isOver) this.end(key, lease)
      else index++
    }
  }

  private endAll(key: Key): void {
    for (const lease of [...key.hands]) this.end(key, lease)
  }

  private end(key: Key, lease: Lease): void {
    key.hands.splice(key.hands.indexOf(lease), 1)
    this.settle({ key, id: lease.id, cost: lease.sale.granted - lease.left, rest: lease.left })
  }

  private settle(settle: Settle): void {
    settle.key.settling++
    this.due.push(settle)
  }
}

/** Whether units may pay a check. A record of an id, a cause and other quotas need the store. */
function mayBeLeased({ cost = 1, id, meta, plan, quotas, look, over, wait_ms, repeated }: Check): boolean {
  return cost >= 1 && !look && !wait_ms && !repeated && over !== 'drain' &&
    id === undefined && meta === undefined && plan === undefined && quotas === undefined
}
