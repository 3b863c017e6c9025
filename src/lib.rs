//! Tollgate: a rate limiter that services call over HTTP.
//!
//! It answers one question, fast and correctly: **may this key spend `cost` more under this policy,
//! now?** Nodes are stateless: any number of them share the counts in one Redis or Valkey, single
//! or a cluster. Each node has a pre-filter that answers known denials without Redis. Without Redis
//! the same service runs on an embedded store, with the same decisions.
//!
//! # The path of a check
//!
//! Each step names its file or function. A list, a known denial or a lease decides the check early,
//! which then continues at step 8. The answer reports the deciding step as its `source`.
//!
//! ```text
//! POST /v1/check
//!
//!  1. Receive  serve/connections       the connection's task, on one worker thread
//!              load/timed_stream       the client's time
//!              serve/framing           the length of the request is unambiguous
//!              http/service            the entry, and the panic guard
//!              http/calls              the row of the call
//!              load/mod                load limits, all in one folder
//!              http/head               request id, framing, authorization
//!              http/check              the handler: the next steps up to the answer
//!              http/request/body       content type, size and time of the body
//!  2. Parse    http/request/parse      a valid body in one parse
//!              http/request/explain    a faulty body again, to report every fault
//!  3. Check    engine/check            `check`: the story of the next steps
//!              engine/alone           the same for an id, a drain, a wait or a look
//!     resolve                          policy by name, key normalised, fingerprint of both
//!              limit/policy            a list decides, or an override         -> source: list
//!  4. Filter   prefilter/mod           a known denial                         -> source: prefilter
//!     Lease    engine/leases           units in hand, or how many to buy      -> source: lease
//!  5. Call     engine/check            `call_store`, within the policy's timeout
//!
//!     Embedded store
//!              store/memory            limit/decision decides, under the lock of a map part
//!
//!     Both     store/mod, store/work  `charge`: costs in, verdicts out
//!     Redis, under store/redis
//!              router/mod              `route`: slot -> lane -> answer, and every retry
//!              topology/current        the slot's primary
//!              lane/mod                `send`: the connection for this durability
//!              request                 the channel from this task to the task of the lane
//!              lane/session            the send loop
//!              lane/queue              waiting checks of one key merge
//!              lane/key_batch          the requests of one key
//!              lane/script_call        keys that share a script call
//!              lane/pipeline           calls that share a round trip; sends and settles
//!              protocol/call, check    arguments
//!              scripts/                TIME, GET, compare, add or not: one atomic script
//!              protocol/call, check    reply -> verdicts, by limit/decision    -> source: store
//!
//!  6. Learn    prefilter/mod           a new known denial, if the store has nothing left
//!  7. Fallback engine/fallback         no answer: on_store_failure            -> source: fallback
//!  8. Shadow   engine/decision         a denial of a shadow policy becomes allowed
//!     Count    engine/tally            outcome, source, reason and duration
//!              engine/denials          a denial by quota and key, for operators
//!     Notify   engine/marks            the marks that a key crosses, for their receiver
//!  9. Answer   http/answer             JSON
//!              http/headers            RateLimit-Policy, RateLimit, Retry-After
//!              load/metered_body       the bytes of a long answer
//! ```
//!
//! # Guarantees
//!
//! 1. **Never over.** In any interval as long as its window, the store admits at most the limit.
//!    This holds by the shard's clock, while Redis keeps its data. [`limit::window`] gives the
//!    reason. [`limit::lease`] has it for units that a node buys and spends later.
//! 2. **Barely under.** A denial means that the last 65 steps hold too much for this cost. They
//!    span 65/64 of the window.
//! 3. **All or nothing.** A check charges all quotas of its policy or none. A denial leaves no
//!    trace. Only a [drain](limit::drain) charges each quota as much as fits there.
//! 4. **The pre-filter is sound.** It only denies, and only where the store denies. [`prefilter`]
//!    gives the reason.
//! 5. **`retry_after` is exact.** The cost is denied just before that instant and allowed at it, if
//!    no other call charges the key.
//! 6. **No double charge.** A node never resends a call whose result is unknown. [`store`] lists
//!    these calls.
//! 7. **Always an answer.** Each check ends within its policy's timeout, whatever Redis does.
//! 8. **Bounded memory.** Each key in Redis has a TTL, and each map and queue of a node has a cap.
//! 9. **Both stores decide alike.** One pure core computes the verdicts of both, from the same
//!    counts.
//!
//! Another door begins elsewhere: `gateway/forward_auth` maps the question of a proxy to checks,
//! and `http/gate` renders the answer. Steps 3 to 8 are the same.
//!
//! Two rules keep the code testable. Time is a parameter, which only [`clock`] reads. Imports point
//! one way, `http -> gateway -> engine -> overrides, prefilter, store -> limit` (`tests/layers.rs`).
//!
//! The modules are declared in reading order.

#[macro_use]
mod named;

pub mod clock;

pub mod deadline;

pub mod timeouts;

pub mod workers;

pub mod limit;

pub mod telemetry;

pub mod live;

pub mod store;

pub mod access;

pub mod shares;

pub mod config;

pub mod overrides;

pub mod prefilter;

pub mod notices;

pub mod engine;

pub mod reload;

pub mod load;

pub mod node;

pub mod fields;

pub mod gateway;

pub mod http;

pub mod serve;

pub mod cli;
