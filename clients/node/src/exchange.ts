import { readFileSync } from 'node:fs'
import * as http from 'node:http'
import * as https from 'node:https'
import { performance } from 'node:perf_hooks'
import { urlToHttpOptions } from 'node:url'

export interface Call {
  method: 'GET' | 'POST' | 'DELETE'
  path: string
  body?: string
  /** The body of a repetition, if it differs. */
  again?: (() => string) | undefined
  traceparent?: string | undefined
  /** Whether a node may get it that may have got it before. */
  repeatable: boolean
}

export interface Answer {
  status: number
  text: string
  /** The URL of the node. */
  node: string
}

/** Why a node did not answer. Only `refused` is sure that the node did not read the call. */
export class NoAnswer extends Error {
  constructor(readonly fate: 'refused' | 'broken' | 'silent', cause?: Error) {
    super(cause?.message ?? 'no answer in time', { cause })
  }
}

/** `timeout` ends idle connections. More calls than `maxSockets` wait for their turn. */
const CONNECTIONS = { keepAlive: true, maxSockets: 64, timeout: 30_000, scheduling: 'lifo' } as const
/** A process that is late or busy for no longer than this has lost no time. */
const LATE_MS = 5
/** A header value that needs no escapes and ends no line. */
const VISIBLE = /^[\x21-\x7e]+$/
const TRACEPARENT = /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/

/** A caller chooses the trace context of a request, so no other text passes. */
export function traceparentOf(text: string | undefined): string | undefined {
  return text !== undefined && TRACEPARENT.test(text) ? text : undefined
}

/** Throws if a node cannot read the token. */
export function checkToken(token: string): void {
  if (!VISIBLE.test(token)) throw new TypeError('a token must be visible ASCII characters')
}

/** The address of one node, with its connections. */
export class Link {
  private readonly isSecure: boolean
  private readonly agent: http.Agent
  private readonly target: http.RequestOptions
  private readonly prefix: string
  private readonly connected = new WeakSet<object>()

  constructor(private readonly node: string, caFile: string | undefined) {
    const url = new URL(node)
    this.isSecure = url.protocol === 'https:'
    if (!this.isSecure && url.protocol !== 'http:') {
      throw new TypeError(`a node must be a URL such as http://127.0.0.1:7070, not ${node}`)
    }
    if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') {
      throw new TypeError('a node is a URL without a user, a query or a fragment: the option `token` has the token')
    }
    const ca = caFile === undefined ? undefined : readFileSync(caFile)
    this.agent = this.isSecure ? new https.Agent({ ...CONNECTIONS, ca }) : new http.Agent(CONNECTIONS)
    const { hostname, port } = urlToHttpOptions(url)
    this.target = { hostname, port, agent: this.agent }
    this.prefix = url.pathname.replace(/\/+$/, '')
  }

  /** Sends `call` and reads the answer, or rejects with `NoAnswer` after `timeoutMs`. */
  exchange(call: Call, token: string | undefined, timeoutMs: number): Promise<Answer> {
    const request = this.begin(call, token)
    return new Promise((resolve, reject) => {
      // A call that waits for its turn has no socket, and says nothing about the node.
      let state: 'waiting' | 'connecting' | 'ready' = 'waiting'
      const end = (error: NoAnswer) => {
        cancel()
        reject(error)
        request.destroy()
      }
      const cancel = expiry(timeoutMs, () => end(new NoAnswer(state === 'connecting' ? 'refused' : 'silent')))
      const fail = (error: Error) => end(new NoAnswer(state === 'ready' ? 'broken' : 'refused', error))
      request.once('socket', (socket) => {
        // `reusedSocket` is false for a call that waited for its turn.
        state = this.connected.has(socket) ? 'ready' : 'connecting'
        if (state === 'connecting') {
          socket.once(this.isSecure ? 'secureConnect' : 'connect', () => {
            this.connected.add(socket)
            state = 'ready'
          })
        }
      })
      request.on('error', fail)
      request.once('response', (response) => {
        let text = ''
        response.setEncoding('utf8').on('data', (part: string) => { text += part })
        response.once('error', fail).once('end', () => {
          cancel()
          resolve({ status: response.statusCode as number, text, node: this.node })
        })
      })
      request.end(call.body)
    })
  }

  close(): void {
    this.agent.destroy()
  }

  private begin(call: Call, token: string | undefined): http.ClientRequest {
    const headers: http.OutgoingHttpHeaders = {}
    if (token !== undefined) {
      checkToken(token)
      headers.authorization = `Bearer ${token}`
    }
    if (call.traceparent !== undefined) headers.traceparent = call.traceparent
    if (call.body !== undefined) headers['content-type'] = 'application/json'
    const { request } = this.isSecure ? https : http
    return request({ ...this.target, method: call.method, path: this.prefix + call.path, headers })
  }
}

/**
 * Calls `expire` after `timeoutMs`, and returns a function that cancels this. Time for which this
 * process was busy or late is not the node's, so it does not count, up to `timeoutMs`.
 */
function expiry(timeoutMs: number, expire: () => void): () => void {
  const begin = performance.eventLoopUtilization()
  let due = performance.now() + timeoutMs
  let lost = 0
  let timer = setTimeout(fire, timeoutMs)

  function fire(): void {
    const now = performance.now()
    const busy = performance.eventLoopUtilization(begin).active
    const more = Math.min(Math.max(now - due, busy - lost), timeoutMs - lost)
    if (more > LATE_MS) {
      lost += more
      due = now + more
      timer = setTimeout(fire, more)
    } else {
      // An answer that has arrived is read before the immediate.
      setImmediate(expire)
    }
  }
  return () => clearTimeout(timer)
}
