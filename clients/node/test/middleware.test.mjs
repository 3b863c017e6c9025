// The middleware cases of clients/cases.json, for each framework.
import assert from 'node:assert/strict'
import http from 'node:http'

import { FRAMEWORKS } from './applications.mjs'
import { cases, matches, optionsOf, within } from './cases.mjs'
import { get } from './http.mjs'

for (const [framework, application] of Object.entries(FRAMEWORKS)) {
  cases(framework, 'middleware', async (instance) => {
    const app = await application(optionsOf(instance))
    const agent = new http.Agent({ keepAlive: true })
    try {
      for (const request of instance.requests) await run(request, instance, app.url, agent)
    } finally {
      agent.destroy()
      await app.close()
    }
  })
}

async function run(request, instance, url, agent) {
  if (request.until) return instance.until(request.until)
  if (request.concurrently) {
    const sent = Array.from({ length: request.concurrently }, () => get(url, headersOf(request), agent))
    const counts = {}
    for (const { status } of await Promise.all(sent)) counts[status] = (counts[status] ?? 0) + 1
    return assert.deepEqual(counts, request.statuses)
  }
  for (let time = 0; time < (request.times ?? 1); time++) {
    const response = await within(request.within_ms, () => get(url, headersOf(request), agent))
    compare(response, request.expect)
  }
}

/** As UTF-8. Node writes each character of a header as one byte. */
function headersOf({ headers = {} }) {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, Buffer.from(value).toString('latin1')]))
}

function compare(response, { status, headers = {}, body, json }) {
  assert.equal(response.status, status, response.body)
  for (const [name, value] of Object.entries(headers)) {
    if (value === null) assert.equal(response.headers[name], undefined, name)
    else matches(response.headers[name], value, name)
  }
  if (body !== undefined) assert.equal(response.body, body)
  if (json !== undefined) matches(JSON.parse(response.body), json, 'body')
}
