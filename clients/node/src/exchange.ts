import { readFileSync } from 'node:fs'
import * as http from 'node:http'
import * as https from 'node:https'

export interface Call {
  method: 'GET' | 'POST' | 'DELETE'
  path: string
  body?: string
  traceparent?: string
  /** A repetition changes nothing: the checks have ids, or the call only reads. */
  repeatable: boolean
}

export interface Answer {
  status: number
  text: string
}

/** Why a node did not answer. Only `refused` is sure that the node did not read the call. */
export class NoAnswer extends Error {
  constructor(readonly fate: 'refused' | 'broken' | 'silent', cause?: Error) {
    super(cause?.message ?? 'no answer in time', { cause })
  }
}

const CONNECTIONS = 64
const IDLE_MS = 30_000

/** The address of one node, with its connections. */
export class Link {
  readonly url: string
  private readonly agent: http.Agent
  private readonly target: http.RequestOptions
  private readonly secure: boolean
  private readonly prefix: string

  constructor(node: string, caFile: string | undefined) {
    const url = new URL(node)
    this.url = url.origin
    this.secure = url.protocol === 'https:'
    if (!this.secure && url.protocol !== 'http:') {
      throw new TypeError(`a node must be a URL such as http://127.0.0.1:7070, not ${node}`)
    }
    const options = { keepAlive: true, maxSockets: CONNECTIONS, timeout: IDLE_MS }
    const ca = caFile === undefined ? undefined : readFileSync(caFile)
    this.agent = this.secure ? new https.Agent({ ...options, ca }) : new http.Agent(options)
    this.target = {
      agent: this.agent,
      host: url.hostname.replace(/^\[|\]$/g, ''),
      port: url.port || (this.secure ? 443 : 80),
    }
    this.prefix = url.pathname.replace(/\/+$/, '')
  }

  /** Sends `call` and reads the answer, or rejects with `NoAnswer` after at most `timeoutMs`. */
  exchange(call: Call, token: string | undefined, timeoutMs: number): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const request = (this.secure ? https : http).request({
        ...this.target,
        method: call.method,
        path: this.prefix + call.path,
        headers: headersOf(call, token),
      })
      let sent = false
      const timer = setTimeout(() => {
        reject(new NoAnswer(sent ? 'silent' : 'refused'))
        request.destroy()
      }, timeoutMs)
      const fail = (error: Error) => {
        clearTimeout(timer)
        reject(new NoAnswer(sent ? 'broken' : 'refused', error))
      }
      request.once('socket', (socket) => {
        if (request.reusedSocket) sent = true
        else socket.once(this.secure ? 'secureConnect' : 'connect', () => { sent = true })
      })
      request.on('error', fail)
      request.once('response', (response) => {
        let text = ''
        response.setEncoding('utf8')
        response.on('data', (part: string) => { text += part })
        response.on('error', fail)
        response.once('end', () => {
          clearTimeout(timer)
          resolve({ status: response.statusCode ?? 0, text })
        })
      })
      request.end(call.body)
    })
  }

  close(): void {
    this.agent.destroy()
  }
}

function headersOf(call: Call, token: string | undefined): http.OutgoingHttpHeaders {
  const headers: http.OutgoingHttpHeaders = {}
  if (call.body !== undefined) {
    headers['content-type'] = 'application/json'
    headers['content-length'] = Buffer.byteLength(call.body)
  }
  if (token !== undefined) headers.authorization = `Bearer ${token}`
  if (call.traceparent !== undefined) headers.traceparent = call.traceparent
  return headers
}
