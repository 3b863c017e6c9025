import { Client } from './client.js'
import { Unavailable } from './errors.js'
import type { Call } from './exchange.js'
import type { Nodes } from './nodes.js'
import type { Check, Decision } from './types.js'

const ALLOWED = {
  allowed: true, policy: 'default', key: '', cost: 1, charged: 1, limit: 100, remaining: 99, retry_after_ms: 0,
  reset_after_ms: 60_000, quota: '1m', source: 'store', reason: 'ok',
}
const DENIED = { ...ALLOWED, allowed: false, charged: 0, remaining: 0, retry_after_ms: 60_000, reason: 'over_limit' }

/**
 * A client for unit tests, without a node. Each check gets the next of `decisions`, and the last one
 * again and again: members of a decision, such as `{ allowed: false }`, or an error for a check
 * without a decision. By default all checks are allowed. Policies always have a hold. The checks that
 * arrived are in `checks`.
 */
export function fake(...decisions: Array<Partial<Decision> | Error>): Client & { readonly checks: Check[] } {
  const checks: Check[] = []
  const left = decisions.length > 0 ? [...decisions] : [{}]
  const decide = (check: Check): object => {
    checks.push(check)
    const next = left.length > 1 ? left.shift() : left[0]
    if (next instanceof Error) throw next instanceof Unavailable ? next : new Unavailable(next.message, next)
    const { policy = ALLOWED.policy, key, cost = 1, id, wait_ms } = check
    const hold = id === undefined || wait_ms !== undefined ? undefined : { expires_in_ms: 60_000 }
    const charged = cost > 0 && !check.look ? cost : 0
    return { ...(next?.allowed === false ? DENIED : { ...ALLOWED, charged, hold }), policy, key, cost, ...next }
  }
  const answer = ({ path, body = '{}' }: Call): object => {
    const asked = JSON.parse(body)
    switch (path.replace(/\?.*/, '')) {
      case '/v1/check': return decide(asked)
      case '/v1/check/batch': return { results: asked.checks.map(decide) }
      case '/v1/check/all': {
        const results = asked.checks.map(decide) as Decision[]
        const denied = results.flatMap(({ allowed }, place) => (allowed ? [] : [place]))
        return { allowed: denied.length === 0, denied_by: denied, retry_after_ms: denied.length && DENIED.retry_after_ms, results }
      }
      default: return { ...ALLOWED, settled: true, renewed: true, refunded: 0, expires_in_ms: 60_000 }
    }
  }
  const nodes: Pick<Nodes, 'call' | 'close'> = {
    call: async (call) => ({ status: 200, text: JSON.stringify(answer(call)), node: 'fake' }),
    close() {},
  }
  const client = new Client({ lease: false, denialCacheMs: 0, coalesce: false })
  return Object.assign(client, { nodes, checks })
}
