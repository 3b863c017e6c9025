//! Load on two nodes while a cluster fails, and the results: one row for each mode of the fallback.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::NamedTempFile;
use tollgate::store::redis::protocol::keys::Tag;

use super::cluster::Cluster;
use super::http::{self, Connection};
use super::{Node, file_with, unique, wait_until};

pub(crate) const CLIENTS: usize = 192;

const NODES: u64 = 2;

/// The limit of a client's own key: never reached.
const WIDE: u64 = 100_000_000;

const TIGHT: [u64; 2] = [300, 5000];

/// The longest run, ms.
const LONGEST: usize = 3_600_000;

/// Options of a policy besides its quotas, for half of the clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) options: &'static str,
}

/// The modes of the fallback; each gets a row.
pub(crate) const MODES: [Mode; 2] = [
    Mode { name: "deny", options: "on_store_failure: deny" },
    Mode { name: "local", options: "on_store_failure: local" },
];

/// Charges with a replica's acknowledgement, beside others without.
pub(crate) const DURABLE: [Mode; 2] = [
    Mode { name: "deny, replica", options: "on_store_failure: deny, durability: replica" },
    Mode { name: "deny", options: "on_store_failure: deny" },
];

/// Whether to assert the promised times, which needs an idle machine (`scripts/faults`).
pub(crate) fn strict() -> bool {
    std::env::var_os("TOLLGATE_STRICT").is_some()
}

/// Whether the policies have leases (`scripts/faults --leases`).
fn leases() -> bool {
    std::env::var_os("TOLLGATE_LEASES").is_some()
}

pub(crate) fn arena() -> MutexGuard<'static, Cluster> {
    arena_where(true)
}

/// The same for tests that a failover would spoil, such as one after a stall. The move of a slot
/// does not survive a failover of either primary.
pub(crate) fn arena_without_failovers() -> MutexGuard<'static, Cluster> {
    arena_where(false)
}

/// Replicas take over automatically, or only on command.
fn arena_where(replicas_take_over: bool) -> MutexGuard<'static, Cluster> {
    static CLUSTER: LazyLock<Mutex<Cluster>> = LazyLock::new(|| Mutex::new(Cluster::start()));
    let cluster = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    cluster.heal();
    cluster.configure("cluster-replica-no-failover", if replicas_take_over { "no" } else { "yes" });
    cluster
}

#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
pub(crate) fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap()
}

/// The third of the slots, 0 to 2, in the initial layout.
fn shard_of(key: &str) -> usize {
    let slot = usize::from(slot_of(key));
    (0..3).find(|shard| slot < 16384 * (shard + 1) / 3).unwrap()
}

pub(crate) fn slot_of(key: &str) -> u16 {
    Tag::new("ratelimit", key).slot()
}

pub(crate) fn key_in(shard: usize) -> String {
    std::iter::repeat_with(|| unique("chaos")).find(|key| shard_of(key) == shard).unwrap()
}

pub(crate) fn slot_in(shard: u16) -> u16 {
    16384 / 3 * shard + 100
}

/// One client's key or a shared one, and the clients' results for it.
struct Spent {
    policy: String,
    limit: u64,
    mode: usize,
    shard: usize,
    key: String,
    allowed_by_store: AtomicU64,
    allowed_by_fallback: AtomicU64,
    fallback: AtomicU64,
}

impl Spent {
    fn new(policy: String, limit: u64, mode: usize, shard: usize) -> Self {
        let [allowed_by_store, allowed_by_fallback, fallback] = [const { AtomicU64::new(0) }; 3];
        Self { policy, limit, mode, shard, key: key_in(shard), allowed_by_store, allowed_by_fallback, fallback }
    }

    fn request(&self) -> Vec<u8> {
        http::json_request("/v1/check", json!({"policy": self.policy, "key": self.key}).to_string().as_bytes())
    }
}

/// The results of all clients, by mode.
struct Seen {
    /// A bit for each ms of the run: whether the store decided a key of the shard.
    decided: [[Vec<AtomicU64>; 3]; 2],
    slowest_us: [AtomicU64; 2],
    failed: [AtomicU64; 2],
    answers: [AtomicU64; 2],
}

impl Default for Seen {
    fn default() -> Self {
        let run = || (0..=LONGEST / 64).map(|_| AtomicU64::new(0)).collect();
        let decided = [(); 2].map(|()| [(); 3].map(|()| run()));
        Self { decided, slowest_us: Default::default(), failed: Default::default(), answers: Default::default() }
    }
}

