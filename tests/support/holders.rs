//! Many clients that hold places of one key, and the spans of their holds.
//!
//! A client notes the beginning of a span after the answer to its check, and the end before its
//! settle. All clocks are that of the machine. So each span lies within the one that the shard sees,
//! and as many spans as overlap are open at the shard.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::chaos::now_ms;
use super::http::{self, Connection};
use super::unique;

/// The places of each key.
pub(crate) const PLACES: usize = 7;

/// Clients, over all nodes.
pub(crate) const CLIENTS: usize = 256;

/// A policy of [`PLACES`] places.
pub(crate) fn policy(ttl: &str, options: &str) -> String {
    format!("policies:\n  places: {{hold: {{ttl: {ttl}, in_flight: {PLACES}}}, {options}}}")
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Instants in us, and 1 for a beginning or -1 for an end.
    spans: Vec<(u64, i32)>,
    /// Checks without a place.
    pub(crate) denied: u64,
    /// Calls without an answer, settles among them.
    pub(crate) failed: u64,
}

impl Held {
    pub(crate) fn spans(&self) -> usize {
        self.spans.len() / 2
    }

    /// The most spans at any instant. Ends come first, since a place is free before the next check.
    pub(crate) fn most(&mut self) -> i32 {
        self.spans.sort_unstable();
        let (mut open, mut most) = (0, 0);
        for (_, change) in &self.spans {
            open += change;
            most = most.max(open);
        }
        most
    }

    /// The spans that have begun after `at`, us.
    pub(crate) fn begun_after(&self, at: u64) -> usize {
        self.spans.iter().filter(|(begun, change)| *change > 0 && *begun > at).count()
    }
}

/// us.
#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
pub(crate) fn now_us() -> u64 {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    u64::try_from(START.elapsed().as_micros()).unwrap()
}

/// Clients of the nodes take places of `key`, and give them back after up to 40 ms. Meanwhile
/// `during` runs. A hold without a settle counts until its `ttl`, ms, at most.
pub(crate) fn hammer(nodes: &[String], key: &str, ttl: u64, during: impl FnOnce()) -> Held {
    let (ends, all) = (AtomicBool::new(false), Mutex::new(Held::default()));
    let number = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (ends, all, number, node) = (&ends, &all, &number, &nodes[client % nodes.len()]);
            scope.spawn(move || {
                let (mut connection, mut held) = (None, Held::default());
                while !ends.load(Ordering::Relaxed) {
                    let id = format!("{client}-{}", number.fetch_add(1, Ordering::Relaxed));
                    let body = json!({"policy": "places", "key": key, "id": id});
                    let sent = now_us();
                    let answer = call(&mut connection, node, "/v1/check", &body);
                    let begun = now_us();
                    match answer {
                        Some(answer) if answer["allowed"] == true && answer["source"] == "store" => {
                            std::thread::sleep(Duration::from_micros((begun ^ client as u64) % 40_000));
                            // The hold may have expired if this thread got no CPU.
                            let end = now_us().min(sent + 1000 * ttl).max(begun);
                            held.spans.extend([(begun, 1), (end, -1)]);
                            // A settle may be repeated.
                            let settled = (0..3).any(|_| {
                                let answer = call(&mut connection, node, "/v1/settle", &body);
                                answer.is_some_and(|answer| answer["settled"].is_boolean())
                            });
                            held.failed += u64::from(!settled);
                        }
                        Some(answer) if answer["reason"] == "in_flight" => {
                            held.denied += 1;
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        _ => {
                            held.failed += 1;
                            std::thread::sleep(Duration::from_millis(20));
                        }
                    }
                }
                let mut all = all.lock().unwrap();
                all.spans.append(&mut held.spans);
                (all.denied, all.failed) = (all.denied + held.denied, all.failed + held.failed);
            });
        }
        let finishing = scopeguard::guard((), |()| ends.store(true, Ordering::Relaxed));
        during();
        drop(finishing);
    });
    all.into_inner().unwrap()
}

/// The answer of a node; none without one, or with another status.
fn call(connection: &mut Option<Connection>, node: &str, path: &str, body: &Value) -> Option<Value> {
    let request = http::json_request(path, body.to_string().as_bytes());
    let mut ask = || {
        if connection.is_none() {
            *connection = Some(Connection::open(node).ok()?);
        }
        let open = connection.as_mut()?;
        open.send(&request).ok()?;
        open.receive(true).ok()
    };
    let answer = ask();
    match answer {
        Some(answer) if answer.status == 200 => Some(answer.json()),
        Some(_) => None,
        None => {
            *connection = None;
            None
        }
    }
}

/// All places of a key are taken by clients that die, and taken again once they are free. Returns ms
/// from the last check of the dead ones until then.
pub(crate) fn abandon(node: &str) -> u64 {
    let key = unique("abandoned");
    let open = |id: String| {
        let body = json!({"policy": "places", "key": key, "id": id});
        call(&mut None, node, "/v1/check", &body).is_some_and(|answer| answer["allowed"] == true)
    };
    (0..PLACES).for_each(|place| assert!(open(format!("dead-{place}"))));
    let died = now_ms();
    let mut number = 0;
    for place in 0..PLACES {
        super::wait_until("a place is free again", || {
            number += 1;
            open(format!("live-{place}-{number}"))
        });
    }
    now_ms() - died
}
