// The package as npm packs it: for `import`, for `require`, and for a TypeScript program.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'

const PACKAGE = join(dirname(fileURLToPath(import.meta.url)), '..')
const EXPORTS = {
  '': ['Client', 'Problem', 'Unavailable'],
  '/express': ['tollgate'],
  '/fastify': ['tollgate', 'tollgateHook'],
  '/fetch': ['tollgate'],
  '/express-rate-limit': ['TollgateStore'],
  '/fastify-rate-limit': ['tollgateStore'],
}

describe('the package', () => {
  let home
  let files
  before(() => {
    home = mkdtempSync(join(tmpdir(), 'tollgate-package-'))
    const packed = run('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', home], PACKAGE)
    const [{ filename, files: list }] = JSON.parse(packed)
    files = list.map(({ path }) => path)
    run('tar', ['xzf', filename], home)
    mkdirSync(join(home, 'node_modules'))
    symlinkSync(join(home, 'package'), join(home, 'node_modules/tollgate-limiter'))
    for (const name of ['hono', 'express', 'fastify', 'express-rate-limit', '@fastify', '@types', 'typescript']) {
      symlinkSync(join(PACKAGE, 'node_modules', name), join(home, 'node_modules', name))
    }
  })
  after(() => rmSync(home, { recursive: true, force: true }))

  test('contains what a user needs and nothing else', () => {
    for (const name of ['README.md', 'CHANGELOG.md', 'LICENSE-MIT', 'LICENSE-APACHE', 'dist/esm/index.d.ts', 'dist/cjs/index.js']) {
      assert.ok(files.includes(name), name)
    }
    assert.deepEqual(files.filter((name) => /^(test|examples|node_modules|bench)/.test(name)), [])
  })

  test('is loaded by import and by require', () => {
    for (const [module, exported] of Object.entries(EXPORTS)) {
      const names = JSON.stringify(exported)
      const check = `for (const name of ${names}) if (typeof loaded[name] !== 'function') throw new Error(name)`
      run(process.execPath, ['--input-type=module', '-e', `import * as loaded from 'tollgate-limiter${module}'; ${check}`], home)
      run(process.execPath, ['-e', `const loaded = require('tollgate-limiter${module}'); ${check}`], home)
    }
  })

  test('has types for a program of either module format', () => {
    const program = `
      import { Client, Problem, type Decision } from 'tollgate-limiter'
      import { tollgate } from 'tollgate-limiter/express'
      import { tollgate as plugin, tollgateHook } from 'tollgate-limiter/fastify'
      import { tollgate as fetchLimiter } from 'tollgate-limiter/fetch'
      import { TollgateStore } from 'tollgate-limiter/express-rate-limit'
      import { tollgateStore } from 'tollgate-limiter/fastify-rate-limit'
      import rateLimit from '@fastify/rate-limit'
      import express from 'express'
      import { Hono } from 'hono'
      import { rateLimit as expressRateLimit } from 'express-rate-limit'
      import { fastify } from 'fastify'
      express().use(tollgate({ key: (request) => request.get('x-user'), cost: 2 }))
      express().post('/login', tollgate({
        policy: async (request) => request.get('x-plan'),
        refund: (_request, response) => response.statusCode === 200,
        once: true,
      }))
      const limit = fetchLimiter({ key: (request) => request.headers.get('x-user') })
      export const GET = limit(async (request: Request, context: { params: object }, decision) =>
        Response.json({ left: decision?.remaining, url: request.url, context }))
      new Hono().use(async (c, next) => {
        const { denial, finish } = await limit.decide(c.req.raw, c)
        if (denial) return denial
        await next()
        c.res = finish(c.res)
      })
      express().use(expressRateLimit({ store: new TollgateStore({ policy: 'ten' }) }))
      const app = fastify()
      app.register(plugin, { key: (request) => request.ip })
      app.register(rateLimit, { store: tollgateStore({ policy: 'inline' }) })
      app.get('/', { onRequest: tollgateHook() }, async (request) => request.tollgate?.remaining)
      export const ask = async (): Promise<Decision> => new Client({ nodes: ['http://127.0.0.1:7070'] }).check({ key: 'a' })
      export const status = (error: unknown) => error instanceof Problem ? error.status : 0
    `
    for (const file of ['program.mts', 'program.cts']) writeFileSync(join(home, file), program)
    const options = { strict: true, noEmit: true, module: 'nodenext', target: 'es2022', skipLibCheck: true, types: ['node'], esModuleInterop: true }
    const files = ['program.mts', 'program.cts']
    writeFileSync(join(home, 'tsconfig.json'), JSON.stringify({ compilerOptions: options, files }))
    run(process.execPath, [join(PACKAGE, 'node_modules/typescript/bin/tsc'), '-p', home], home)
  })

  test('has a lock file that names no registry', () => {
    const lock = readFileSync(join(PACKAGE, 'package-lock.json'), 'utf8')
    assert.doesNotMatch(lock, /"resolved"/)
  })
})

function run(command, argumentsOf, cwd) {
  try {
    return execFileSync(command, argumentsOf, { cwd, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  } catch (error) {
    throw new Error(`${command}: ${error.stdout}${error.stderr}`)
  }
}