pub(crate) struct Service {
    pub(crate) nodes: Vec<Node>,
    timeout: Duration,
    modes: [Mode; 2],
    _file: NamedTempFile,
}

impl Service {
    pub(crate) fn start(seeds: &[String], timeout: Duration) -> Self {
        Self::start_in(seeds, timeout, MODES)
    }

    pub(crate) fn start_in(seeds: &[String], timeout: Duration, modes: [Mode; 2]) -> Self {
        Self::start_on(&format!("store: {{redis: [{}]}}", seeds.join(", ")), timeout, modes)
    }

    /// The same with the part of a configuration that names the store.
    pub(crate) fn start_on(store: &str, timeout: Duration, modes: [Mode; 2]) -> Self {
        let mut policies = format!("fallback: {{expected_nodes: {NODES}}}\npolicies:\n");
        let lease = if leases() { ", lease: {span: 500ms}" } else { "" };
        for (place, mode) in modes.iter().enumerate() {
            for limit in [WIDE, TIGHT[0], TIGHT[1]] {
                let quotas =
                    format!("quotas: [{limit} per 1h], {}, timeout: {}ms{lease}", mode.options, timeout.as_millis());
                policies += &format!("  p{place}-{limit}: {{{quotas}}}\n");
            }
        }
        let file = file_with(&format!("{store}\n{policies}"));
        let nodes = (0..NODES).map(|_| Node::with_config(&file)).collect();
        Self { nodes, timeout, modes, _file: file }
    }

    /// Runs the load while `fault` runs. `fault` returns when an absent store could have decided
    /// again (by [`now_ms`]). `own` is the shard that it breaks, if only one.
    pub(crate) fn under(&mut self, what: &str, own: Option<usize>, fault: impl FnOnce() -> Option<u64>) -> [Row; 2] {
        self.under_watch(what, own, |_| fault())
    }

    /// The same for a fault that reads the clients' results so far.
    pub(crate) fn under_watch(
        &mut self,
        what: &str,
        own: Option<usize>,
        fault: impl FnOnce(&Watch<'_>) -> Option<u64>,
    ) -> [Row; 2] {
        let seen = Seen::default();
        let over = AtomicBool::new(false);
        let wide: Vec<Spent> = (0..CLIENTS)
            .map(|client| Spent::new(format!("p{}-{WIDE}", client % 2), WIDE, client % 2, client / 2 % 3))
            .collect();
        let tight: Vec<Spent> = (0..12)
            .map(|n| (n % 2, n / 2 % 2, n / 4))
            .map(|(mode, limit, shard)| Spent::new(format!("p{mode}-{}", TIGHT[limit]), TIGHT[limit], mode, shard))
            .collect();
        let begin = now_ms();
        let back = std::thread::scope(|scope| {
            for (client, own) in wide.iter().enumerate() {
                let shared: Vec<&Spent> = tight.iter().filter(|tight| tight.mode == own.mode).collect();
                let node = &self.nodes[client / 2 % self.nodes.len()].address;
                let (seen, over) = (&seen, &over);
                scope.spawn(move || drive(node, own, &shared, seen, begin, over));
            }
            let done = Ended(&over);
            let back = fault(&Watch(wide.iter().chain(&tight).collect()));
            drop(done);
            back
        });
        let end = now_ms();
        if leases() {
            // The nodes return what they hold.
            std::thread::sleep(Duration::from_secs(1));
        }
        assert!(self.nodes.iter_mut().all(Node::is_alive), "{what}: a node died");
        let spent: Vec<(&Spent, u64)> = wide.iter().chain(&tight).map(|spent| (spent, self.charged(spent))).collect();
        let rows = [0, 1].map(|mode| Row::of(what, self, mode, own, &spent, &seen, begin..end, back));
        // Before the assertions on any of them.
        rows.iter().for_each(|row| println!("{row}"));
        rows
    }

    /// The store's count for a key, however long the store takes.
    fn charged(&self, spent: &Spent) -> u64 {
        let mut charged = 0;
        wait_until("the store tells what it counts", || {
            let path = format!("/v1/usage?policy={}&key={}", spent.policy, spent.key);
            let usage = http::get(&self.nodes[0].address, &path).json();
            charged = spent.limit.saturating_sub(usage["remaining"].as_u64().unwrap_or(0));
            usage["source"] == "store"
        });
        charged
    }
}

pub(crate) struct Watch<'a>(Vec<&'a Spent>);

