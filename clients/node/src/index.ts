export { type AcquireOptions, Client, type CallOptions, type ClientOptions } from './client.js'
export { Denied, HoldEnded, Problem, Unavailable } from './errors.js'
export type { Hold } from './hold.js'
export type * from './types.js'
