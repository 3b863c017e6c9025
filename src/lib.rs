//! Tollgate: a rate limiter that services ask over HTTP.
//!
//! It answers one question, fast and correctly: **may this key spend `cost` more under this policy, now?** Nodes
//! are stateless; any number of them share the counts in one Redis or Valkey, single or a cluster. In front of it each
//! node keeps a pre-filter that answers the obvious denials by itself. Without Redis the same service runs on an
//! embedded store, with the same decisions.
//!
//! # The path of a check
//!
//! ```text
//! POST /v1/check
//!   http/front, body          request id, panic guard, content type, size and time of the body
//!   http/request              parses; inspect.rs reads a faulty body again and tells every fault
//!   engine                    the policy by its name, the key in its one spelling, the fingerprint of both
//!     limit/lists             another policy for this key? deny and allow are answered here (source: list)
//!     engine/inline           or one with the quotas that the check brings along
//!     prefilter.denial        a known NO is answered here                      (source: prefilter)
//!     prefilter.question      the instant, and the generation of the key's slot
//!     store.take              within the policy's timeout                      (source: store)
//!       memory                limit::decision::decide, under the lock of a map's shard
//!       redis/topology        slot -> lane of its primary
//!       redis/lane, traffic   what waits is merged by key, and shares script calls
//!       redis/check_head.lua, window_check.lua
//!                             TIME, GET, subtract, compare, add (or not): one step; pair_check.lua, log.lua likewise
//!       redis/script, states  the reply -> verdicts, by limit::decision again
//!     prefilter.learn         from the store's answer, when it says that nothing is left
//!     engine/fallback         instead, when there is no answer: on_store_failure (source: fallback)
//!   http/answer, headers      JSON, RateLimit-Policy, RateLimit, Retry-After
//! ```
//!
//! # What holds
//!
//! 1. **Never over.** What the store admits never exceeds a limit in any interval as long as its window, by the
//!    shard's clock, while Redis keeps its data. [`limit::window`] says why.
//! 2. **Barely under.** A denial means that the last 65 buckets, 65/64 of the window, hold too much for this cost.
//! 3. **All or nothing.** A check is charged to all quotas of its policy or to none; a denial leaves no trace.
//! 4. **The pre-filter is sound.** It only says NO, and only where the store would. [`prefilter`] says why.
//! 5. **`retry_after` is true.** Denied just before it, allowed at it, if nobody else charges the key meanwhile.
//! 6. **Nothing is charged twice.** A call whose fate is unknown is never sent again. [`store`] says which those are.
//! 7. **Always an answer.** Each check ends within its policy's timeout, whatever Redis does.
//! 8. **Memory is bounded.** Each key in Redis has a TTL, each map and queue here a cap.
//! 9. **Both stores decide alike.** One pure core makes the verdicts of both, from the same counts.
//!
//! Two rules keep it testable: time is a parameter, which only [`clock`] reads, and imports point one way,
//! `http -> engine -> prefilter, store -> limit` (`tests/layers.rs`).
//!
//! The modules are declared in reading order.

pub mod clock;

pub mod deadline;

pub mod workers;

pub mod limit;

pub mod telemetry;

pub mod store;

pub mod access;

pub mod config;

pub mod prefilter;

pub mod engine;

pub mod reload;

pub mod http;

pub mod serve;

pub mod cli;
