// The types of src/types.ts and the fields of a response, compared with those of a real node.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'

import { Client } from 'tollgate-limiter'

import { fieldsOf } from '../dist/esm/fields.js'
import { CLIENTS, RealNode } from './nodes.mjs'

const source = readFileSync(join(CLIENTS, 'node/src/types.ts'), 'utf8')

/** Each interface, and its schema in /openapi.json. */
const TYPES = {
  Check: 'Check',
  Decision: 'Decision',
  CheckAnswer: 'CheckAnswer',
  QuotaState: 'QuotaState',
  Fallback: 'Fallback',
  BatchAnswer: 'BatchAnswer',
  TogetherAnswer: 'TogetherAnswer',
  Usage: 'Usage',
  RefundAnswer: 'RefundAnswer',
  HoldState: 'Hold',
  HoldName: 'HoldId',
  Settlement: 'Settlement',
  SettleAnswer: 'SettleResult',
  RenewAnswer: 'RenewResult',
}

/** Members that an older node lacks. */
const NEW = ['id_ttl_ms', 'repeated', 'look', 'plan']

/** Members of a feature that this client does not have. */
const ABSENT = ['wait_ms', 'start_in_ms', 'lease_span_ms']

describe('the contract with a node', () => {
  let node
  let schemas
  let client
  before(async () => {
    node = await RealNode.start()
    client = new Client({ nodes: node.url, deadlineMs: 5000 })
    schemas = (await (await fetch(`${node.url}/openapi.json`)).json()).components.schemas
  })
  after(async () => {
    client?.close()
    await node?.kill()
  })

  for (const [type, schema] of Object.entries(TYPES)) {
    test(`${type} has the members of its schema`, () => {
      const expected = membersIn(schemas[schema], schemas)
      for (const member of ABSENT) delete expected[member]
      const members = membersOf(type)
      // No node sees it.
      if (type === 'Check') delete members.once
      for (const member of NEW) if (!(member in schemas.Check.properties)) delete members[member]
      assert.deepEqual(members, expected)
    })
  }

  test('ProblemDocument has members of its schema', () => {
    const known = membersIn(schemas.Problem, schemas)
    for (const [member, required] of Object.entries(membersOf('ProblemDocument'))) {
      assert.equal(known[member], required, member)
    }
  })

  test('answers have the members of their types', async () => {
    const key = randomUUID()
    const allowed = await client.check({ policy: 'pair', key, cost: 2 })
    const denied = await client.check({ policy: 'pair', key })
    const checks = [{ key }, { policy: 'pair', key }]
    const held = { policy: 'tokens', key, id: key }
    const opened = await client.check(held)
    const answers = {
      CheckAnswer: [allowed, denied, opened, ...(await client.checkBatch(checks)).results],
      QuotaState: allowed.quotas,
      BatchAnswer: [await client.checkBatch(checks)],
      TogetherAnswer: [await client.checkAll(checks)],
      Usage: [await client.usage({ policy: 'log', key }), await client.usage({ policy: 'tokens', key })],
      HoldState: [opened.hold],
      RenewAnswer: [await client.renew(held)],
      SettleAnswer: [await client.settle(held), await client.settle({ ...held, id: 'unknown' })],
      RefundAnswer: [await client.refund({ policy: 'pair', key, cost: 1 })],
    }
    for (const [type, instances] of Object.entries(answers)) {
      const members = membersOf(type)
      for (const instance of instances) {
        for (const member of Object.keys(instance)) assert.ok(member in members, `${type} lacks ${member}`)
        for (const [member, required] of Object.entries(members)) {
          assert.ok(!required || member in instance, `an answer lacks ${type}.${member}`)
        }
      }
    }
  })

  test('the fields of a response are those of the node', async () => {
    const key = randomUUID()
    const checks = [{ cost: 1 }, { cost: 1 }, { cost: 3 }]
    for (const policy of ['pair', 'bucket', 'trial']) {
      for (const check of checks) await compareFields({ policy, key, ...check })
    }
    for (const key of ['mallory', 'monitoring']) await compareFields({ policy: 'listed', key })
    for (let time = 0; time < 3; time++) await compareFields({ policy: 'pair', key: `${key}-2` }, ['ratelimit-policy'])
  })

  /** `lacking`: fields that a denial of the pre-filter has only at the node. */
  async function compareFields(check, lacking = []) {
    const response = await fetch(`${node.url}/v1/check`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(check),
    })
    const decision = await response.json()
    const fields = fieldsOf(decision)
    for (const name of ['ratelimit-policy', 'ratelimit', 'retry-after']) {
      if (decision.source === 'prefilter' && lacking.includes(name)) continue
      assert.equal(fields[name] ?? null, response.headers.get(name), `${name} of ${JSON.stringify(decision)}`)
    }
  }
})

/** Members of an interface, and whether each is required. */
function membersOf(type) {
  const [, extended, body] = source.match(new RegExp(`export interface ${type}(?: extends (\\w+))? \\{\\n(.*?)\\n\\}`, 's'))
  const members = extended === undefined ? {} : membersOf(extended)
  for (const [, name, optional] of body.matchAll(/^ {2}(\w+)(\??):/gm)) members[name] = optional === ''
  return members
}

/** The same of a schema of /openapi.json. */
function membersIn(schema, schemas) {
  if (schema.$ref !== undefined) return membersIn(schemas[schema.$ref.split('/').at(-1)], schemas)
  if (schema.allOf !== undefined) return Object.assign({}, ...schema.allOf.map((part) => membersIn(part, schemas)))
  const required = schema.required ?? []
  return Object.fromEntries(Object.keys(schema.properties ?? {}).map((name) => [name, required.includes(name)]))
}
