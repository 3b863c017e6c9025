import { setTimeout as sleep } from 'node:timers/promises'

import { Client, Denied, Unavailable } from 'tollgate-limiter'

const node = process.env.TOLLGATE_NODES ?? 'http://127.0.0.1:7070'
const tollgate = new Client({ nodes: node })
const acme = { policy: 'partner', key: 'acme' }

/** Sends an order within the partner's limit, and returns the response. */
export async function send(order, cost = 1) {
  for (;;) {
    let look
    try {
      await tollgate.acquire({ ...acme, cost }, 30_000)
      look = await tollgate.check({ ...acme, cost: 0 })
    } catch (error) {
      await sleep(pauseAfter(error))
      continue
    }
    if (!look.allowed) continue
    const response = await call(`${process.env.PARTNER_URL}/orders`, 'POST', order)
    if (response.status !== 429) return response
    await block(Number(response.headers.get('retry-after') ?? 1))
  }
}

function pauseAfter(error) {
  if (error instanceof Unavailable) return 1000
  if (!(error instanceof Denied) || error.decision.reason === 'cost_exceeds_limit') throw error
  return error.decision.retry_after_ms ?? 1000
}

async function block(seconds) {
  const match = { key: 'acme' }
  const entry = { match, deny: true, expires_in_ms: 1000 * seconds, reason: '429 of the partner' }
  await call(`${node}/v1/overrides/partner`, 'PUT', entry).catch(() => sleep(1000 * seconds))
}

async function call(url, method, body) {
  const headers = { 'content-type': 'application/json' }
  return fetch(url, { method, headers, body: JSON.stringify(body) })
}