impl Watch<'_> {
    /// Checks of keys in `shard` that the store allowed, by mode.
    pub(crate) fn allowed(&self, shard: usize) -> [u64; 2] {
        [0, 1].map(|mode| {
            let of = self.0.iter().filter(|spent| (spent.mode, spent.shard) == (mode, shard));
            of.map(|spent| spent.allowed_by_store.load(Ordering::Relaxed)).sum()
        })
    }
}

struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One client: checks its own key, and now and then the next of the shared keys.
fn drive(node: &str, own: &Spent, shared: &[&Spent], seen: &Seen, begin: u64, over: &AtomicBool) {
    let mut connection = Connection::open(node).unwrap();
    let targets: Vec<(&Spent, Vec<u8>)> =
        std::iter::once(own).chain(shared.iter().copied()).map(|spent| (spent, spent.request())).collect();
    let mut turn = 0;
    while !over.load(Ordering::Relaxed) {
        turn += 1;
        let place = if turn % 8 == 0 { 1 + turn / 8 % shared.len() } else { 0 };
        let (spent, request) = &targets[place];
        if ask(&mut connection, spent, request, seen, begin).is_err() {
            seen.failed[spent.mode].fetch_add(1, Ordering::Relaxed);
            connection = Connection::open(node).unwrap();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
fn ask(connection: &mut Connection, spent: &Spent, request: &[u8], seen: &Seen, begin: u64) -> std::io::Result<()> {
    let sent = Instant::now();
    connection.send(request)?;
    let answer = connection.receive(true)?;
    let took = u64::try_from(sent.elapsed().as_micros()).unwrap();
    seen.slowest_us[spent.mode].fetch_max(took, Ordering::Relaxed);
    seen.answers[spent.mode].fetch_add(1, Ordering::Relaxed);
    if answer.status != 200 {
        return Err(std::io::Error::other(format!("{answer:?}")));
    }
    let body = String::from_utf8_lossy(&answer.body);
    let (allowed, fallback) = (body.contains(r#""allowed":true"#), body.contains(r#""source":"fallback""#));
    if fallback {
        spent.fallback.fetch_add(1, Ordering::Relaxed);
    }
    // The pre-filter also denies while the store is unavailable.
    if body.contains(r#""source":"store""#) || body.contains(r#""source":"lease""#) {
        let ms = usize::try_from(now_ms() - begin).unwrap();
        let ms = ms.min(LONGEST - 1);
        seen.decided[spent.mode][spent.shard][ms / 64].fetch_or(1 << (ms % 64), Ordering::Relaxed);
    }
    if allowed {
        let counter = if fallback { &spent.allowed_by_fallback } else { &spent.allowed_by_store };
        counter.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) timeout: Duration,
    pub(crate) mode: &'static str,
    /// Longest time without a store decision for keys of the broken shard and of the others, ms.
    pub(crate) gap_own: u64,
    pub(crate) gap_others: u64,
    /// From the instant when the store could decide again to its first decision for the broken
    /// shard, ms.
    pub(crate) back_after: Option<u64>,
    pub(crate) slowest_ms: u64,
    pub(crate) answers: u64,
    pub(crate) failed: u64,
    pub(crate) allowed: u64,
    pub(crate) fallback_own: u64,
    pub(crate) fallback_others: u64,
    /// Charges beyond the allowed checks and those that may have been charged without an answer.
    pub(crate) twice: u64,
    /// Allowed by the store, and missing in the final count.
    pub(crate) forgotten: u64,
    /// The most that any key exceeded its limit.
    pub(crate) over: u64,
    /// The same relative to the nodes' shares, for `local`.
    pub(crate) over_shares: bool,
}

impl Row {
    #[expect(clippy::too_many_arguments, reason = "it gathers all that was seen")]
    fn of(
        what: &str,
        service: &Service,
        mode: usize,
        own: Option<usize>,
        spent: &[(&Spent, u64)],
        seen: &Seen,
        run: std::ops::Range<u64>,
        back: Option<u64>,
    ) -> Self {
        let length = run.end - run.start;
        let is_own = |shard: usize| own.is_none_or(|own| own == shard);
        let gaps: BTreeMap<usize, (u64, u64)> =
            (0..3).map(|shard| (shard, longest_gap(&seen.decided[mode][shard], length))).collect();
        let longest = |of: bool| {
            let gaps = gaps.iter().filter(|(shard, _)| is_own(**shard) == of).map(|(_, gap)| *gap);
            gaps.max_by_key(|(from, to)| to - from).unwrap_or_default()
        };
        let (own_gap, others_gap) = (longest(true), longest(false));
        let mine = || spent.iter().filter(|(spent, _)| spent.mode == mode);
        let sum = |of: &dyn Fn(&Spent, u64) -> u64| mine().map(|(spent, charged)| of(spent, *charged)).sum();
        let by_store = |spent: &Spent| spent.allowed_by_store.load(Ordering::Relaxed);
        let fallback = |spent: &Spent| spent.fallback.load(Ordering::Relaxed);
        let all = |spent: &Spent| by_store(spent) + spent.allowed_by_fallback.load(Ordering::Relaxed);
        Self {
            what: what.to_owned(),
            timeout: service.timeout,
            mode: service.modes[mode].name,
            gap_own: own_gap.1 - own_gap.0,
            gap_others: others_gap.1 - others_gap.0,
            back_after: back.map(|back| (run.start + own_gap.1).saturating_sub(back)),
            slowest_ms: seen.slowest_us[mode].load(Ordering::Relaxed) / 1000,
            answers: seen.answers[mode].load(Ordering::Relaxed),
            failed: seen.failed[mode].load(Ordering::Relaxed),
            allowed: sum(&|spent, _| by_store(spent)),
            fallback_own: sum(&|spent, _| if is_own(spent.shard) { fallback(spent) } else { 0 }),
            fallback_others: sum(&|spent, _| if is_own(spent.shard) { 0 } else { fallback(spent) }),
            twice: sum(&|spent, charged| charged.saturating_sub(by_store(spent) + fallback(spent))),
            forgotten: sum(&|spent, charged| by_store(spent).saturating_sub(charged)),
            over: mine().map(|(spent, _)| all(spent).saturating_sub(spent.limit)).max().unwrap_or(0),
            over_shares: mine().any(|(spent, charged)| {
                let forgotten = by_store(spent).saturating_sub(*charged);
                all(spent) > spent.limit + NODES * (spent.limit / NODES) + forgotten
            }),
        }
    }

    /// Asserts the invariants of every row: each check gets an answer, nothing is charged twice,
    /// and the limit holds. Exceptions from the limit are charges lost in a failover and, with
    /// `local`, the nodes' shares.
    pub(crate) fn holds(&self) -> &Self {
        assert_eq!(self.failed, 0, "{self}");
        // A lease whose sale or return got no answer counts on without a spender.
        assert!(leases() || self.twice == 0, "{self}");
        match self.mode {
            "local" => assert!(!self.over_shares, "{self}"),
            _ => assert!(self.over <= self.forgotten, "{self}"),
        }
        if strict() {
            assert!(self.slowest_ms <= 2 * u64::try_from(self.timeout.as_millis()).unwrap(), "too slow: {self}");
        }
        self
    }

    pub(crate) fn forgets_nothing(&self) -> &Self {
        assert_eq!(self.forgotten, 0, "{self}");
        self
    }

    pub(crate) fn spares_the_others(&self) -> &Self {
        assert!(!strict() || self.fallback_others == 0, "{self}");
        self
    }

    pub(crate) fn is_back_within(&self, limit: u64) -> &Self {
        let limit = if strict() { limit } else { 20 * limit };
        assert!(self.back_after.is_some_and(|after| after <= limit), "{self}");
        self
    }

    pub(crate) fn needs_little_fallback(&self, fewer_than: u64) -> &Self {
        assert!(self.fallback_own + self.fallback_others < fewer_than, "{self}");
        self
    }

    pub(crate) fn needs_no_fallback(&self) -> &Self {
        assert_eq!(self.fallback_own + self.fallback_others, 0, "{self}");
        self
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what, mode, gap_own, gap_others, slowest_ms, answers, failed, fallback_own, fallback_others, ..
        } = self;
        let back = self.back_after.map_or("-".to_owned(), |back| back.to_string());
        let timeout = self.timeout.as_millis();
        write!(
            f,
            "ROW | {what} | {timeout} | {mode} | {gap_own} | {gap_others} | {back} | {slowest_ms} | {answers} | \
             {failed} | {fallback_own} | {fallback_others} | {} | {} | {} |",
            self.twice, self.forgotten, self.over
        )
    }
}

fn longest_gap(decided: &[AtomicU64], length: u64) -> (u64, u64) {
    let is_decided =
        |ms: u64| (decided[usize::try_from(ms / 64).unwrap()].load(Ordering::Relaxed) >> (ms % 64)) & 1 == 1;
    let (mut longest, mut from) = ((0, 0), 0);
    for ms in 0..length {
        if is_decided(ms) {
            from = ms + 1;
        } else if ms + 1 - from > longest.1 - longest.0 {
            longest = (from, ms + 1);
        }
    }
    longest
}
