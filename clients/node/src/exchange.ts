import { readFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'

import { Connection, type Target } from './connection.js'
import type { Answer } from './response.js'

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

/** Why a node did not answer. Only `refused` is sure that the node did not read the call. */
export class NoAnswer extends Error {
  constructor(readonly fate: 'refused' | 'broken' | 'silent', cause?: Error) {
    super(cause?.message ?? 'no answer in time', { cause })
  }
}

/** More calls than connections wait for their turn. */
const MOST_CONNECTIONS = 64
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
  private readonly target: Target
  private readonly prefix: string
  private readonly head: string
  private readonly connections = new Set<Connection>()
  private readonly free: Connection[] = []
  private readonly turns: Array<() => void> = []

  constructor(node: string, caFile: string | undefined) {
    const url = new URL(node)
    const secure = url.protocol === 'https:'
    if (!secure && url.protocol !== 'http:') {
      throw new TypeError(`a node must be a URL such as http://127.0.0.1:7070, not ${node}`)
    }
    if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') {
      throw new TypeError('a node is a URL without a user, a query or a fragment: the option `token` has the token')
    }
    const ca = caFile === undefined ? undefined : readFileSync(caFile)
    this.target = {
      host: url.hostname.replace(/^\[|\]$/g, ''),
      port: Number(url.port) || (secure ? 443 : 80),
      tls: secure ? { ca } : undefined,
    }
    this.prefix = url.pathname.replace(/\/+$/, '')
    this.head = ` HTTP/1.1\r\nHost: ${url.host}\r\n`
  }

  /** Sends `call` and reads the answer, or rejects with `NoAnswer` after `timeoutMs`. */
  exchange(call: Call, token: string | undefined, timeoutMs: number): Promise<Answer> {
    const request = this.requestOf(call, token)
    return new Promise((resolve, reject) => {
      let connection: Connection | undefined
      let over = false
      const end = (error: NoAnswer | undefined) => {
        over = true
        cancel()
        if (error !== undefined) reject(error)
      }
      const expire = () => {
        if (over) return
        // A call that waited for its turn says nothing about the node.
        end(new NoAnswer(connection === undefined || connection.ready ? 'silent' : 'refused'))
        connection?.close()
      }
      const cancel = expiry(timeoutMs, expire)
      const start = () => {
        if (over) return this.nextTurn()
        connection = this.connection()
        const used = connection
        used.send(request).then(
          (read) => {
            end(undefined)
            resolve(read)
            if (read.reusable) this.release(used)
            else used.close()
          },
          (error: Error) => {
            if (!over) end(new NoAnswer(used.ready ? 'broken' : 'refused', error))
          },
        )
      }
      if (this.free.length > 0 || this.connections.size < MOST_CONNECTIONS) start()
      else this.turns.push(start)
    })
  }

  close(): void {
    for (const connection of this.connections) connection.close()
  }

  private requestOf(call: Call, token: string | undefined): string {
    let request = `${call.method} ${this.prefix}${call.path}${this.head}`
    if (token !== undefined) {
      checkToken(token)
      request += `Authorization: Bearer ${token}\r\n`
    }
    if (call.traceparent !== undefined) request += `traceparent: ${call.traceparent}\r\n`
    if (call.body === undefined) return `${request}\r\n`
    const length = Buffer.byteLength(call.body)
    return `${request}Content-Type: application/json\r\nContent-Length: ${length}\r\n\r\n${call.body}`
  }

  private connection(): Connection {
    for (let idle = this.free.pop(); idle !== undefined; idle = this.free.pop()) {
      if (idle.isOpen) return idle
    }
    const connection = new Connection(this.target, (closed) => this.forget(closed))
    this.connections.add(connection)
    return connection
  }

  private release(connection: Connection): void {
    if (connection.isOpen) {
      connection.rest()
      this.free.push(connection)
    }
    this.nextTurn()
  }

  private forget(connection: Connection): void {
    this.connections.delete(connection)
    const index = this.free.indexOf(connection)
    if (index >= 0) this.free.splice(index, 1)
    this.nextTurn()
  }

  private nextTurn(): void {
    this.turns.shift()?.()
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
