// The rate limit fields of a response, as the node writes them
// (draft-ietf-httpapi-ratelimit-headers-11 and RFC 9110).
import type { CheckAnswer } from './types.js'

/** The largest integer of a structured field (RFC 9651). */
const MAX_INTEGER = 999_999_999_999_999

export type Fields = Record<string, string>

/** `RateLimit-Policy`, `RateLimit` and `Retry-After` of a decision. */
export function fieldsOf(decision: CheckAnswer): Fields {
  const fields: Fields = {}
  const wait = decision.allowed ? undefined : retryAfter(decision)
  let policies = ''
  let states = ''
  for (const quota of decision.quotas ?? []) {
    policies += `${policies && ', '}"${quota.name}";q=${integer(quota.limit)};w=${seconds(quota.window_ms)}`
    states += `${states && ', '}${stateOf(quota.name, quota.remaining, quota.reset_after_ms, wait)}`
  }
  // A denial of the pre-filter knows only its binding quota.
  const { quota, remaining, reset_after_ms } = decision
  if (states === '' && quota !== null && remaining !== null && reset_after_ms !== null) {
    states = stateOf(quota, remaining, reset_after_ms, wait)
  }
  if (policies !== '') fields['ratelimit-policy'] = policies
  if (states !== '') fields.ratelimit = states
  if (wait !== undefined) fields['retry-after'] = String(wait)
  return fields
}

/**
 * Adds fields to those of a response. Several limits of a request list their quotas together. A
 * name that another limit has listed gets its policy in front, as at a gate.
 */
export function addFields(
  fields: Fields,
  decision: CheckAnswer | undefined,
  get: (name: string) => unknown,
  set: (name: string, value: string) => void,
): void {
  const listed = `${get('ratelimit-policy') ?? ''}${get('ratelimit') ?? ''}`
  const apart = (item: string, quota: string) => (listed.includes(item) ? `"${decision?.policy}/${quota}";` : item)
  for (const name in fields) {
    const value = fields[name] as string
    const earlier = get(name) ?? ''
    if (listed === '' || !name.startsWith('ratelimit')) set(name, value)
    else set(name, `${earlier}${earlier && ', '}${value.replace(/"([^"]*)";/g, apart)}`)
  }
}

/** Seconds until a denied cost fits, if it ever does. */
function retryAfter(decision: CheckAnswer): number | undefined {
  return decision.retry_after_ms === null ? undefined : Math.max(1, seconds(decision.retry_after_ms))
}

/** By the draft, Retry-After should not precede the end of `t`. */
function stateOf(name: string, remaining: number, resetMs: number, wait: number | undefined): string {
  return `"${name}";r=${integer(remaining)};t=${Math.min(seconds(resetMs), wait ?? Number.POSITIVE_INFINITY)}`
}

function seconds(ms: number): number {
  return Math.ceil(ms / 1000)
}

function integer(value: number): number {
  return Math.min(value, MAX_INTEGER)
}
