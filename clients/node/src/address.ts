import { isIP } from 'node:net'

/**
 * The address in a text such as `203.0.113.7:51234`, `[::1]:80` or `fe80::1%eth0`. A port or a zone
 * would make one client many. Other texts stay as they are.
 */
export function addressIn(text: string): string {
  if (!text.includes('%') && isIP(text) !== 0) return text
  const host = /^\[([^\]]*)\](?::\d+)?$/.exec(text)?.[1] ?? /^(.*\d\.\d+):\d+$/.exec(text)?.[1] ?? text
  const address = host.replace(/%.*$/s, '')
  return isIP(address) === 0 ? text : address
}
