// Nodes for tests: real ones, and the doubles of clients/README.md.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import http from 'node:http'
import net from 'node:net'
import { dirname, join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

export const CLIENTS = resolve(dirname(fileURLToPath(import.meta.url)), '../..')
const BINARY = resolve(process.env.TOLLGATE_BIN ?? join(CLIENTS, '../target/debug/tollgate'))

/** A real node with a configuration of clients/. */
export class RealNode {
  static async start(config = 'cases.yaml', port = undefined, environment = {}) {
    const node = new RealNode()
    node.config = config
    node.environment = { ...process.env, ...environment }
    node.port = port ?? (await freePort())
    node.url = `${config.includes('secure') ? 'https' : 'http'}://127.0.0.1:${node.port}`
    await node.start()
    return node
  }

  async start() {
    const command = ['serve', '--listen', `127.0.0.1:${this.port}`, '--config', this.config]
    this.process = spawn(BINARY, command, { cwd: CLIENTS, env: this.environment, stdio: ['ignore', 'ignore', 'pipe'] })
    let log = ''
    this.process.stderr.on('data', (part) => { log = (log + part).slice(-4000) })
    this.process.on('error', (error) => { log += error.message })
    await waitUntil(`${BINARY} to listen`, () => {
      if (this.process.exitCode !== null) throw new Error(`the node ended: ${log}`)
      return accepts(this.port)
    }).catch((error) => { throw new Error(`${error.message}\n${log}`) })
  }

  async kill() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return
    this.process.kill('SIGKILL')
    await once(this.process, 'exit')
  }
}

/** A Redis without data on a free port, for a test that stops it. */
export async function startRedis() {
  const port = await freePort()
  const server = spawn('redis-server', ['--port', port, '--save', '', '--appendonly', 'no'], { stdio: 'ignore' })
  server.on('error', () => console.error('install redis-server: apt-get install redis-server'))
  await once(server, 'spawn')
  await waitUntil('redis-server to listen', () => accepts(port))
  return { server, port, environment: { TOLLGATE_STORE: `redis://127.0.0.1:${port}` } }
}

/** A port where nothing listens. */
export async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address()
  server.close()
  await once(server, 'close')
  return port
}

/** Accepts connections and never answers. */
export async function silentNode() {
  const sockets = new Set()
  const server = net.createServer((socket) => {
    sockets.add(socket.on('error', () => {}))
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    close() {
      server.close()
      for (const socket of sockets) socket.destroy()
    },
  }
}

/** Forwards calls to `target`, records them, and counts their checks and answers. If `lossy`, the first answer is lost. */
export async function proxyNode(target, { lossy = false } = {}) {
  const calls = []
  let connections = 0
  let checks = 0
  const agent = new http.Agent({ keepAlive: true })
  const server = http.createServer((request, response) => {
    const call = { path: request.url.split('?')[0], headers: request.headers, body: '' }
    const first = calls.push(call) === 1
    request.setEncoding('utf8').on('data', (part) => { call.body += part })
    request.once('end', () => { if (call.path.startsWith('/v1/check')) checks += JSON.parse(call.body).checks?.length ?? 1 })
    const { method, headers, url } = request
    const upstream = http.request(target + url, { method, headers, agent }, (answer) => {
      if (lossy && first) {
        answer.resume().once('end', () => request.socket.destroy())
        return
      }
      response.writeHead(answer.statusCode, answer.headers)
      answer.pipe(response)
    })
    upstream.on('error', () => request.socket.destroy())
    request.pipe(upstream)
  })
  server.on('connection', () => connections++)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    get seen() { return { calls, connections, checks } },
    close() {
      server.close()
      server.closeAllConnections()
      agent.destroy()
    },
  }
}

export async function waitUntil(what, holds, timeoutMs = 10_000) {
  const end = Date.now() + timeoutMs
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`waited ${timeoutMs} ms for ${what}`)
    await sleep(20)
  }
}

function accepts(port) {
  return new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1')
    socket.once('connect', () => { socket.destroy(); resolve(true) })
    socket.once('error', () => resolve(false))
  })
}
