//! Random histories of changes and faults against a plain map: two nodes, one Redis, and what can
//! happen to them, two at once. `TOLLGATE_OVERRIDE_HISTORIES` sets their number, `TOLLGATE_SEED` the
//! first.

#![expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::dice::Dice;
use crate::support::proxy::Proxy;
use crate::support::redis::Server;
use crate::support::{Node, config_on, free_port, http};

/// Steps of a history.
const STEPS: usize = 14;

/// Histories at once.
const THREADS: u64 = 2;

const POLICIES: &str = "
plans: {pro: {quotas: [1000 per 1h]}}
policies:
  p: {key: {type: ip}, quotas: [5 per 1h], timeout: 300ms}
  q: {quotas: [5 per 1h], timeout: 300ms}
";

/// What decides without an override.
const NONE: &str = "5";

/// How long after a change or a fault each node that reaches Redis must decide by the map.
const SOON: Duration = Duration::from_millis(1200);

/// A match, and what the map knows of it.
struct Match {
    policy: &'static str,
    pattern: Value,
    /// A key that it matches.
    key: &'static str,
    /// What may decide: one value, unless a call of unknown fate or a documented loss left more.
    may: BTreeSet<String>,
    /// All that has ever decided.
    ever: BTreeSet<String>,
    /// When the override ends, and what it decides until then.
    ends: Option<(Instant, String)>,
    /// Which nodes surely have the last change, and whether Redis has it.
    holders: [bool; 2],
    in_redis: bool,
}

impl Match {
    fn new((policy, kind, text, key): (&'static str, &str, &str, &'static str)) -> Self {
        let may = BTreeSet::from([NONE.to_owned()]);
        let (pattern, ever) = (json!({kind: text}), may.clone());
        Self { policy, pattern, key, may, ever, ends: None, holders: [true; 2], in_redis: true }
    }

    /// Notes a change by a node.
    fn changed(&mut self, node: usize, is_done: bool, value: &str, ends: Option<Instant>) {
        if is_done {
            self.may.clear();
            self.holders = [node == 0, node == 1];
            self.in_redis = true;
            self.ends = None;
        }
        self.may.insert(value.to_owned());
        self.ever.insert(value.to_owned());
        if let Some(ends) = ends {
            self.ends = Some((ends, value.to_owned()));
            self.may.insert(NONE.to_owned());
        }
    }

    /// A change that nobody has any more may be undone: only nodes that ran through restore.
    fn note_loss(&mut self) {
        if !self.in_redis && self.holders == [false; 2] {
            self.may.clone_from(&self.ever);
        }
    }
}

struct History {
    seed: u64,
    dice: Dice,
    server: Server,
    /// A replica that was cut off, and which matches had changed since.
    fork: Option<(Server, BTreeSet<usize>)>,
    proxies: [Proxy; 2],
    nodes: [Node; 2],
    is_cut: [bool; 2],
    matches: Vec<Match>,
    since: Instant,
    next: u64,
    told: Vec<String>,
}

fn node(proxy: &Proxy) -> Node {
    Node::with_config(config_on(&[proxy.url()], POLICIES))
}

fn server() -> Server {
    Server::start_with(&["--repl-diskless-sync-delay", "0"])
}

fn run(server: &Server, command: &[&str]) {
    redis::cmd(command[0]).arg(&command[1..]).exec(&mut server.connection().unwrap()).unwrap();
}

/// Deletes the keys of a kind in all parts.
fn delete(server: &Server, pattern: &str) {
    let mut connection = server.connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query(&mut connection).unwrap();
    if !keys.is_empty() {
        redis::cmd("DEL").arg(keys).exec(&mut connection).unwrap();
    }
}

impl History {
    fn start(seed: u64) -> Self {
        let server = server();
        let proxies = [Proxy::start(server.port), Proxy::start(server.port)];
        let nodes = [node(&proxies[0]), node(&proxies[1])];
        let matches = [
            ("q", "key", "k0", "k0"),
            ("q", "key", "k1", "k1"),
            ("q", "key", "k2", "k2"),
            ("q", "prefix", "team:", "team:a"),
            ("p", "cidr", "192.0.2.0/24", "192.0.2.7"),
        ];
        let matches = matches.map(Match::new).into();
        let (dice, since) = (Dice::new(seed), Instant::now());
        Self {
            seed,
            dice,
            server,
            fork: None,
            proxies,
            nodes,
            is_cut: [false; 2],
            matches,
            since,
            next: 10,
            told: Vec::new(),
        }
    }

