//! The nodes, and the sum of their snapshots.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

use super::feed::{KeyName, KeyQuestion, News};
use super::snapshot::{Checks, Consumer, Denied, Held, Holder, KeyRow, Second, Server, Shard, Snapshot, Top};

/// The longest span that is shown, in seconds.
pub(super) const MOST_SECONDS: u64 = 15 * 60;

/// The most rows of any list of a snapshot, and the longest name in it, bytes. A node sends fewer.
const MOST_ROWS: usize = 1024;
const LONGEST_NAME: usize = 1024;

/// All nodes, in the order of the command line.
#[derive(Debug)]
pub(super) struct Fleet {
    nodes: Vec<FleetNode>,
}

#[derive(Debug, Default)]
struct FleetNode {
    url: String,
    /// The last snapshot, without its seconds; none while the connection is lost.
    last: Option<Snapshot>,
    /// The seconds of the last 15 minutes.
    seconds: VecDeque<Second>,
    /// The last answer to a question about keys.
    top: Option<(KeyQuestion, Top)>,
    /// The last answer about the holders of a key.
    holders: Option<(KeyName, Vec<Holder>)>,
    /// Whether it has ever sent a snapshot.
    was_heard: bool,
    /// Why there is no connection.
    lost: Option<String>,
    /// The counts that no line of `--json` has had.
    fresh: Counts,
}

/// Checks and units by policy, outcome and source.
type Counts = BTreeMap<(String, String, String), (u64, u64)>;

/// A question of the terminal.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) minutes: u64,
    /// None: all policies.
    pub(super) policy: Option<String>,
}

/// The sum over all nodes that answer. In a line for programs, absent members are not known.
#[derive(Debug, Default, Serialize)]
pub(super) struct Sum {
    /// The newest second.
    pub(super) at: u64,
    pub(super) nodes: Vec<NodeRow>,
    /// The worst of the nodes.
    #[serde(skip)]
    pub(super) status: String,
    /// The versions of the nodes' policies.
    #[serde(skip)]
    pub(super) versions: BTreeSet<String>,
    /// The names of all policies.
    #[serde(skip)]
    pub(super) policies: BTreeSet<String>,
    /// The slowest node in its newest second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p50_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99_us: Option<u64>,
    /// The most frequent first.
    #[serde(skip)]
    pub(super) decisions: Vec<Decisions>,
    /// The checks since the line before, only for lines.
    pub(super) checks: Vec<Checks>,
    pub(super) top: Vec<Denied>,
    pub(super) consumers: Vec<Consumer>,
    /// The most open holds first.
    pub(super) held: Vec<Held>,
    /// The holders of the chosen key, the newest first.
    #[serde(skip)]
    pub(super) holders: Vec<Holder>,
    /// The most checks first.
    #[serde(skip)]
    pub(super) by_policy: Vec<PolicyRow>,
    pub(super) shards: Vec<ShardRow>,
}

/// A node. Its state is absent while it does not answer.
#[derive(Debug, Serialize)]
pub(super) struct NodeRow {
    pub(super) url: String,
    pub(super) up: bool,
    /// Why it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uptime_s: Option<u64>,
    /// In its newest second.
    pub(super) rates: Rates,
}

/// Checks and units of one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Rates {
    pub(super) checks: u64,
    pub(super) denied: u64,
    /// Checks that a shadow policy would deny.
    pub(super) shadow: u64,
    /// Units of allowed checks.
    pub(super) units: u64,
}

/// The checks of a policy in the newest second of each node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PolicyRow {
    pub(super) policy: String,
    pub(super) rates: Rates,
}

/// The checks of one source and outcome.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decisions {
    pub(super) source: String,
    pub(super) outcome: String,
    /// In the newest second of each node.
    pub(super) rate: u64,
    /// In the whole span.
    pub(super) total: u64,
    /// Each second of the span, the oldest first. The newest one is left out, since some nodes may
    /// still lack it.
    pub(super) history: Vec<u64>,
}

/// A primary, as all nodes see it.
#[derive(Debug, Default, Serialize)]
pub(super) struct ShardRow {
    pub(super) address: String,
    /// The nodes that know it.
    pub(super) nodes: usize,
    /// The nodes that reach it.
    pub(super) up: usize,
    /// The nodes whose breaker is open.
    pub(super) open: usize,
    pub(super) queued: u64,
    /// The largest difference from a node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) clock_offset_us: Option<i64>,
    pub(super) errors: u64,
    pub(super) server: Server,
}

