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
  const states = decision.quotas ?? []
  if (states.length > 0) {
    fields['ratelimit-policy'] = states
      .map((quota) => `"${quota.name}";q=${integer(quota.limit)};w=${seconds(quota.window_ms)}`)
      .join(', ')
  }
  const known = states.length > 0 ? states : bindingState(decision)
  if (known.length > 0) {
    fields.ratelimit = known
      .map((quota) => `"${quota.name}";r=${integer(quota.remaining)};t=${until(quota.reset_after_ms, wait)}`)
      .join(', ')
  }
  if (wait !== undefined) fields['retry-after'] = String(wait)
  return fields
}

/** Seconds until a denied cost fits, if it ever does. */
function retryAfter(decision: CheckAnswer): number | undefined {
  return decision.retry_after_ms === null ? undefined : Math.max(1, seconds(decision.retry_after_ms))
}

/** A denial of the pre-filter knows only its binding quota. */
function bindingState({ quota, remaining, reset_after_ms }: CheckAnswer) {
  if (quota === null || remaining === null || reset_after_ms === null) return []
  return [{ name: quota, remaining, reset_after_ms }]
}

/** By the draft, Retry-After should not precede the end of `t`. */
function until(resetMs: number, wait: number | undefined): number {
  return Math.min(seconds(resetMs), wait ?? Number.POSITIVE_INFINITY)
}

function seconds(ms: number): number {
  return Math.ceil(ms / 1000)
}

function integer(value: number): number {
  return Math.min(value, MAX_INTEGER)
}
