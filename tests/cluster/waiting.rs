//! A long line on a cluster: many callers wait for their starts, through two nodes.
//! `TOLLGATE_WAITERS` is another number of callers, such as 10000.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test has no clock of its own, and prints figures"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::chaos::slot_of;
use crate::support::http::{self, Connection};
use crate::support::{Node, cluster, config_on, unique, wait_until};

const BURST: u64 = 5;
const CONNECTIONS: usize = 64;

/// The calls of a key, as its primary executes them.
struct Monitor {
    stream: TcpStream,
    lines: JoinHandle<Vec<String>>,
}

impl Monitor {
    fn of(key: &str) -> Self {
        let cluster = cluster::shared();
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.port(cluster.owner(slot_of(key))))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let (mut reader, mut started) = (BufReader::new(stream.try_clone().unwrap()), String::new());
        reader.read_line(&mut started).unwrap();
        assert_eq!(started.trim(), "+OK");
        let key = key.to_owned();
        let is_call = move |line: &String| line.contains(&key) && !line.contains(" lua] ");
        let lines = thread::spawn(move || reader.lines().map_while(Result::ok).filter(is_call).collect());
        Self { stream, lines }
    }

    fn end(self) -> Vec<String> {
        self.stream.shutdown(Shutdown::Both).unwrap();
        self.lines.join().unwrap()
    }
}

/// When a caller may start, and how long the answer took, us.
#[derive(Debug, Clone, Copy)]
struct Told {
    start: u64,
    took: u64,
    has_waited: bool,
}

/// A line of one key, which callers see by one clock.
struct Line {
    nodes: [Node; 2],
    key: String,
    clock: Instant,
}

impl Line {
    /// A bucket gives a unit in each interval, us.
    fn with(interval: u64) -> Self {
        let rate = 1_000_000 / interval;
        let policy = format!(
            "{{algorithm: token-bucket, quotas: [{{rate: {rate} per 1s, burst: {BURST}}}], timeout: 10s, wait: {{queue: 100000}}}}"
        );
        let file = config_on(&cluster::shared().seeds(), &format!("policies: {{default: {policy}, warm: {policy}}}\n"));
        let nodes = [(); 2].map(|()| Node::with_config(&file));
        let line = Self { nodes, key: unique("line"), clock: Instant::now() };
        for node in &line.nodes {
            let ready = || node.post("/v1/check", &json!({"key": "k", "cost": 0})).json()["source"] == "store";
            wait_until("the store decides", ready);
            // The shard then knows the script.
            let warm = json!({"policy": "warm", "key": line.key, "wait_ms": 60_000, "id": "warm"});
            assert_eq!(node.post("/v1/check", &warm).json()["source"], "store");
        }
        line
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_micros()).unwrap()
    }

    fn take(&self, connection: &mut Connection, number: usize) -> Told {
        let body = json!({"key": self.key, "wait_ms": 3_600_000, "id": format!("w-{number}-")}).to_string();
        let sent = self.micros();
        connection.send(&http::json_request("/v1/check", body.as_bytes())).unwrap();
        let answer = connection.receive(true).unwrap().json();
        let received = self.micros();
        assert_eq!((&answer["allowed"], &answer["source"]), (&json!(true), &json!("store")), "{answer}");
        let wait = 1000 * answer["start_in_ms"].as_u64().unwrap();
        Told { start: received + wait, took: received - sent, has_waited: wait > 0 }
    }

    fn take_alone(&self, number: usize) -> Told {
        self.take(&mut Connection::open(&self.nodes[number % 2].address).unwrap(), number)
    }

    /// Sends the checks of all callers over some connections. Each answer is passed on at once.
    fn take_all(&self, callers: usize, on_answer: impl Fn(usize, Told) + Sync) {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for place in 0..CONNECTIONS {
                let (next, on_answer) = (&next, &on_answer);
                scope.spawn(move || {
                    let mut connection = Connection::open(&self.nodes[place % 2].address).unwrap();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= callers {
                            return;
                        }
                        on_answer(number, self.take(&mut connection, number));
                    }
                });
            }
        });
    }

    fn refund(&self, number: usize) -> Value {
        let body = json!({"policy": "default", "key": self.key, "id": format!("w-{number}-")});
        self.nodes[0].post("/v1/refund", &body).json()["refunded"].take()
    }
}

/// The numbers of the callers, in the order of the shard.
fn order(calls: &[String]) -> Vec<usize> {
    let number = |line: &String| line.split("w-").nth(1)?.split('-').next()?.parse().ok();
    calls.iter().map(|line| number(line).unwrap_or_else(|| panic!("no caller: {line}"))).collect()
}

