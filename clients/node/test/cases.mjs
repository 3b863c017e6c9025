// Runs the cases of clients/cases.json. clients/README.md describes their members.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'

import { Client } from 'tollgate-limiter'

import { post } from './http.mjs'
import { CLIENTS, RealNode, freePort, proxyNode, silentNode, waitUntil } from './nodes.mjs'

// Some cases make mistakes on purpose.
console.warn = () => {}

/** Checks that only a node with a member accepts. */
const PROBES = {
  look: { key: 'probe', look: true },
  id_ttl_ms: { key: 'probe', id: 'probe', id_ttl_ms: 1000 },
}

const table = JSON.parse(readFileSync(join(CLIENTS, 'cases.json'), 'utf8'))

/** Declares a test for each case of a kind. `run(instance)` runs one. */
export function cases(title, kind, run) {
  describe(title, () => {
    const nodes = {}
    before(async () => {
      nodes.node = await RealNode.start('cases.yaml')
      nodes.secure = await RealNode.start('cases-secure.yaml')
      nodes.reads = await Promise.all(Object.values(PROBES).map((probe) => reads(nodes.node, probe)))
    })
    after(() => Promise.all([nodes.node?.kill(), nodes.secure?.kill()]))
    for (const written of table[kind]) {
      test(written.name, async (context) => {
        const lacking = written.needs !== undefined && !nodes.reads[Object.keys(PROBES).indexOf(written.needs)]
        if (lacking) return context.skip(`the node does not read ${written.needs}`)
        const instance = await prepare(written, nodes)
        try {
          await run(instance)
          if (instance.seen) compareCalls(instance)
        } finally {
          instance.close()
        }
      })
    }
  })
}

/** Throws unless `actual` matches what a case expects. */
export function matches(actual, expected, path = 'answer') {
  if (expected !== null && typeof expected === 'object' && !Array.isArray(expected)) {
    if ('$between' in expected) {
      const [least, most] = expected.$between
      assert.ok(Number(actual) >= least && Number(actual) <= most, `${path} is ${actual}, not ${least} to ${most}`)
    } else if ('$starts' in expected) {
      assert.ok(String(actual).startsWith(expected.$starts), `${path} is ${actual}, not ${expected.$starts}...`)
    } else {
      for (const [name, value] of Object.entries(expected)) matches(actual?.[name], value, `${path}.${name}`)
    }
  } else if (Array.isArray(expected)) {
    assert.equal(actual?.length, expected.length, `the length of ${path}`)
    expected.forEach((value, index) => matches(actual[index], value, `${path}[${index}]`))
  } else {
    assert.equal(actual, expected, path)
  }
}

export async function within(ms, work) {
  const start = performance.now()
  const result = await work()
  const took = performance.now() - start
  if (ms !== undefined) assert.ok(took <= ms, `took ${Math.round(took)} ms, not at most ${ms}`)
  return result
}

/** The options of a case in the names of this client. Functions read a header. */
export function optionsOf({ urls, options = {} }) {
  const { deadline_ms, denial_cache_ms, on_failure, ca_file, policy, plan, key, cost, skip, drain, refund, ...same } = options
  const header = (option, read) => option?.header ? ((request) => read(valueOf(request, option.header))) : option
  return defined({
    ...same,
    nodes: urls,
    deadlineMs: deadline_ms ?? 5000,
    onFailure: on_failure,
    denialCacheMs: denial_cache_ms,
    caFile: ca_file && join(CLIENTS, ca_file),
    policy: header(policy, (value) => value),
    plan: header(plan, (value) => value),
    key: header(key, (value) => value),
    cost: header(cost, Number),
    skip: header(skip, (value) => value !== undefined),
    drain: header(drain, Number),
    refund: header(refund, (value) => value !== undefined),
  })
}

/** Node and the Web have different headers. */
function valueOf({ headers }, name) {
  return headers instanceof Headers ? (headers.get(name) ?? undefined) : headers[name]
}

async function prepare(written, nodes) {
  const key = `k-${randomUUID()}`
  const text = JSON.stringify(written).replaceAll('{key}', key).replaceAll('{long}', 'k'.repeat(2000))
  const instance = JSON.parse(text)
  const doubles = []
  instance.urls = []
  for (const kind of instance.nodes ?? ['node']) {
    if (kind === 'down') instance.urls.push(`http://127.0.0.1:${await freePort()}`)
    else if (kind === 'node' || kind === 'secure') instance.urls.push(nodes[kind].url)
    else {
      const double = kind === 'silent' ? await silentNode() : await proxyNode(nodes.node.url, { lossy: kind === 'lossy' })
      doubles.push(double)
      instance.urls.push(double.url)
    }
  }
  const plain = new Client({ nodes: nodes.node.url, deadlineMs: 5000 })
  for (const counter of instance.reset ?? []) await plain.reset(counter)
  instance.proxy = doubles.find((double) => 'seen' in double)
  instance.until = ({ policy, key, ...wanted }) =>
    waitUntil(JSON.stringify(wanted), async () => {
      const usage = await plain.usage({ policy, key })
      return Object.entries(wanted).every(([name, value]) => usage[name] === value)
    }, 5000)
  instance.stop = () => instance.proxy.close()
  instance.close = () => {
    plain.close()
    for (const double of doubles) double.close()
  }
  return instance
}

function compareCalls({ seen, proxy }) {
  const { calls, connections } = proxy.seen
  const paths = calls.map((call) => call.path)
  if (seen.calls !== undefined) matches(calls.length, seen.calls, 'calls')
  if (seen.connections !== undefined) matches(connections, seen.connections, 'connections')
  for (const [name, value] of Object.entries(seen.headers ?? {})) {
    for (const { headers } of calls) matches(headers[name] ?? null, value, name)
  }
  if (seen.checks !== undefined) {
    const checks = calls.flatMap(({ body }) => (body === '' ? [] : (JSON.parse(body).checks ?? [JSON.parse(body)])))
    assert.equal(checks.length, seen.checks.length, 'checks that arrived')
    seen.checks.forEach((members, index) => {
      for (const [name, value] of Object.entries(members)) matches(checks[index][name] ?? null, value, `check ${index}: ${name}`)
    })
  }
  if (seen.some_path !== undefined) assert.ok(paths.includes(seen.some_path), `${paths} lacks ${seen.some_path}`)
  if (seen.every_path !== undefined) assert.ok(paths.every((path) => path === seen.every_path), `${paths}`)
}

async function reads(node, probe) {
  return (await post(`${node.url}/v1/check`, probe)).status !== 422
}

function defined(object) {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined))
}
