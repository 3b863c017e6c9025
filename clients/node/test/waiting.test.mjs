// The worker of docs/waiting.md runs as it is printed, before a partner with a limit.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import { join } from 'node:path'
import { test } from 'node:test'

import { urlOf } from './applications.mjs'
import { CLIENTS, RealNode } from './nodes.mjs'

const PAGE = readFileSync(join(CLIENTS, '../docs/waiting.md'), 'utf8')
const block = (language) => new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, 'ms').exec(PAGE)[1]
/** On a busy machine a start is as late as that. */
const LATE_MS = 300

test('the workers of docs/waiting.md stay below the limit and obey a 429', async () => {
  const home = join(CLIENTS, 'node/test', `.readme-${randomUUID()}`)
  mkdirSync(home)
  const calls = []
  const partner = http.createServer((request, response) => {
    calls.push(performance.now())
    request.resume()
    response.writeHead(calls.length === 8 ? 429 : 200, { 'retry-after': '2' }).end()
  }).listen(0, '127.0.0.1')
  let node
  try {
    await once(partner, 'listening')
    // A busy machine needs more than the default of 100 ms.
    writeFileSync(join(home, 'policies.yaml'), `${block('yaml')}    timeout: 5s\n`)
    node = await RealNode.start(join(home, 'policies.yaml'))
    process.env.TOLLGATE_NODES = node.url
    process.env.PARTNER_URL = urlOf(partner).replace(/\/$/, '')
    writeFileSync(join(home, 'worker.mjs'), block('js'))
    const { send } = await import(join(home, 'worker.mjs'))
    const responses = await Promise.all(Array.from({ length: 30 }, (_, number) => send({ number })))
    assert.deepEqual(responses.map(({ status }) => status), Array(30).fill(200))
    assert.equal(calls.length, 31)
    calls.forEach((begin, first) => calls.slice(first).forEach((end, more) => {
      assert.ok(more <= (end - begin + LATE_MS) / 100, `${more + 1} calls in ${end - begin} ms`)
    }))
    const during = calls.filter((at) => at > calls[7] + LATE_MS && at < calls[7] + 1900)
    assert.deepEqual(during, [])
  } finally {
    await node?.kill()
    partner.close()
    partner.closeAllConnections()
    rmSync(home, { recursive: true })
  }
})
