//! Tests of Tollgate as a whole: real servers, the real binary. One line describes each file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod harness;

// The first minutes with Tollgate: five checks pass, and the sixth reports when to retry.
mod first_curl;

mod fuzz;

// Invalid requests get a problem document and charge nothing.
mod bad_input;

// The node rejects requests that HTTP parsers may understand differently.
mod framing;

// Rejected calls appear in logs and metrics.
mod refused_calls;

// Commands bound what they read and print, for fake nodes and endless files.
mod hostile_answers;

// The node warns of files that others may write or read, and of reloads that let more callers in.
mod weak_settings;

// Long responses do not delay other callers.
mod long_answers;

// Many checks in one call.
mod batch;

// Checks of several keys that share one script call.
mod shared_calls;

// Policies decide when the store cannot.
mod store_failure;

// The embedded store has a capacity for each policy, and reports when it is full.
mod store_capacity;

// A shutdown loses no response.
mod shutdown;

// A reload applies policies to a running node, all or none, and keeps the counts.
mod reload;

// Listeners with TLS renew certificates of the node and of its clients while it runs.
mod tls;

// Slow clients, and more of them than a node accepts.
mod slow_clients;

// Clients that do not read their responses: memory stays bounded, and other clients get responses.
mod hostile_clients;

// Tokens permit calls; a node without tokens listens on restricted addresses.
mod tokens;

// Each bad configuration reports its exact faults; each good one loads.
mod config_fixtures;

// Exit codes and output of the commands.
mod cli;

// Redis is absent or frozen: the node still decides, and uses the store again once it is back.
mod redis_away;

// Health reports why a shard makes no charges, and a failure to connect names its cause.
mod redis_health;

// Hostile servers: endless replies, long errors, overlapping slots.
mod redis_hostile;

// A corrupt value is rejected for its key alone, and a reset ends it.
mod corrupt_keys;

// Redis with authentication: users, changed passwords, TLS.
mod redis_auth;

// The documented Redis user has all permissions that a node needs, and no others.
mod redis_acl;

// Two nodes on a six-node cluster: exactly the limit, one call a check, none for a known denial.
mod exact_on_cluster;

// Failovers and flushed scripts: the lane repeats only calls that the server did not execute.
mod redirections;

// Nodes rediscover a cluster whose nodes change.
mod discovery;

// A sequence of cluster faults under load: always a decision, no double charge, never over the
// limit.
mod faults;

// The pure core: never over, barely under, exact waits, on every step of random histories.
mod window_properties;

// The counts of a key in Redis: one String, whose columns come and go with the quotas.
mod window_columns;

mod pair_columns;

// Deny, allow and override: which entry decides for a key.
mod lists;

// Shadow policies.
mod shadow;

// Quotas in a check.
mod inline;

// `explain` shows the decision for a key, and the responsible line of the file.
mod explain;

// Faults of comparable services, each with a test.
mod faults_seen_elsewhere;

// The same, for charges.
mod faults_of_charging;

// Existing rate limiters as policies on each store, with their flaws fixed.
mod replaced_systems;

// The sliding log: no interval over the limit, its clock, its bounds, the callers of its charges.
mod sliding_log;

// Fixed windows, token buckets and sliding logs against naive models; rows of the replaced systems.
mod algorithms;

// Refunds by id, by cost or of a reservation: exact, against naive models.
mod refund_properties;

// The embedded store and Redis answer alike, in every member, on every sequence.
mod stores_alike;

// Names and lifetimes of the keys in Redis.
mod redis_keys;

// Nodes whose clocks are wrong, or jump.
mod clocks;

// The pre-filter against the store, over several nodes, with late and reordered answers.
mod prefilter_sound;

// A check with an id charges once, however many retries follow.
mod retries;

// Refunds and resets: exact, immediate, and soon visible on the other nodes.
mod refunds;

// Several keys, all charged or none, also under concurrent calls.
mod all_at_once;

// Long random runs: no negative count, no key without an expiry, nothing left.
mod long_run;

// Days, weeks, months and years of a time zone, across every clock change.
mod calendar;

// Replays the requests of a log against policies.
mod replay;

// Traces, as a real OTLP receiver gets them.
mod telemetry_traces;

// An OTLP endpoint that is unavailable, and the log messages.
mod telemetry_faults;

// A log without a reader.
mod telemetry_log;

// The metrics: all names, bounded series, in agreement with health and policies.
mod telemetry_metrics;

// The OpenAPI document matches the routes and real responses.
mod openapi;

// All-or-nothing calls, ids, refunds and resets in metrics and traces.
mod telemetry_ops;

// The rules, the dashboard and the manual name existing metrics.
mod telemetry_rules;