impl Fleet {
    pub(super) fn new(urls: impl Iterator<Item = String>) -> Self {
        Self { nodes: urls.map(|url| FleetNode { url, ..FleetNode::default() }).collect() }
    }

    /// Takes in the news of the node at `place`.
    pub(super) fn note(&mut self, place: usize, news: News) {
        let Some(node) = self.nodes.get_mut(place) else { return };
        match news {
            News::Snapshot(snapshot) => node.note(*snapshot),
            News::Top(question, top) => node.top = Some((question, top)),
            News::Holders(name, holders) => node.holders = Some((name, holders)),
            News::Lost(reason) => {
                (node.last, node.top, node.holders, node.lost) = (None, None, None, Some(reason));
            }
        }
    }

    /// Why no node has ever sent a snapshot; none if one has.
    pub(super) fn unheard(&self) -> Option<String> {
        let reason = |node: &FleetNode| format!("{}: {}", node.url, node.lost.as_deref().unwrap_or("no answer yet"));
        let is_unheard = self.nodes.iter().all(|node| !node.was_heard);
        is_unheard.then(|| self.nodes.iter().map(reason).collect::<Vec<_>>().join("; "))
    }

    /// The holders of a key, by the node that lists most: nodes that share a store list the same.
    pub(super) fn holders(&self, name: &KeyName) -> &[Holder] {
        let told = self.nodes.iter().filter_map(|node| node.holders.as_ref());
        let lists = told.filter(|(of, _)| of == name).map(|(_, holders)| &holders[..]);
        lists.max_by_key(|holders| holders.len()).unwrap_or_default()
    }

    /// The sum of all nodes over a span.
    pub(super) fn sum(&self, span: &Span) -> Sum {
        let answering = || self.nodes.iter().filter_map(|node| Some((node, node.last.as_ref()?)));
        let newest = || answering().filter_map(|(node, _)| node.seconds.back());
        let states = answering().map(|(_, last)| last.node.status.clone());
        let worst = states.max_by_key(|status| match status.as_str() {
            "ok" => 0,
            "degraded" => 1,
            _ => 2,
        });
        Sum {
            at: newest().map(|second| second.at).max().unwrap_or(0),
            nodes: self.nodes.iter().map(FleetNode::row).collect(),
            status: worst.unwrap_or_default(),
            versions: answering().map(|(_, last)| last.policies.version.clone()).collect(),
            policies: answering().flat_map(|(_, last)| last.policies.names.iter().cloned()).collect(),
            p50_us: newest().filter_map(|second| second.p50_us).max(),
            p99_us: newest().filter_map(|second| second.p99_us).max(),
            decisions: self.decisions(span),
            checks: Vec::new(),
            top: summed(answering().flat_map(|(node, last)| node.denied(span, last))),
            consumers: summed(answering().flat_map(|(node, last)| node.consumers(span, last))),
            held: held(span, answering().flat_map(|(_, last)| &last.held)),
            holders: Vec::new(),
            by_policy: by_policy(newest().flat_map(|second| &second.checks)),
            shards: summed_shards(answering().flat_map(|(_, last)| &last.store.shards)),
        }
    }

    fn decisions(&self, Span { minutes, policy }: &Span) -> Vec<Decisions> {
        let length = (minutes * 60).min(MOST_SECONDS);
        let newest = self.nodes.iter().filter_map(|node| node.seconds.back()).map(|second| second.at).max();
        let Some(end) = newest else { return Vec::new() };
        let begin = (end + 1).saturating_sub(length);
        let is_asked = |checks: &&Checks| policy.as_ref().is_none_or(|policy| *policy == checks.policy);
        let mut found: BTreeMap<(&str, &str), Decisions> = BTreeMap::new();
        for node in &self.nodes {
            let newest = node.seconds.back().filter(|_| node.last.is_some()).map(|second| second.at);
            for second in node.seconds.iter().filter(|second| second.at >= begin) {
                for checks in second.checks.iter().filter(is_asked) {
                    let row = found.entry((&checks.source, &checks.outcome)).or_insert_with(|| Decisions {
                        source: checks.source.clone(),
                        outcome: checks.outcome.clone(),
                        rate: 0,
                        total: 0,
                        history: vec![0; usize::try_from(length).unwrap_or(1) - 1],
                    });
                    row.total += checks.count;
                    row.rate += if newest == Some(second.at) { checks.count } else { 0 };
                    let place = usize::try_from(second.at - begin).unwrap_or(usize::MAX);
                    if let Some(counted) = row.history.get_mut(place) {
                        *counted += checks.count;
                    }
                }
            }
        }
        let mut rows: Vec<Decisions> = found.into_values().collect();
        rows.sort_by_key(|row| Reverse(row.total));
        rows
    }

