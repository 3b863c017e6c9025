// The client cases of clients/cases.json.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

import { Client, Denied, Problem, Unavailable } from 'tollgate-limiter'

import { cases, matches, optionsOf, within } from './cases.mjs'

cases('client', 'client', async (instance) => {
  const client = new Client(optionsOf(instance))
  try {
    for (const step of instance.steps) await runStep(client, step, instance)
  } finally {
    client.close()
  }
})

async function runStep(client, step, instance) {
  if (step.stop) return instance.stop()
  if (step.until) return instance.until(step.until)
  if (step.pause_ms) return sleep(step.pause_ms)
  if (step.together) return Promise.all(step.together.map((each) => runStep(client, each, instance)))
  if (step.concurrently) return runConcurrently(client, step)
  const call = () => (step.call === 'hold' ? holdOf(client, step, instance) : callOf(client, step))
  if (step.fails) return within(step.within_ms, () => assert.rejects(call(), (error) => isFailure(error, step.fails)))
  matches(await within(step.within_ms, call), step.expect ?? {})
}

async function runConcurrently(client, step) {
  const answers = await Promise.all(Array.from({ length: step.concurrently }, () => callOf(client, step)))
  assert.equal(answers.filter((answer) => answer.allowed).length, step.allowed)
}

/** The decision of the first check of a hold. The step has what happens while it is open. */
async function holdOf(client, { with: members, while: steps = [], cost, throws }, instance) {
  const failure = new Error('from the work')
  let decision
  const work = async (hold) => {
    decision = hold.decision
    for (const step of steps) await runStep(client, step, instance)
    assert.equal(hold.signal.aborted, false)
    hold.cost = cost
    if (throws) throw failure
  }
  const end = client.hold(members.checks ?? members, work)
  if (throws) await assert.rejects(end, failure)
  else await end
  return decision
}

function callOf(client, { call, with: members, traceparent }) {
  if (call === 'acquire') {
    const { wait_ms, ...check } = members
    return client.acquire(check, wait_ms, { traceparent })
  }
  const argument = call === 'checkBatch' || call === 'checkAll' ? members.checks : members
  return client[call](argument, { traceparent })
}

function isFailure(error, { denied, unavailable, status, problem, pointer }) {
  if (denied) {
    assert.ok(error instanceof Denied, String(error))
    assert.equal(error.decision.hold?.ended ?? error.decision.reason, denied)
    return true
  }
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