#[test]
fn starts_of_a_long_line_keep_rate_and_order_and_nobody_polls() {
    let callers: usize = std::env::var("TOLLGATE_WAITERS").map_or(2000, |text| text.parse().unwrap());
    let interval = if callers > 2000 { 2000 } else { 5000 };
    let line = Line::with(interval);
    let monitor = Monitor::of(&line.key);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let (told, woken) = (std::sync::Mutex::new(BTreeMap::new()), std::sync::Mutex::new(Vec::new()));
    line.take_all(callers, |number, place: Told| {
        told.lock().unwrap().insert(number, place);
        let (clock, due) = (line.clock, Duration::from_micros(place.start));
        let woken_at = runtime.spawn(async move {
            tokio::time::sleep_until((clock + due).into()).await;
            u64::try_from(clock.elapsed().as_micros()).unwrap()
        });
        woken.lock().unwrap().push((place, woken_at));
    });
    let asked_for = line.micros();
    let mut starts = Vec::new();
    let mut spread = 0;
    for (place, woken_at) in woken.into_inner().unwrap() {
        let start = runtime.block_on(woken_at).unwrap();
        assert!(start >= place.start, "{start} is before {place:?}");
        spread = spread.max(place.took + start - place.start);
        starts.push(start);
    }
    let calls = monitor.end();
    let told = told.into_inner().unwrap();

    // Nobody asks twice.
    assert_eq!(calls.len(), callers);
    // Never more than burst + rate x t, with a ms for rounding and the spread of the delays.
    starts.sort_unstable();
    for (first, begin) in starts.iter().enumerate() {
        for (more, end) in (1..).zip(&starts[first..]) {
            let most = BURST + (end - begin + 1000 + spread) / interval;
            assert!(more <= most, "{more} starts in {} us, with a spread of {spread} us", end - begin);
        }
    }
    // From the first caller that waits, the shard gives one start in each interval, in its order.
    // So the answers differ from that by their own delay and the rounding only.
    let order = order(&calls);
    let at_once = order.iter().rposition(|number| !told[number].has_waited).unwrap();
    assert!(at_once < callers / 10, "{at_once} callers did not wait");
    let delay = |(place, number): (u64, &usize)| i128::from(told[number].start) - i128::from(place * interval);
    let delays: Vec<i128> = (0..).zip(&order[at_once + 1..]).map(delay).collect();
    let range = delays.iter().max().unwrap() - delays.iter().min().unwrap();
    let longest = told.values().map(|place| place.took).max().unwrap();
    assert!(range <= i128::from(longest) + 1000, "{range} us, and answers took up to {longest} us");
    let length = starts[starts.len() - 1] - starts[0];
    eprintln!(
        "{callers} callers asked within {asked_for} us and started within {length} us. The longest answer took \
         {longest} us, the spread of starts is {spread} us, and that of the shard's order {range} us."
    );
}

#[test]
fn callers_that_leave_move_no_other_start() {
    const CALLERS: usize = 400;
    const INTERVAL: u64 = 100_000;
    let line = Line::with(INTERVAL);
    let told = std::sync::Mutex::new(BTreeMap::new());
    line.take_all(CALLERS, |number, place| _ = told.lock().unwrap().insert(number, place));
    let told = told.into_inner().unwrap();
    let equal = |one: Told, other: Told| one.start.abs_diff(other.start) <= 1000 + one.took + other.took;

    // The odd callers crash, and say nothing. A repetition has the place of the others.
    for number in (0..CALLERS).step_by(2).filter(|number| told[number].start > line.micros() + INTERVAL) {
        let again = line.take_alone(number);
        assert!(equal(again, told[&number]), "{number}: {again:?} and {:?}", told[&number]);
    }
    // A place in the middle is lost, and the last one is used again.
    let by_start = |number: &usize| told[number].start;
    let last = (0..CALLERS).max_by_key(by_start).unwrap();
    let middle = (0..CALLERS)
        .filter(|number| told[number].start < told[&last].start - 10 * INTERVAL)
        .max_by_key(by_start);
    assert_eq!(line.refund(middle.unwrap()), 0);
    assert_eq!(line.refund(last), 1);
    let next = line.take_alone(CALLERS);
    assert!(equal(next, told[&last]), "{next:?} and {:?}", told[&last]);
    let behind = line.take_alone(CALLERS + 1);
    assert!(behind.start + 1000 + next.took >= next.start + INTERVAL, "{behind:?} behind {next:?}");
}
