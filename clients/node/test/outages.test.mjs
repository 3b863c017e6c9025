// Runs clients/outages.json: what passes, what is logged and what is counted while no node decides.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, beforeEach, describe, mock, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

import { Client } from 'tollgate-limiter'

import { FRAMEWORKS } from './applications.mjs'
import { optionsOf, within } from './cases.mjs'
import { get } from './http.mjs'
import { CLIENTS, waitUntil } from './nodes.mjs'

const OUTAGES = JSON.parse(readFileSync(join(CLIENTS, 'outages.json'), 'utf8'))
/** Longer than the pause between two lines. */
const QUIET_MS = 1100

describe('an outage', () => {
  const lines = []
  beforeEach(() => { mock.method(console, 'warn', (line) => lines.push(line)) })
  afterEach(() => {
    mock.restoreAll()
    lines.length = 0
  })
  for (const row of OUTAGES) {
    test(`${row.name}: the client logs and counts its failures, open and closed`, async () => {
      const other = await otherSide(row.state)
      try {
        for (const onFailure of ['open', 'closed']) {
          const { nodes, deadlineMs, token, caFile, ...options } = optionsOf({ urls: other.url, options: { ...row.options, ...other.options } })
          const client = new Client({ nodes, deadlineMs, token, caFile })
          const app = await FRAMEWORKS['Express 5']({ ...options, client, onFailure })
          try {
            await observe(row, onFailure, { app, client, other, lines })
          } finally {
            await app.close()
            await client.close()
            lines.length = 0
          }
        }
      } finally {
        await other.close()
      }
    })
  }
})

async function observe(row, onFailure, { app, client, other, lines }) {
  const { requests = 3, decides, failures = requests, cause, warned, returns, within_ms } = row
  const isOpen = onFailure === 'open'
  if (returns) {
    assert.equal((await get(app.url)).status, 200)
    await other.toggle()
  }
  for (let time = 0; time < requests; time++) {
    const { status } = await within(within_ms, () => get(app.url, { 'x-used': '1' }))
    assert.equal(status, decides || isOpen ? 200 : 503)
  }
  await waitUntil('the failures', () => client.stats().failures >= failures)
  const stats = client.stats()
  assert.deepEqual([stats.passed, stats.allowed, stats.denied], decides ? [0, requests, 0] : [isOpen ? requests : 0, returns ? 1 : 0, 0])
  if (decides) assert.deepEqual(stats.sources, { [decides]: requests })
  const what = row.what ?? `no decision, so the request ${isOpen ? 'passes' : 'ends with 503'}`
  const warnings = lines.filter((line) => warned !== undefined && line.includes(warned))
  const failed = lines.filter((line) => !warnings.includes(line))
  assert.equal(warnings.length, warned === undefined ? 0 : 1, lines)
  assert.equal(failed.length > 0, failures > 0, lines)
  for (const line of failed) {
    assert.ok(line.startsWith(`Tollgate: ${what}: `) || line.startsWith('Tollgate: the settle of a hold failed: '), line)
    assert.ok(line.includes(cause), line)
  }
  if (returns) {
    await other.toggle()
    await waitUntil('a decision', () => get(app.url).then(({ headers }) => 'ratelimit' in headers))
    await sleep(QUIET_MS)
    await get(app.url)
    assert.match(lines.at(-1), /^Tollgate: decisions are back after \d+ failures in \d+\.\d s$/)
  }
}

async function otherSide(state) {
  const process = spawn('python3', [join(CLIENTS, 'outages.py'), state], { stdio: ['pipe', 'pipe', 'inherit'] })
  const lines = createInterface({ input: process.stdout })
  const next = async () => (await once(lines, 'line'))[0]
  const { url, ...options } = JSON.parse(await next())
  return {
    url,
    options,
    async toggle() {
      process.stdin.write('\n')
      await next()
    },
    async close() {
      process.stdin.end()
      await once(process, 'exit')
    },
  }
}