    fn tell(&mut self, text: String) {
        self.told.push(text);
        self.since = Instant::now();
    }

    /// What decides for a match at a node; none while the fallback answers.
    fn decides(&self, node: usize, place: usize) -> Option<String> {
        let Match { policy, key, .. } = &self.matches[place];
        let decision = self.nodes[node].check(policy, key, 0);
        match (decision["source"].as_str(), decision["reason"].as_str()) {
            (_, Some("deny_listed")) => Some("deny".to_owned()),
            (_, Some("allow_listed")) => Some("allow".to_owned()),
            (Some("fallback"), _) => None,
            _ => Some(decision["limit"].to_string()),
        }
    }

    /// Steps until there was a difference.
    fn fail(&self, why: &str) -> ! {
        let healths: Vec<_> = (0..2).map(|node| self.nodes[node].health().to_string()).collect();
        panic!("seed {}: {why}\n{}\n{}", self.seed, self.told.join("\n"), healths.join("\n"));
    }

    fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let started = Instant::now();
        while !condition() {
            if started.elapsed() > Duration::from_secs(20) {
                self.fail(&format!("waited in vain until {what}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A random change of a match, as a body and the value that decides then.
    fn change(&mut self, place: usize) -> (&'static str, Value, String, Option<Duration>) {
        let mut body = json!({"match": self.matches[place].pattern});
        if self.dice.below(3) == 0 {
            return ("DELETE", body, NONE.to_owned(), None);
        }
        body["lower"] = json!(true);
        let mut ends = None;
        let value = match self.dice.below(6) {
            0 => {
                body["deny"] = json!(true);
                "deny".to_owned()
            }
            1 => {
                body["allow"] = json!(true);
                "allow".to_owned()
            }
            2 => {
                body["plan"] = json!("pro");
                "1000".to_owned()
            }
            _ => {
                self.next += 1;
                body["quotas"] = json!([format!("{} per 1h", self.next)]);
                ends = (self.dice.below(3) == 0).then(|| Duration::from_millis(500 + self.dice.below(2500)));
                self.next.to_string()
            }
        };
        if let Some(ends) = ends {
            body["expires_in_ms"] = json!(ends.as_millis() as u64);
        }
        ("PUT", body, value, ends)
    }

    fn send(&self, node: usize, place: usize, method: &str, body: &Value) -> bool {
        let path = format!("/v1/overrides/{}", self.matches[place].policy);
        let answer = http::call(&self.nodes[node].address, method, &path, None, &body.to_string());
        if !matches!(answer.status, 200 | 503) {
            self.fail(&format!("{method} {body}: {answer:?}"));
        }
        answer.status == 200
    }

    fn change_one(&mut self) {
        let (node, place) = (self.dice.place(2), self.dice.place(self.matches.len()));
        let (method, body, value, ends) = self.change(place);
        let is_done = self.send(node, place, method, &body);
        self.note_change(node, place, is_done, &value, ends);
        self.tell(format!("node {node}: {method} {body} {}", if is_done { "done" } else { "unknown" }));
    }

    fn note_change(&mut self, node: usize, place: usize, is_done: bool, value: &str, ends: Option<Duration>) {
        self.matches[place].changed(node, is_done, value, ends.map(|ends| Instant::now() + ends));
        if let Some((_, changed)) = &mut self.fork {
            changed.insert(place);
        }
    }

    /// Two nodes change one match at once: one of them wins, at both.
    fn change_at_once(&mut self) {
        let place = self.dice.place(self.matches.len());
        let changes = [self.change(place), self.change(place)];
        let this = &*self;
        let done: Vec<bool> = std::thread::scope(|scope| {
            let sent: Vec<_> = changes
                .iter()
                .enumerate()
                .map(|(node, (method, body, ..))| scope.spawn(move || this.send(node, place, method, body)))
                .collect();
            sent.into_iter().map(|sent| sent.join().unwrap()).collect()
        });
        let before = self.matches[place].may.clone();
        for (node, (_, _, value, ends)) in changes.iter().enumerate() {
            self.note_change(node, place, done[node], value, *ends);
        }
        let known = &mut self.matches[place];
        known.may.extend(changes.iter().map(|(_, _, value, _)| value.clone()));
        if done == [false; 2] {
            known.may.extend(before);
        }
        // Nobody knows which node has the last one.
        known.holders = [false; 2];
        self.tell(format!("at once: {} and {} at match {place}: {done:?}", changes[0].1, changes[1].1));
    }

    fn lose(&mut self) {
        let names = [
            "FLUSHALL",
            "FLUSHDB ASYNC",
            "*",
            "*records",
            "*state",
            "*changes",
            "*ends",
            "*removals",
            "an empty restart",
        ];
        let name = *self.dice.one_of(&names);
        self.lose_by(name);
        self.tell(format!("Redis lost {name}"));
    }

    fn lose_by(&mut self, name: &str) {
        match name {
            "FLUSHALL" => run(&self.server, &["FLUSHALL"]),
            "FLUSHDB ASYNC" => run(&self.server, &["FLUSHDB", "ASYNC"]),
            "an empty restart" => {
                let new = server();
                std::mem::replace(&mut self.server, new).end();
                self.lead();
            }
            kind => delete(&self.server, kind),
        }
        for known in &mut self.matches {
            known.in_redis = false;
            known.note_loss();
        }
    }

    /// Leads the nodes that are not cut off to the server.
    fn lead(&self) {
        for (proxy, is_cut) in self.proxies.iter().zip(self.is_cut) {
            if !is_cut {
                proxy.lead_to(self.server.port);
                proxy.cut();
            }
        }
    }

    /// A replica loses its primary, so that a later failover loses all changes from now on.
    fn cut_replica(&mut self) {
        let replica = server();
        run(&replica, &["REPLICAOF", "127.0.0.1", &self.server.port.to_string()]);
        self.wait_until("the replica is in step", || replica.info("replication").contains("master_link_status:up"));
        run(&replica, &["REPLICAOF", "NO", "ONE"]);
        self.fork = Some((replica, BTreeSet::new()));
        self.tell("the replica was cut off".to_owned());
    }

    fn fail_over(&mut self) {
        let Some((replica, changed)) = self.fork.take() else { return self.cut_replica() };
        std::mem::replace(&mut self.server, replica).end();
        self.lead();
        for place in &changed {
            self.matches[*place].in_redis = false;
            self.matches[*place].note_loss();
        }
        self.tell(format!("a failover lost the changes of {changed:?}"));
    }

    fn restart(&mut self) {
        let place = self.dice.place(2);
        let old = std::mem::replace(&mut self.nodes[place], node(&self.proxies[place]));
        drop(old);
        for known in &mut self.matches {
            known.holders[place] = false;
            known.note_loss();
        }
        self.tell(format!("node {place} was replaced"));
    }

    /// A node restarts while Redis loses its data.
    fn restart_and_lose(&mut self) {
        let place = self.dice.place(2);
        let proxy = &self.proxies[place];
        let started = std::thread::scope(|scope| {
            let started = scope.spawn(|| node(proxy));
            run(&self.server, &["FLUSHALL"]);
            started.join().unwrap()
        });
        self.nodes[place] = started;
        for known in &mut self.matches {
            (known.in_redis, known.holders[place]) = (false, false);
            known.note_loss();
        }
        self.tell(format!("node {place} was replaced while Redis lost FLUSHALL"));
    }

    /// A change and a loss at once: the writer has the change, if it was told so.
    fn change_and_lose(&mut self) {
        let (node, place) = (self.dice.place(2), self.dice.place(self.matches.len()));
        let (method, body, value, ends) = self.change(place);
        let is_done = std::thread::scope(|scope| {
            let this = &*self;
            let sent = scope.spawn(|| this.send(node, place, method, &body));
            run(&this.server, &["FLUSHALL"]);
            sent.join().unwrap()
        });
        self.note_change(node, place, is_done, &value, ends);
        for known in &mut self.matches {
            known.in_redis = false;
            known.note_loss();
        }
        self.tell(format!("at once: FLUSHALL, and node {node}: {method} {body} {is_done}"));
    }

    fn cut_or_heal(&mut self) {
        match self.is_cut.iter().position(|is_cut| *is_cut) {
            Some(node) => self.heal(node),
            None => {
                let node = self.dice.place(2);
                self.is_cut[node] = true;
                if self.dice.below(2) == 0 {
                    self.proxies[node].fall_silent();
                    self.tell(format!("node {node} hears nothing"));
                } else {
                    self.proxies[node].lead_to(free_port());
                    self.proxies[node].cut();
                    self.tell(format!("node {node} is cut off"));
                }
            }
        }
    }

    fn heal(&mut self, node: usize) {
        self.is_cut[node] = false;
        self.proxies[node].delay(0);
        self.proxies[node].lead_to(self.server.port);
        self.proxies[node].cut();
        self.tell(format!("node {node} reaches Redis"));
    }

    /// From a second after the last event on, nodes that reach Redis decide by the map.
    fn look(&mut self) {
        self.wait_until("a second has passed", || self.since.elapsed() > SOON);
        for node in 0..2 {
            // A connection that was cut takes as long as a fallback to come back.
            if self.is_cut[node] || self.nodes[node].health()["status"] != "ok" {
                continue;
            }
            for (place, known) in self.matches.iter().enumerate() {
                let found = self.decides(node, place);
                // Only a node that is cut off may have it: `docs/guarantees.md`, "Changed limits".
                let is_away = !known.in_redis && !known.holders[node] && self.is_cut.contains(&true);
                let may = if is_away { &known.ever } else { &known.may };
                if !found.as_ref().is_none_or(|found| may.contains(found)) {
                    self.fail(&format!("node {node} decides match {place} by {found:?}, not by {may:?}"));
                }
            }
        }
        self.told.push("looked".to_owned());
    }

    /// The record, the end and the removal that Redis has for a match.
    fn kept(&self, place: usize) -> [Option<String>; 3] {
        let Match { policy, pattern, .. } = &self.matches[place];
        let (kind, text) = pattern.as_object().unwrap().iter().next().unwrap();
        let name = format!("{policy}\0{kind}:{}", text.as_str().unwrap());
        let part = tollgate::store::redis::Registry::part(&name);
        let ask = |command: &str, what: &str| {
            let key = format!("{{ratelimit:%o{part}:}}{what}");
            redis::cmd(command).arg(key).arg(&name).query(&mut self.server.connection().unwrap()).unwrap()
        };
        [ask("HGET", "records"), ask("ZSCORE", "ends"), ask("ZSCORE", "removals")]
    }

    /// Both nodes and Redis equal the map.
    fn settle(&mut self) {
        (0..2)
            .filter(|node| self.is_cut[*node])
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|node| self.heal(node));
        let last = self.matches.iter().filter_map(|known| known.ends.as_ref().map(|(ends, _)| *ends)).max();
        self.wait_until("all ends are over", || last.is_none_or(|last| last < Instant::now()));
        for known in &mut self.matches {
            if let Some((_, value)) = known.ends.take() {
                known.may.remove(&value);
            }
        }
        for node in 0..2 {
            self.wait_until("health is ok", || self.nodes[node].health()["status"] == "ok");
        }
        for place in 0..self.matches.len() {
            let found = self.agreed(place);
            let known = &mut self.matches[place];
            known.may = BTreeSet::from([found]);
            (known.holders, known.in_redis) = ([true; 2], true);
        }
        self.told
            .push(format!("equal: {:?}", self.matches.iter().map(|known| &known.may).collect::<Vec<_>>()));
    }

    /// What both nodes and Redis say of a match.
    fn agreed(&self, place: usize) -> String {
        let (may, started) = (&self.matches[place].may, Instant::now());
        loop {
            let found = [self.decides(0, place), self.decides(1, place)];
            let kept = self.kept(place);
            if let [Some(one), Some(other)] = &found
                && (one == other && may.contains(one) && kept[0].is_some() == (one != NONE))
            {
                return one.clone();
            }
            if started.elapsed() > Duration::from_secs(20) {
                self.fail(&format!("match {place} may be {may:?}, not {found:?}, in Redis: {kept:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            match self.dice.below(24) {
                0..=9 => self.change_one(),
                10 => self.change_at_once(),
                11..=13 => self.lose(),
                14..=15 => self.fail_over(),
                16 => self.restart(),
                17 => self.restart_and_lose(),
                18 => self.change_and_lose(),
                19..=20 => self.cut_or_heal(),
                21..=22 => self.look(),
                _ => self.settle(),
            }
        }
        self.settle();
    }
}

#[test]
fn random_histories_of_changes_and_faults_equal_a_plain_map() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, count) = (number("TOLLGATE_SEED", 1), number("TOLLGATE_OVERRIDE_HISTORIES", 24));
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(count) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    History::start(seed).run();
                }
            });
        }
    });
}
