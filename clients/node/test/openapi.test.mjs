// A client that openapi-typescript generates from /openapi.json compiles, and makes a check.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'

import { RealNode } from './nodes.mjs'

/** The generator needs another major of TypeScript than this package. */
const PACKAGES = ['openapi-typescript@7.13.0', 'openapi-fetch@0.17.0', 'typescript@5.9.3', '@types/node@20.19.43']

const PROGRAM = `
  import createClient from 'openapi-fetch'
  import type { paths } from './api.js'

  const client = createClient<paths>({ baseUrl: process.env.TOLLGATE_NODE! })
  const { data, error } = await client.POST('/v1/check', { body: { policy: 'ten', key: 'generated', cost: 2 } })
  if (error) throw new Error('detail' in error ? error.detail : 'denied')
  const remaining: number | null = data.remaining
  const refused = await client.POST('/v1/check', { body: { policy: 'nobody', key: 'generated' } })
  console.log(data.allowed, remaining, refused.error && 'status' in refused.error && refused.error.status)
`

test('openapi-typescript generates a client that compiles and makes a check', async () => {
  const node = await RealNode.start()
  const home = mkdtempSync(join(tmpdir(), 'tollgate-openapi-'))
  const run = (command, ...words) =>
    execFileSync(command, words, { cwd: home, encoding: 'utf8', env: { ...process.env, TOLLGATE_NODE: node.url } })
  try {
    writeFileSync(join(home, 'package.json'), '{"type": "module", "private": true}')
    run('npm', 'install', '--no-audit', '--no-fund', '--loglevel=error', ...PACKAGES)
    // By default the generator requires each member that has a default.
    run('node_modules/.bin/openapi-typescript', `${node.url}/openapi.json`, '--default-non-nullable=false', '-o', 'api.ts')
    writeFileSync(join(home, 'program.ts'), PROGRAM)
    const options = ['--strict', '--module', 'nodenext', '--target', 'es2022', '--types', 'node', '--skipLibCheck']
    run('node_modules/.bin/tsc', ...options, 'program.ts')
    assert.equal(run(process.execPath, 'program.js'), 'true 8 404\n')
  } catch (error) {
    throw new Error(`${error.message}\n${error.stdout}${error.stderr}`)
  } finally {
    rmSync(home, { recursive: true, force: true })
    await node.kill()
  }
})
