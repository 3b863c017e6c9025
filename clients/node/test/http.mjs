import http from 'node:http'

export function get(url, headers = {}, agent = undefined) {
  return new Promise((resolve, reject) => {
    http.get(url, { headers, agent }, (response) => {
      let body = ''
      response.setEncoding('utf8').on('data', (part) => { body += part })
      response.once('end', () => resolve({ status: response.statusCode, headers: response.headers, body }))
    }).once('error', reject)
  })
}

export function post(url, body) {
  return fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })
}