    /// The counts since the last call, summed over all nodes.
    pub(super) fn take_fresh(&mut self) -> Vec<Checks> {
        let mut all = Counts::new();
        for (labels, (count, units)) in self.nodes.iter_mut().flat_map(|node| std::mem::take(&mut node.fresh)) {
            add(all.entry(labels).or_default(), count, units);
        }
        all.into_iter()
            .map(|((policy, outcome, source), (count, units))| Checks { policy, outcome, source, count, units })
            .collect()
    }
}

impl FleetNode {
    fn note(&mut self, mut snapshot: Snapshot) {
        bound(&mut snapshot);
        // A new connection sends seconds again.
        let known = self.seconds.back().map_or(0, |second| second.at);
        let mut last = known;
        let seconds = std::mem::take(&mut snapshot.seconds);
        let newest = seconds.last().map_or(0, |second| second.at);
        for second in seconds.into_iter().filter(|second| second.at > known) {
            if std::mem::replace(&mut last, second.at) >= second.at {
                continue;
            }
            // No line has the history of before the first snapshot.
            let is_new = known > 0 || second.at == newest;
            for Checks { policy, outcome, source, count, units } in second.checks.iter().filter(|_| is_new).cloned() {
                add(self.fresh.entry((policy, outcome, source)).or_default(), count, units);
            }
            self.seconds.push_back(second);
        }
        while self.seconds.front().is_some_and(|second| second.at.saturating_add(MOST_SECONDS) < newest) {
            self.seconds.pop_front();
        }
        (self.last, self.lost, self.was_heard) = (Some(snapshot), None, true);
    }

    /// The denied keys of a span: those of the snapshot, or the answer to the question.
    fn denied<'a>(&'a self, span: &Span, last: &'a Snapshot) -> &'a [Denied] {
        match span.question() {
            None => &last.top,
            Some(question) => self.answer(&question).map_or(&[], |top| &top.top),
        }
    }

    /// The keys of a span that used most.
    fn consumers<'a>(&'a self, span: &Span, last: &'a Snapshot) -> &'a [Consumer] {
        match span.question() {
            None => &last.consumers,
            Some(question) => self.answer(&question).map_or(&[], |top| &top.consumers),
        }
    }

    fn answer(&self, question: &KeyQuestion) -> Option<&Top> {
        self.top.as_ref().filter(|(asked, _)| asked == question).map(|(_, top)| top)
    }

    fn row(&self) -> NodeRow {
        let of = |member: fn(&Snapshot) -> String| self.last.as_ref().map(member);
        NodeRow {
            url: self.url.clone(),
            up: self.last.is_some(),
            reason: self.lost.clone().or_else(|| self.last.is_none().then(|| "no answer yet".to_owned())),
            status: of(|last| last.node.status.clone()),
            version: of(|last| last.node.version.clone()),
            uptime_s: self.last.as_ref().map(|last| last.node.uptime_s),
            rates: match (&self.last, self.seconds.back()) {
                (Some(_), Some(second)) => Rates::of(second.checks.iter()),
                _ => Rates::default(),
            },
        }
    }
}

impl Span {
    /// The question whose answer a snapshot does not have.
    pub(super) fn question(&self) -> Option<KeyQuestion> {
        let Self { minutes, policy } = self.clone();
        (minutes != 1 || policy.is_some()).then_some(KeyQuestion { minutes, policy })
    }
}

fn add((sum, sum_of_units): &mut (u64, u64), count: u64, units: u64) {
    (*sum, *sum_of_units) = (sum.saturating_add(count), sum_of_units.saturating_add(units));
}

