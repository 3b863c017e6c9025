// The blocks of README.md, as printed.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { cpSync, lstatSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'

import { urlOf } from './applications.mjs'
import { get } from './http.mjs'
import { CLIENTS, RealNode, freePort, waitUntil } from './nodes.mjs'

const PACKAGE = join(CLIENTS, 'node')
const SECTIONS = Object.fromEntries(
  readFileSync(join(PACKAGE, 'README.md'), 'utf8').split(/^## /m).slice(1).map((text) => [text.split('\n', 1)[0], text]),
)

/** The blocks of a language in a section. */
function blocks(section, language) {
  return [...SECTIONS[section].matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, 'gms'))].map(([, block]) => block)
}

describe('README.md', () => {
  // In the package, since the blocks import it by its name.
  const home = join(PACKAGE, 'test', `.readme-${randomUUID()}`)
  let node
  before(async () => {
    mkdirSync(home)
    const [policies] = blocks('Recipes', 'yaml')
    writeFileSync(join(home, 'policies.yaml'), policies)
    node = await RealNode.start(join(home, 'policies.yaml'))
    process.env.TOLLGATE_NODES = node.url
  })
  after(async () => {
    await node?.kill()
    rmSync(home, { recursive: true })
  })

  describe('the recipes', () => {
    let server
    let client
    before(async () => {
      writeFileSync(join(home, 'recipes.mjs'), `${blocks('Recipes', 'js').join('\n')}\nexport { app, client }\n`)
      const recipes = await import(join(home, 'recipes.mjs'))
      client = recipes.client
      server = recipes.app.listen(0, '127.0.0.1')
      await waitUntil('the server', () => server.listening)
    })
    after(() => {
      client?.close()
      server?.close()
      server?.closeAllConnections()
    })

    const statuses = async (path, headers, times, method = 'GET') => {
      const counts = {}
      for (let time = 0; time < times; time++) {
        const { status } = await fetch(urlOf(server) + path, { method, headers })
        counts[status] = (counts[status] ?? 0) + 1
      }
      return counts
    }
    const remaining = async (policy, key) => (await client.usage({ policy, key })).remaining

    test('by address and by user count each request, and several limits count both', async () => {
      const user = randomUUID()
      const before = await remaining('per-ip', '127.0.0.1')
      assert.equal((await get(urlOf(server))).headers['ratelimit-policy'], '"1m";q=100;w=60')
      assert.deepEqual(await statuses('me', { 'x-user': user }, 2), { 200: 2 })
      const { headers } = await get(`${urlOf(server)}search`, { 'x-user': user })
      assert.equal(headers['ratelimit-policy'], '"1m";q=100;w=60, "1h";q=1000;w=3600')
      assert.match(headers.ratelimit, /^"1m";r=\d+;t=\d+, "1h";r=997;t=\d+$/)
      assert.equal(await remaining('per-ip', '127.0.0.1'), before - 2)
    })

    test('by plan has the quotas of the plan', async () => {
      assert.deepEqual(await statuses('report', { 'x-user': randomUUID() }, 12), { 200: 10, 429: 2 })
      assert.deepEqual(await statuses('report', { 'x-user': 'acme' }, 12), { 200: 12 })
    })

    test('a denial is a page for browsers and JSON for others', async () => {
      assert.equal((await client.check({ policy: 'page', key: '127.0.0.1', cost: 100 })).allowed, true)
      const page = await get(`${urlOf(server)}page`, { accept: 'text/html,*/*;q=0.8' })
      assert.deepEqual([page.status, page.headers['content-type']], [429, 'text/html; charset=utf-8'])
      assert.match(page.body, /Please try again in \d+ s\./)
      const other = await get(`${urlOf(server)}page`, { accept: 'application/json' })
      assert.deepEqual([other.status, other.headers['content-type']], [429, 'application/json'])
      assert.equal(JSON.parse(other.body).error, 'too many requests')
      assert.ok(Number(other.headers['retry-after']) > 0)
    })

    test('the counts for Prometheus are those of the client', async () => {
      await get(urlOf(server))
      const { body } = await get(`${urlOf(server)}metrics`)
      const { allowed } = client.stats()
      assert.ok(body.includes(`tollgate_client_allowed_total ${allowed}\n`) && body.includes('tollgate_client_passed_total 0\n'), body)
    })

    test('pass requests while no node answers, but for the one whose failures are closed', async () => {
      writeFileSync(join(home, 'dead.mjs'), `${blocks('Recipes', 'js').join('\n')}\nexport { app, client }\n`)
      process.env.TOLLGATE_NODES = `http://127.0.0.1:${await freePort()}`
      const dead = await import(join(home, 'dead.mjs'))
      process.env.TOLLGATE_NODES = node.url
      const other = dead.app.listen(0, '127.0.0.1')
      await waitUntil('the other server', () => other.listening)
      try {
        const routes = { '': 200, me: 200, search: 200, report: 200, chat: 200, login: 401, stream: 503, metrics: 200 }
        for (const [path, expected] of Object.entries(routes)) {
          const method = ['chat', 'login', 'stream'].includes(path) ? 'POST' : 'GET'
          const response = await fetch(urlOf(other) + path, { method, headers: { 'x-user': 'a' } })
          assert.equal(response.status, expected, path)
        }
        assert.ok(dead.client.stats().passed >= 6)
      } finally {
        await dead.client.close()
        other.close()
        other.closeAllConnections()
      }
    })

    test('tokens of a model end when the day is used up', async () => {
      const user = randomUUID()
      for (const left of [6000, 2000, 0]) {
        assert.deepEqual(await statuses('chat', { 'x-user': user }, 1, 'POST'), { 200: 1 })
        await waitUntil(`${left} tokens`, async () => (await remaining('tokens', user)) === left)
      }
      assert.deepEqual(await statuses('chat', { 'x-user': user }, 3, 'POST'), { 429: 3 })
    })

    test('a hold of an answer costs its parts', async () => {
      const user = randomUUID()
      const response = await fetch(`${urlOf(server)}stream`, { method: 'POST', headers: { 'x-user': user } })
      assert.equal(await response.text(), 'An answer of a model')
      await waitUntil('the settle', async () => (await remaining('chat', user)) === 9998)
    })

    test('failed logins count, right ones do not, and parallel guesses stay limited', async () => {
      const whole = () => waitUntil('refunds', async () => (await remaining('login', '127.0.0.1')) === 5)
      for (let time = 0; time < 8; time++) {
        assert.deepEqual(await statuses('login', { 'x-password': 'right' }, 1, 'POST'), { 200: 1 })
        await whole()
      }
      const guesses = await Promise.all(Array.from({ length: 20 }, () => statuses('login', {}, 1, 'POST')))
      assert.equal(guesses.filter((counts) => counts[401] === 1).length, 5)
      assert.deepEqual(await statuses('login', { 'x-password': 'right' }, 1, 'POST'), { 429: 1 })
    })
  })

  test('the job of the client runs under a hold, and not without a place', async () => {
    const job = blocks('Client', 'js').find((block) => block.includes('client.hold'))
    const lines = []
    const program = (number) => `
      import { Client } from 'tollgate-limiter'
      const client = new Client({ nodes: process.env.TOLLGATE_NODES, deadlineMs: 5000 })
      const customer = 'a customer', url = 'http://model/${number}'
      const { fetch, console } = globalThis.job
      ${job}
      client.close()`
    let answer
    const answered = new Promise((resolve) => { answer = resolve })
    let calls = 0
    globalThis.job = {
      fetch: async (_url, { signal }) => {
        calls++
        await answered
        assert.equal(signal.aborted, false)
        return new Response(null, { headers: { 'x-tokens': '0' } })
      },
      console: { log: (...words) => lines.push(words) },
    }
    const jobs = []
    for (let number = 0; number < 5; number++) {
      writeFileSync(join(home, `job-${number}.mjs`), program(number))
      jobs.push(import(join(home, `job-${number}.mjs`)))
    }
    await waitUntil('four jobs and a denial', () => calls === 4 && lines.length === 1)
    assert.equal(lines[0][0], 'in_flight')
    answer()
    await Promise.all(jobs)
  })

  test('the unit test without a node passes as printed', async () => {
    const recipe = blocks('Client', 'js').find((block) => block.includes('fake('))
    writeFileSync(join(home, 'unit.mjs'), recipe)
    await import(join(home, 'unit.mjs'))
  })

  test('the recipe for Hono limits and shows the decision', async () => {
    const recipe = blocks('Web requests: Hono, Next, Bun', 'js').find((block) => block.includes("from 'hono'"))
    writeFileSync(join(home, 'hono.mjs'), `${recipe}\nexport { app, limit }\n`)
    const { app, limit } = await import(join(home, 'hono.mjs'))
    const response = await app.request('/', { headers: { 'x-user': randomUUID() } })
    assert.equal(await response.text(), '999 left')
    assert.match(response.headers.get('ratelimit'), /^"1h";r=999;/)
    await limit.close()
    process.env.TOLLGATE_NODES = `http://127.0.0.1:${await freePort()}`
    writeFileSync(join(home, 'hono-dead.mjs'), `${recipe}\nexport { app, limit }\n`)
    const dead = await import(join(home, 'hono-dead.mjs'))
    process.env.TOLLGATE_NODES = node.url
    assert.equal(await (await dead.app.request('/', { headers: { 'x-user': 'a' } })).text(), 'unknown left')
  })

  test('the recipes for Bun and Next are handlers', async () => {
    const [bun, next] = blocks('Web requests: Hono, Next, Bun', 'js')
    const nodes = `const nodes = ${JSON.stringify(node.url)}\n`
    const withNodes = (recipe) => nodes + recipe.replace('tollgate({', 'tollgate({ nodes,')
    writeFileSync(join(home, 'bun.mjs'), `let served\nconst Bun = { serve: ({ fetch }) => { served = fetch } }\n${withNodes(bun)}\nexport { served }`)
    const { served } = await import(join(home, 'bun.mjs'))
    const server = { requestIP: () => ({ address: '192.0.2.7' }) }
    const response = await served(new Request('http://a/'), server)
    assert.match(response.headers.get('ratelimit'), /^"1m";r=99;/)
    writeFileSync(join(home, 'next.mjs'), `import { tollgate } from 'tollgate-limiter/fetch'\n${withNodes(next)}`)
    const { GET } = await import(join(home, 'next.mjs'))
    const answer = await GET(new Request('http://a/', { headers: { 'x-user': randomUUID() } }), { params: {} })
    assert.deepEqual(await answer.json(), { hello: true })
    assert.match(answer.headers.get('ratelimit'), /^"1h";r=999;/)
  })

  test('the lines to install the package from a checkout work in an empty folder', async () => {
    const empty = mkdtempSync(join(tmpdir(), 'tollgate-install-'))
    try {
      const tracked = execFileSync('git', ['ls-files', '-c', '-o', '--exclude-standard'], { cwd: PACKAGE, encoding: 'utf8' })
      for (const file of tracked.trim().split('\n')) cpSync(join(PACKAGE, file), join(empty, 'tollgate/clients/node', file))
      const [lines] = blocks('Install', 'console')
      const environment = { ...process.env, npm_config_audit: 'false', npm_config_fund: 'false', npm_config_loglevel: 'error' }
      execFileSync('sh', ['-ec', lines], { cwd: empty, env: environment, stdio: ['ignore', 'pipe', 'pipe'] })
      // The usual next step. A dependency on a folder would become a link to it.
      execFileSync('npm', ['install'], { cwd: empty, env: environment, stdio: ['ignore', 'pipe', 'pipe'] })
      assert.equal(lstatSync(join(empty, 'node_modules/tollgate-limiter')).isSymbolicLink(), false)
      const program = `
        import { Client } from 'tollgate-limiter'
        const client = new Client({ nodes: process.env.TOLLGATE_NODES, deadlineMs: 5000 })
        console.log((await client.check({ policy: 'per-user', key: 'installed' })).allowed)
        client.close()`
      const output = execFileSync(process.execPath, ['--input-type=module', '-e', program], { cwd: empty, encoding: 'utf8' })
      assert.equal(output, 'true\n')
    } finally {
      rmSync(empty, { recursive: true, force: true })
    }
  })
})
