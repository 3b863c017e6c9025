// The gateway, called by OpenAI's SDK for Node. OPENAI_BASE_URL and OPENAI_API_KEY name it.
import assert from 'node:assert/strict'
import { test } from 'node:test'

import OpenAI from 'openai'

const sdk = new OpenAI({ maxRetries: 0 })
const WORD = 'blue\u2028'
const messages = [{ role: 'user', content: 'Why is the sky blue?' }]
const ask = (members) =>
  sdk.chat.completions.create({ model: 'llama3', messages, max_tokens: 20, ...members })

test('an answer without stream is an object', async () => {
  const answer = await ask()
  assert.equal(answer.choices[0].message.content, WORD.repeat(10))
  assert.equal(answer.usage.total_tokens, 18)
})

test('a stream has choices in each event', async () => {
  const texts = []
  for await (const event of await ask({ stream: true })) texts.push(event.choices[0].delta.content)
  assert.deepEqual(texts, Array(10).fill(WORD))
})

test('the usage event is for callers that ask', async () => {
  let last
  const stream = await ask({ stream: true, stream_options: { include_usage: true } })
  for await (const event of stream) last = event
  assert.equal(last.usage.total_tokens, 18)
})

test('the error of the model is kept', async () => {
  await assert.rejects(ask({ model: 'missing' }), { status: 404, code: 'model_not_found' })
  await assert.rejects(ask({ model: 'broken', stream: true }), { status: 500, code: 'internal' })
})

test('a request that never fits is 400', async () => {
  const error = { status: 400, code: 'cost_exceeds_limit' }
  await assert.rejects(ask({ max_tokens: undefined, max_completion_tokens: 50_000 }), error)
})

test('header fields have the remaining tokens', async () => {
  const { response } = await ask().withResponse()
  assert.equal(response.headers.get('x-ratelimit-limit-tokens'), '40000')
})

test('a denial has the time to wait', async () => {
  await ask({ max_tokens: 39_000 })
  await assert.rejects(ask({ max_tokens: 39_000 }), ({ status, code, headers }) => {
    assert.deepEqual([status, code], [429, 'rate_limit_exceeded'])
    return Number(headers.get('retry-after-ms')) > 1000
  })
})
