import * as net from 'node:net'
import * as tls from 'node:tls'

import { type Read, ResponseReader } from './response.js'

const IDLE_MS = 30_000

export interface Target {
  host: string
  port: number
  /** TLS, with these authorities or those of the platform. */
  tls?: { ca: Buffer | undefined }
}

interface Waiting {
  reader: ResponseReader
  resolve(read: Read): void
  reject(error: Error): void
}

/** One connection to a node, for one call at a time. */
export class Connection {
  /** Whether the node may have read something. */
  ready = false
  private readonly socket: net.Socket
  private waiting: Waiting | undefined

  constructor(target: Target, onClose: (connection: Connection) => void) {
    this.socket = target.tls === undefined ? net.connect(target) : tlsSocket(target, target.tls.ca)
    this.socket.setNoDelay(true)
    this.socket.once(target.tls === undefined ? 'connect' : 'secureConnect', () => { this.ready = true })
    this.socket.on('data', (bytes: Buffer) => this.onData(bytes))
    this.socket.on('end', () => this.onEnd())
    this.socket.on('error', (error) => this.fail(error))
    this.socket.on('timeout', () => this.close())
    this.socket.once('close', () => {
      onClose(this)
      this.fail(new Error('the connection was closed'))
    })
  }

  get isOpen(): boolean {
    return this.socket.writable && !this.socket.destroyed
  }

  /** Sends a request and reads its response. */
  send(request: string): Promise<Read> {
    this.socket.ref()
    this.socket.setTimeout(0)
    return new Promise((resolve, reject) => {
      this.waiting = { reader: new ResponseReader(), resolve, reject }
      this.socket.write(request)
    })
  }

  /** An idle connection keeps no process alive. */
  rest(): void {
    this.socket.unref()
    this.socket.setTimeout(IDLE_MS)
  }

  close(): void {
    this.socket.destroy()
  }

  private onData(bytes: Buffer): void {
    // An idle connection has nothing to read.
    if (this.waiting === undefined) return this.close()
    try {
      this.finish(this.waiting.reader.push(bytes))
    } catch (error) {
      this.fail(error as Error)
      this.close()
    }
  }

  private onEnd(): void {
    this.finish(this.waiting?.reader.end())
    this.close()
  }

  private finish(read: Read | undefined): void {
    if (read === undefined) return
    const { waiting } = this
    this.waiting = undefined
    waiting?.resolve(read)
  }

  private fail(error: Error): void {
    const { waiting } = this
    this.waiting = undefined
    waiting?.reject(error)
  }
}

function tlsSocket({ host, port }: Target, ca: Buffer | undefined): tls.TLSSocket {
  const servername = net.isIP(host) === 0 ? host : undefined
  return tls.connect({ host, port, ca, servername, ALPNProtocols: ['http/1.1'] })
}
