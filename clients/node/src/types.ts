// The members of the HTTP API. A test compares them with /openapi.json of a node.

/** One check. `once` is of this client, and no node sees it. */
export interface Check {
  /** A configured policy; by default `default`. */
  policy?: string | undefined
  /** The partition key, 1 to 1024 bytes. */
  key: string
  /** A plan of the configuration, whose quotas replace those of the policy. */
  plan?: string | undefined
  /** Units to charge, by default 1; 0 only looks. */
  cost?: number | undefined
  /** The cause of the charge, kept by sliding logs. */
  meta?: string | undefined
  /** Makes a retry of the caller safe: one id is charged once. By default there is none. */
  id?: string | undefined
  /** How long the record of the id lives, ms, 1000 to 86,400,000. The id then serves retries only. */
  id_ttl_ms?: number | undefined
  /** The id was sent before, and its answer was lost. */
  repeated?: boolean | undefined
  /** The decision for the cost, without a charge. */
  look?: boolean | undefined
  /** Wait in line for a start within this time, ms. `acquire` sets it, and sleeps until the start. */
  wait_ms?: number | undefined
  /** Charge once, also if this client repeats the check: a random id that lives as long as its retries. */
  once?: boolean | undefined
  /** Quotas in place of the policy's own, if it has `inline: true`: `"500 per 1m"`. */
  quotas?: Array<string | Record<string, unknown>> | undefined
  /** `drain` charges as much as fits, for units that are known afterwards. */
  over?: 'deny' | 'drain' | undefined
}

/** The answer to a check. New members, sources and reasons may follow. */
export interface Decision {
  /** Whether the caller may proceed. */
  allowed: boolean
  policy: string
  key: string
  cost: number
  /** Units that the store has certainly charged. */
  charged: number
  /** The limit of the binding quota; null if no counter was read. */
  limit: number | null
  /** The remaining units of the binding quota. */
  remaining: number | null
  /** Time until this cost fits, ms: 0 if allowed, null if it never fits. */
  retry_after_ms: number | null
  /** Time until the binding quota is whole again, ms. */
  reset_after_ms: number | null
  /** The name of the binding quota. */
  quota: string | null
  /** `client` is this process, which remembers a denial of the pre-filter. */
  source: 'store' | 'prefilter' | 'fallback' | 'list' | 'lease' | 'client' | (string & {})
  reason:
    | 'ok'
    | 'over_limit'
    | 'cost_exceeds_limit'
    | 'store_unavailable'
    | 'shadow'
    | 'allow_listed'
    | 'deny_listed'
    | 'in_flight'
    | (string & {})
  /** Each quota of the policy; a denial of the pre-filter may omit it. */
  quotas?: QuotaState[]
  /** How the node decided without the store. */
  fallback?: Fallback
  /** True if an earlier check with this id made the decision. */
  replayed?: boolean
  /** Units of a drain that did not fit. */
  owed?: number
  /** Time until a check with `wait_ms` may start, ms. */
  start_in_ms?: number
  /** The longest time for which this client may spend units that it buys, ms; absent if the key sells none. */
  lease_span_ms?: number
  /** The hold that the check opened, or that its id opened before. */
  hold?: HoldState
}

/** The decision of a check. */
export interface CheckAnswer extends Decision {
  /** True if the charge of this id was refunded. */
  refunded?: boolean
}

export interface QuotaState {
  name: string
  limit: number
  window_ms: number
  remaining: number
  reset_after_ms: number
  /** Units of a drain that this quota charged. */
  charged?: number
}

/** The hold of an id. */
export interface HoldState {
  /** Time until the hold expires unless it is renewed, ms; 0 after its end. */
  expires_in_ms: number
  /** Open holds of the key, this one included. */
  in_flight?: number
  /** The most open holds of the key, if the policy bounds them. */
  in_flight_limit?: number
  /** How the hold of a repeated id ended. */
  ended?: 'settled' | 'expired' | 'reset' | (string & {})
}

export interface Fallback {
  mode: string
  cause: string
}

/** The answer to `checkBatch`: a decision or a problem for each check, in their order. */
export interface BatchAnswer {
  results: Array<CheckAnswer | { error: ProblemDocument }>
}

/** The answer to `checkAll`. */
export interface TogetherAnswer {
  /** Whether all checks are allowed. Only then they are charged. */
  allowed: boolean
  /** Positions of the denied checks, from 0. */
  denied_by: number[]
  /** The longest wait of the denied checks, ms; null if one can never fit. */
  retry_after_ms: number | null
  results: Decision[]
}

/** The decision for cost 0, and what the algorithm of the policy adds. */
export interface Usage extends Decision {
  /** The newest charges of a sliding log. */
  entries?: Array<{ age_ms: number; cost: number; meta: string | null }>
  /** The largest causes of a sliding log. */
  top_metas?: Array<{ meta: string; cost: number; count: number }>
  /** The ticks of a sliding counter that are not 0. */
  ticks?: Array<{ at: number; count: number }>
  /** The newest open holds, at most 100. */
  holds?: Array<{ id: string; age_ms: number; cost: number; expires_in_ms: number; meta: string | null }>
  /** Open holds. */
  in_flight?: number
  /** The most open holds. */
  in_flight_limit?: number
}

/** A refund of one charge by its id, or of units by cost. */
export type Refund = { policy?: string | undefined; key: string } & ({ id: string } | { cost: number })

export interface RefundAnswer extends Decision {
  /** The most units that any quota got back. */
  refunded: number
}

/** The name of a hold: the id of the check that opened it. */
export interface HoldName {
  policy?: string | undefined
  key: string
  id: string
}

export interface Settlement extends HoldName {
  /** The true cost. By default the charge stays. */
  cost?: number | undefined
}

/** The answer to `settle`, with the counts after it. */
export interface SettleAnswer {
  /** False if the id has no hold. */
  settled: boolean
  /** Why it is not settled, such as `unknown_id`. */
  reason?: string
  /** Units that the hold has charged. */
  charged?: number
  /** Units that count again. */
  refunded?: number
  /** Units above the charge that did not fit. */
  owed?: number
  /** True if an earlier settle made the answer. */
  replayed?: boolean
  limit: number | null
  remaining: number | null
  retry_after_ms: number | null
  reset_after_ms: number | null
  quota: string | null
  source: Decision['source']
  quotas?: QuotaState[]
}

export interface RenewAnswer {
  renewed: boolean
  /** Time until the hold expires, ms. */
  expires_in_ms: number
  /** Why it is not renewed. */
  reason?: 'expired' | 'settled' | 'unknown_id' | (string & {})
}

/** A failure as the node reports it (RFC 9457). */
export interface ProblemDocument {
  type: string
  title: string
  status: number
  detail: string
  /** The faults of an invalid request. */
  violations?: Array<{ pointer: string; detail: string }>
  /** The members of this type, such as `known` policies. */
  [member: string]: unknown
}
