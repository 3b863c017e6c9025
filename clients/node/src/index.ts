export { Client, type CallOptions, type ClientOptions } from './client.js'
export { Problem, Unavailable } from './errors.js'
export type * from './types.js'
