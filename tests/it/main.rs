//! Stories about Tollgate as a whole: real servers, the real binary. One line says what each file shows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod harness;

// The first minutes with Tollgate: five are allowed, the sixth is told when to come again.
mod first_curl;

mod fuzz;

// Whatever a caller sends wrong is answered by a problem document, and charges nothing.
mod bad_input;

// Requests that two readers of HTTP understand differently are refused.
mod framing;

// Calls that are refused leave a trace.
mod refused_calls;

// Nodes that are none, and files that never end: what a command prints and reads of them is bounded.
mod hostile_answers;

// Files that others may write or read, and reloads that let more callers in, are told.
mod weak_settings;

// Long answers keep nobody waiting.
mod long_answers;

// Many checks in one call.
mod batch;

// Checks of several keys that share one script call.
mod shared_calls;

// What a policy says when the store cannot.
mod store_failure;

// The embedded store has places for each policy, and says when they are used up.
mod store_capacity;

// The end of a node loses no answer.
mod shutdown;

// Policies are loaded again while the node runs, whole or not at all, and counts go on.
mod reload;

// Listeners with TLS: certificates of the node and of its clients, renewed while it runs.
mod tls;

// Clients that dawdle, and more of them than a node takes.
mod slow_clients;

// Clients that do not read their answers: memory stays bounded, and others are answered.
mod hostile_clients;

// Who may call what, by tokens; where a node listens without them.
mod tokens;

// Each bad configuration is refused in its exact words, each good one loads.
mod config_fixtures;

// Exit codes and output of the commands.
mod cli;

// Redis absent or frozen: answers all the same, and the store again when it is back.
mod redis_away;

// Health reports why a shard makes no charges, and a failure to connect names its cause.
mod redis_health;

// Servers that send what no Redis sends: endless answers, long errors, slots that overlap.
mod redis_hostile;

// What another program writes at Tollgate's keys is rejected for that key alone, and a reset ends it.
mod corrupt_keys;

// A Redis that asks who one is: users, passwords that change, TLS.
mod redis_auth;

// The user in Redis that the document describes: all that a node needs, and nothing else.
mod redis_acl;

// Two nodes on a six-node cluster: exactly the limit, one call a check, none for a known denial.
mod exact_on_cluster;

// Failovers, flushed scripts: what the server did not execute is asked again, what it may have is not.
mod redirections;

// A cluster whose nodes change is found again.
mod discovery;

// One fault of a cluster after the other under load: always answered, never twice, never over.
mod faults;

// The pure core: never over, barely under, exact waits, on every step of random histories.
mod window_properties;

// What a key counted in Redis: one String, whose columns come and go with the quotas.
mod window_columns;

mod pair_columns;

// Deny, allow and override: which entry answers a key.
mod lists;

// Policies that only watch.
mod shadow;

// Quotas that a check brings along.
mod inline;

// What a file does with a key, and by which line.
mod explain;

// Faults of comparable services, each with a test.
mod faults_seen_elsewhere;

// The same, of what is charged and what is not.
mod faults_of_charging;

// What people use today, as policies on each store, with the flaw fixed.
mod replaced_systems;

// The sliding log: no interval over, its clock, its bounds, who caused what.
mod sliding_log;

// Fixed windows, token buckets and sliding logs against naive models; rows of the systems they replace.
mod algorithms;

// What is taken back, by id, by cost or as a reservation: exactly that, against naive models.
mod refund_properties;

// The embedded store and Redis answer alike, in every member, on every sequence.
mod stores_alike;

// Names and lives of the keys in Redis.
mod redis_keys;

// Nodes whose clocks are wrong, or jump.
mod clocks;

// The pre-filter against the store beside it, over several nodes, with answers late and out of order.
mod prefilter_sound;

// A check with an id: retried as often as one likes, charged once.
mod retries;

// Refunds and resets: exactly that, at once, and on the other nodes soon.
mod refunds;

// Several keys, all charged or none, whoever else asks meanwhile.
mod all_at_once;

// Millions of everything a store can be asked: nothing negative, nothing without an end, nothing left.
mod long_run;

// Days, weeks, months and years of a time zone, across whatever clocks there do.
mod calendar;

// What policies would have said to the requests of a log.
mod replay;

// Traces, as a real OTLP receiver gets them.
mod telemetry_traces;

// An OTLP endpoint that is away, and what the log says.
mod telemetry_faults;

// A log that nobody reads.
mod telemetry_log;

// The metrics: all names, bounded series, in agreement with health and policies.
mod telemetry_metrics;

// The description of the interface, held to the routes and to real answers.
mod openapi;

// Checks charged together, ids, refunds and resets in metrics and traces.
mod telemetry_ops;

// The rules, the dashboard and the manual speak of metrics that exist.
mod telemetry_rules;
