// Mistakes that would pass requests without a word. Each client reports one of a kind.
import type { ProblemDocument } from './types.js'

export class Warnings {
  private readonly given = new Set<string>()

  /** Whether a warning of this kind is still due. */
  lacks(kind: string): boolean {
    return !this.given.has(kind)
  }

  give(kind: string, text: string): void {
    if (!this.lacks(kind)) return
    this.given.add(kind)
    console.warn(`Tollgate: ${text}`)
  }

  /** Reports a problem that each further check would have, too. */
  heed({ status, type, detail, known }: ProblemDocument): void {
    if (String(type).endsWith(':unknown-policy')) {
      const names = Array.isArray(known) ? ` (the node has ${known.slice(0, 20).join(', ')})` : ''
      this.give('policy', `${detail}${names}: set \`policy\` to one of the node's. Until then its checks get no decision`)
    } else if (String(type).endsWith(':no-hold')) {
      this.give('hold', detail)
    } else if (status === 401 || status === 403) {
      this.give('token', `the node refused the token (${status} ${detail}): set \`token\` to one that may make this call`)
    }
  }
}
