// Reads the responses of HTTP/1.1. A node sends a Content-Length; a proxy before it may send chunks.

export interface Answer {
  status: number
  text: string
}

export interface Read extends Answer {
  /** Whether the connection may serve another call. */
  reusable: boolean
}

interface Head {
  status: number
  bodyStart: number
  length: number | undefined
  chunked: boolean
  reusable: boolean
}

const MOST_HEAD_BYTES = 64 * 1024
const MOST_BYTES = 64 * 1024 * 1024
const EMPTY = Buffer.alloc(0)

export class ResponseReader {
  private bytes: Buffer = EMPTY
  private head: Head | undefined

  /** Adds bytes, and returns the response when it is whole. Throws if it is no HTTP/1. */
  push(bytes: Buffer): Read | undefined {
    this.bytes = this.bytes.length === 0 ? bytes : Buffer.concat([this.bytes, bytes])
    if (this.bytes.length > MOST_BYTES) throw new Error('the response is too long')
    this.head ??= this.readHead()
    if (this.head === undefined) return undefined
    return this.head.chunked ? this.chunks(this.head) : this.lengthOf(this.head)
  }

  /** The response if it ends with its connection. */
  end(): Read | undefined {
    const { head } = this
    if (head === undefined || head.chunked || head.length !== undefined) return undefined
    return { status: head.status, text: this.bytes.toString('utf8', head.bodyStart), reusable: false }
  }

  private readHead(): Head | undefined {
    for (;;) {
      const end = this.bytes.indexOf('\r\n\r\n')
      if (end < 0 && this.bytes.length <= MOST_HEAD_BYTES) return undefined
      const text = this.bytes.toString('latin1', 0, Math.max(end, 0))
      const start = /^HTTP\/1\.([01]) (\d{3})/.exec(text)
      if (start === null) throw new Error('the answer is no HTTP/1')
      const status = Number(start[2])
      // Responses below 200 precede the one of the call.
      if (status >= 200) return headOf(text, status, start[1] === '1', end + 4)
      this.bytes = this.bytes.subarray(end + 4)
    }
  }

  private lengthOf({ status, bodyStart, length, reusable }: Head): Read | undefined {
    if (length === undefined) return undefined
    const end = bodyStart + length
    if (this.bytes.length < end) return undefined
    const text = this.bytes.toString('utf8', bodyStart, end)
    return { status, text, reusable: reusable && this.bytes.length === end }
  }

  private chunks({ status, bodyStart, reusable }: Head): Read | undefined {
    const parts: Buffer[] = []
    for (let at = bodyStart; ; ) {
      const lineEnd = this.bytes.indexOf('\r\n', at)
      if (lineEnd < 0) return undefined
      const line = /^[0-9a-f]{1,8}/i.exec(this.bytes.toString('latin1', at, lineEnd))
      if (line === null) throw new Error('a chunk has no size')
      const size = Number.parseInt(line[0], 16)
      at = lineEnd + 2 + size + 2
      if (size === 0) {
        // Trailers follow the last chunk; without them, one empty line.
        const last = this.bytes.indexOf('\r\n\r\n', lineEnd)
        if (last < 0) return undefined
        const whole = reusable && this.bytes.length === last + 4
        return { status, text: Buffer.concat(parts).toString('utf8'), reusable: whole }
      }
      if (this.bytes.length < at) return undefined
      parts.push(this.bytes.subarray(lineEnd + 2, at - 2))
    }
  }
}

function headOf(text: string, status: number, persistent: boolean, bodyStart: number): Head {
  const length = /^content-length:[ \t]*(\d{1,15})[ \t]*$/im.exec(text)?.[1]
  const chunked = /^transfer-encoding:.*\bchunked\b/im.test(text)
  return {
    status,
    bodyStart,
    length: length === undefined ? undefined : Number(length),
    chunked,
    reusable: persistent && !/^connection:.*\bclose\b/im.test(text),
  }
}
