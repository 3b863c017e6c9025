// examples/per-token.mjs, as a user runs it.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { test } from 'node:test'

import { get } from './http.mjs'
import { CLIENTS, RealNode } from './nodes.mjs'

test('the example answers 403 with its own text after 20 requests of a token', async () => {
  const node = await RealNode.start('node/examples/per-token.yaml')
  const environment = { ...process.env, TOLLGATE_URL: node.url, PORT: '0' }
  const script = join(CLIENTS, 'node/examples/per-token.mjs')
  const app = spawn(process.execPath, [script], { env: environment, stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    const [line] = await once(app.stdout, 'data')
    const url = String(line).trim()
    const anna = { authorization: 'Bearer anna' }
    for (let time = 0; time < 20; time++) assert.equal((await get(url, anna)).status, 200)
    const denied = await get(url, anna)
    assert.equal(denied.status, 403)
    assert.equal(denied.body, 'You have made too many requests. Please wait a minute.\n')
    assert.ok(Number(denied.headers['retry-after']) <= 60)
    assert.equal((await get(url, { authorization: 'Bearer berta' })).status, 200)
  } finally {
    app.kill()
    await node.kill()
  }
})