impl Rates {
    fn of<'a>(checks: impl Iterator<Item = &'a Checks>) -> Self {
        checks.fold(Self::default(), |mut sum, Checks { outcome, count, units, .. }| {
            sum.checks = sum.checks.saturating_add(*count);
            match outcome.as_str() {
                "denied" | "error" => sum.denied = sum.denied.saturating_add(*count),
                outcome => {
                    sum.units = sum.units.saturating_add(*units);
                    sum.shadow = sum.shadow.saturating_add(if outcome == "shadow" { *count } else { 0 });
                }
            }
            sum
        })
    }
}

fn by_policy<'a>(checks: impl Iterator<Item = &'a Checks>) -> Vec<PolicyRow> {
    let mut found: BTreeMap<&str, Vec<&Checks>> = BTreeMap::new();
    checks.for_each(|checks| found.entry(&checks.policy).or_default().push(checks));
    let row = |(policy, checks): (&str, Vec<&Checks>)| PolicyRow {
        policy: policy.to_owned(),
        rates: Rates::of(checks.into_iter()),
    };
    let mut rows: Vec<PolicyRow> = found.into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.rates.checks));
    rows
}

/// Drops what no node of Tollgate sends: what answers may be another program.
fn bound(snapshot: &mut Snapshot) {
    let is_name = |name: &String| name.len() <= LONGEST_NAME;
    snapshot.top.truncate(MOST_ROWS);
    snapshot.consumers.truncate(MOST_ROWS);
    snapshot.held.truncate(MOST_ROWS);
    snapshot.policies.names.truncate(MOST_ROWS);
    snapshot.store.shards.truncate(MOST_ROWS);
    for Second { checks, .. } in &mut snapshot.seconds {
        checks.truncate(MOST_ROWS);
        checks.retain(|checks| [&checks.policy, &checks.outcome, &checks.source].into_iter().all(is_name));
        checks.shrink_to_fit();
    }
}

/// The rows of keys, the highest first. The same key of two nodes is one, where both show it or
/// have one secret for its hash.
fn summed<'a, R: KeyRow + 'a>(rows: impl Iterator<Item = &'a R>) -> Vec<R> {
    let mut found: BTreeMap<(&str, &str), R> = BTreeMap::new();
    for row in rows {
        match found.get_mut(&row.name()) {
            None => _ = found.insert(row.name(), row.clone()),
            Some(sum) => {
                let counts = row.clone().counts().map(|count| *count);
                sum.counts().into_iter().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
            }
        }
    }
    let mut rows: Vec<R> = found.into_values().collect();
    rows.sort_by_cached_key(|row| Reverse(*row.clone().counts()[0]));
    rows
}

/// The places of each key, as the node that heard of it last knows them.
fn held<'a>(span: &Span, rows: impl Iterator<Item = &'a Held>) -> Vec<Held> {
    let mut newest: BTreeMap<(&str, &str), &Held> = BTreeMap::new();
    for row in rows.filter(|row| span.policy.as_ref().is_none_or(|policy| *policy == row.policy)) {
        let known = newest.entry(row.name()).or_insert(row);
        if known.at_ms < row.at_ms {
            *known = row;
        }
    }
    let mut rows: Vec<Held> = newest.into_values().cloned().collect();
    rows.sort_by_key(|row| Reverse(row.in_flight));
    rows
}

