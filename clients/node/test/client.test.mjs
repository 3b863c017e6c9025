// The client cases of clients/cases.json.
import assert from 'node:assert/strict'

import { Client, Problem, Unavailable } from 'tollgate-limiter'

import { cases, matches, optionsOf, within } from './cases.mjs'

cases('client', 'client', async (instance) => {
  const client = new Client(optionsOf(instance))
  try {
    for (const step of instance.steps) {
      if (step.stop) instance.stop()
      else await runStep(client, step)
    }
  } finally {
    client.close()
  }
})

async function runStep(client, step) {
  if (step.together) return Promise.all(step.together.map((each) => runStep(client, each)))
  if (step.concurrently) return runConcurrently(client, step)
  const call = () => callOf(client, step)
  if (step.fails) return within(step.within_ms, () => assert.rejects(call(), (error) => isFailure(error, step.fails)))
  matches(await within(step.within_ms, call), step.expect)
}

async function runConcurrently(client, step) {
  const answers = await Promise.all(Array.from({ length: step.concurrently }, () => callOf(client, step)))
  assert.equal(answers.filter((answer) => answer.allowed).length, step.allowed)
}

function callOf(client, { call, with: members, traceparent }) {
  const argument = call === 'checkBatch' || call === 'checkAll' ? members.checks : members
  return client[call](argument, { traceparent })
}

function isFailure(error, { unavailable, status, problem, pointer }) {
  if (unavailable) {
    assert.ok(error instanceof Unavailable, String(error))
    return true
  }
  assert.ok(error instanceof Problem, String(error))
  assert.equal(error.status, status)
  assert.equal(error.type, `urn:tollgate:problem:${problem}`)
  if (pointer !== undefined) assert.equal(error.document.violations[0].pointer, pointer)
  return true
}
