// Express with 20 requests in 60 seconds for each token. The next one gets 403 and a text.
//
//   tollgate serve --config examples/per-token.yaml &
//   node examples/per-token.mjs &
//   curl -s --retry 9 --retry-connrefused 127.0.0.1:7070/health/live 127.0.0.1:3000
//   for i in $(seq 21); do curl -w ' %{http_code}\n' -H 'Authorization: Bearer anna' 127.0.0.1:3000; done
import express from 'express'

import { tollgate } from 'tollgate-limiter/express'

const app = express()
app.use(tollgate({
  nodes: process.env.TOLLGATE_URL ?? 'http://127.0.0.1:7070',
  policy: 'per-token',
  // Verify the token first in a real service. A request without a token counts by its address.
  key: (request) => request.get('authorization')?.replace(/^Bearer /, ''),
  status: 403,
  body: 'You have made too many requests. Please wait a minute.\n',
}))
app.get('/', (_request, response) => { response.send('hello\n') })

const server = app.listen(process.env.PORT ?? 3000, '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}`)
})