fn summed_shards<'a>(shards: impl Iterator<Item = &'a Shard>) -> Vec<ShardRow> {
    let mut found: BTreeMap<&str, ShardRow> = BTreeMap::new();
    for shard in shards {
        let row = found.entry(&shard.address).or_default();
        row.address.clone_from(&shard.address);
        row.nodes += 1;
        row.up += usize::from(shard.up);
        row.open += usize::from(shard.breaker.as_deref() == Some("open"));
        row.queued += shard.queued.unwrap_or(0);
        row.errors += shard.errors.unwrap_or(0);
        let offsets = [row.clock_offset_us, shard.clock_offset_us].into_iter().flatten();
        row.clock_offset_us = offsets.max_by_key(|offset| offset.unsigned_abs());
        if let Some(server) = &shard.server {
            row.server = server.clone();
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A snapshot with the seconds from `at` on, each with these denied checks.
    fn snapshot(at: u64, denied: &[u64], key: Option<&str>) -> News {
        let second = |(at, count): (u64, &u64)| {
            json!({"at": at, "p50_us": at, "p99_us": 10 * at, "checks": [
                {"policy": "login", "outcome": "denied", "source": "prefilter", "count": count, "units": 9},
                {"policy": "other", "outcome": "allowed", "source": "store", "count": 1, "units": 4}]})
        };
        let shard = json!({"address": "127.0.0.1:7001", "up": at < 200, "breaker": "closed", "queued": 2,
            "clock_offset_us": -7, "errors": 1, "server": {"keys": 9}, "new_member": 1});
        let snapshot = json!({"at": at, "node": {"status": "ok", "version": "1"}, "later": {},
            "policies": {"version": "f3", "names": ["login", "other"]},
            "seconds": (at..).zip(denied).map(second).collect::<Vec<_>>(),
            "top": [{"policy": "login", "key": key, "key_hash": "9f", "denied": 10, "at_least": 8}],
            "consumers": [{"policy": "other", "key": key, "key_hash": "8e", "units": 40, "checks": 10}],
            "store": {"kind": "redis", "shards": [shard]}});
        News::Snapshot(serde_json::from_value(snapshot).unwrap())
    }

    fn fleet(nodes: usize) -> Fleet {
        Fleet::new((0..nodes).map(|node| format!("http://node-{node}")))
    }

    fn all(minutes: u64) -> Span {
        Span { minutes, policy: None }
    }

    fn denied(sum: &Sum) -> &Decisions {
        sum.decisions.iter().find(|row| row.outcome == "denied").unwrap()
    }

    #[test]
    fn nodes_are_summed() {
        let mut fleet = fleet(2);
        fleet.note(0, snapshot(100, &[5, 7], Some("k")));
        fleet.note(1, snapshot(100, &[1, 2, 3], Some("k")));
        let sum = fleet.sum(&all(1));
        assert_eq!((sum.at, sum.p50_us, sum.p99_us), (102, Some(102), Some(1020)));
        let row = denied(&sum);
        // The newest second of each node.
        assert_eq!((row.rate, row.total), (10, 18));
        assert_eq!((row.history.len(), &row.history[57..]), (59, &[6, 9][..]));
        assert_eq!((sum.top.len(), sum.top[0].denied, sum.top[0].at_least), (1, 20, 16));
        assert_eq!((sum.consumers.len(), sum.consumers[0].units, sum.consumers[0].checks), (1, 80, 20));
        let rates = |checks, denied, units| Rates { checks, denied, shadow: 0, units };
        let by_policy: Vec<_> = sum.by_policy.iter().map(|row| (row.policy.as_str(), row.rates)).collect();
        assert_eq!(by_policy, [("login", rates(10, 10, 0)), ("other", rates(2, 0, 8))]);
        assert_eq!([&sum.nodes[0], &sum.nodes[1]].map(|node| node.rates), [rates(8, 7, 4), rates(4, 3, 4)]);
        let shard = &sum.shards[0];
        assert_eq!((shard.nodes, shard.up, shard.queued, shard.errors), (2, 2, 4, 2));
        assert_eq!((shard.clock_offset_us, shard.server.keys), (Some(-7), Some(9)));
    }

    /// Another program may answer.
    #[test]
    fn snapshots_are_kept_in_bounded_memory() {
        let mut fleet = fleet(1);
        let check = json!({"policy": "p", "outcome": "denied", "source": "store", "count": 1});
        let long = json!({"policy": "x".repeat(5000), "outcome": "denied", "source": "store", "count": 1});
        let checks: Vec<_> = std::iter::once(long).chain((0..1100).map(|_| check.clone())).collect();
        for at in 1..4u64 {
            let seconds: Vec<_> = (0..3).map(|_| json!({"at": at, "checks": checks})).collect();
            let top = vec![json!({"policy": "p", "denied": 1}); 1100];
            let snapshot = json!({"seconds": seconds, "top": top, "policies": {"names": vec!["p"; 1100]}});
            fleet.note(0, News::Snapshot(serde_json::from_value(snapshot).unwrap()));
        }
        let node = &fleet.nodes[0];
        assert_eq!(node.seconds.iter().map(|second| second.checks.len()).collect::<Vec<_>>(), [MOST_ROWS - 1; 3]);
        let last = node.last.as_ref().unwrap();
        assert_eq!((last.top.len(), last.policies.names.len()), (MOST_ROWS, MOST_ROWS));
    }

    #[test]
    fn hashes_of_two_secrets_are_two_keys() {
        let mut fleet = fleet(2);
        fleet.note(0, snapshot(100, &[1], None));
        fleet.note(1, snapshot(100, &[1], Some("k")));
        assert_eq!(fleet.sum(&all(1)).top.len(), 2);
    }

    #[test]
    fn lost_node_leaves_the_sum_and_returns() {
        let mut fleet = fleet(2);
        assert!(fleet.unheard().unwrap().contains("http://node-1: no answer yet"));
        fleet.note(0, snapshot(100, &[5], None));
        fleet.note(1, snapshot(100, &[7], None));
        fleet.note(1, News::Lost("connection refused".into()));
        let sum = fleet.sum(&all(1));
        assert_eq!((denied(&sum).rate, denied(&sum).total, sum.shards[0].nodes), (5, 12, 1));
        assert_eq!(sum.nodes[1].reason.as_deref(), Some("connection refused"));
        // It starts anew, and sends a second that is known.
        fleet.note(1, snapshot(100, &[7, 8], None));
        let sum = fleet.sum(&all(1));
        assert_eq!((denied(&sum).rate, denied(&sum).total, sum.shards[0].nodes), (13, 20, 2));
        assert_eq!(fleet.unheard(), None);
    }

    #[test]
    fn places_of_a_key_are_those_of_the_node_that_heard_last() {
        let mut fleet = fleet(2);
        for (place, in_flight, at_ms) in [(0, 3, 2_000), (1, 5, 1_000)] {
            let held = |key: &str| json!({"policy": "jobs", "key": key, "in_flight": in_flight, "at_ms": at_ms});
            let keys = [held("anna"), held(&format!("node-{place}"))];
            fleet.note(place, News::Snapshot(serde_json::from_value(json!({"held": keys})).unwrap()));
        }
        let places = |span: &Span| -> Vec<_> {
            fleet.sum(span).held.iter().map(|held| (held.name().1.to_owned(), held.in_flight)).collect()
        };
        let expected = [("node-1", 5), ("anna", 3), ("node-0", 3)];
        assert_eq!(places(&all(1)), expected.map(|(key, in_flight)| (key.to_owned(), in_flight)));
        assert_eq!(places(&Span { policy: Some("other".into()), ..all(1) }), []);
    }

    #[test]
    fn each_count_is_in_one_line() {
        let mut fleet = fleet(1);
        let counts = |fleet: &mut Fleet| -> Vec<u64> { fleet.take_fresh().iter().map(|checks| checks.count).collect() };
        fleet.note(0, snapshot(100, &[100, 100, 5], None));
        assert_eq!(counts(&mut fleet), [5, 1], "no history");
        fleet.note(0, snapshot(101, &[100, 5, 7], None));
        fleet.note(0, snapshot(104, &[9], None));
        assert_eq!(counts(&mut fleet), [16, 2]);
        assert_eq!(counts(&mut fleet), [0; 0]);
    }

    #[test]
    fn span_bounds_policy_and_time() {
        let mut fleet = fleet(1);
        fleet.note(0, snapshot(1000, &[1; 2000], None));
        let of = |minutes, policy: Option<&str>| Span { minutes, policy: policy.map(str::to_owned) };
        let total = |span: &Span| fleet.sum(span).decisions.iter().map(|row| row.total).sum::<u64>();
        assert_eq!(fleet.nodes[0].seconds.len(), 901);
        assert_eq!([1, 5].map(|minutes| total(&of(minutes, Some("login")))), [60, 300]);
        assert_eq!(total(&of(1, None)), 120);
        assert_eq!(total(&of(1, Some("nobody"))), 0);
        assert_eq!(fleet.sum(&of(15, None)).decisions[0].history.len(), 899);
    }

    #[test]
    fn keys_of_other_spans_are_those_that_were_asked_for() {
        let mut fleet = fleet(1);
        fleet.note(0, snapshot(100, &[1], None));
        assert!(fleet.sum(&all(5)).top.is_empty());
        let denied = Denied { denied: 77, ..Denied::default() };
        let consumer = Consumer { units: 88, ..Consumer::default() };
        let top = Top { top: vec![denied], consumers: vec![consumer] };
        fleet.note(0, News::Top(all(5).question().unwrap(), top));
        assert_eq!(fleet.sum(&all(5)).consumers[0].units, 88);
        assert_eq!(fleet.sum(&all(5)).top[0].denied, 77);
        assert_eq!(fleet.sum(&all(1)).top[0].denied, 10);
        assert!(fleet.sum(&all(15)).top.is_empty());
    }
}
