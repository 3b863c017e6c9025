//! Runs random store operations on many keys, by every algorithm. No count becomes negative, every
//! key has an expiry, and nothing remains after the windows. `scripts/long-run
//! --operations` runs 10 million.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::limit::calendar::{Calendar, Unit};
use tollgate::limit::key::Fingerprinter;
use tollgate::limit::policy::{Algorithm, Policy};
use tollgate::limit::quota::{Anchor, Rule};
use tollgate::limit::receipt::Receipt;
use tollgate::limit::ticks::Ticks;
use tollgate::store::{Done, MemoryStore, Over, Store, StoreError, Subject, Work};

use crate::support::dice::Dice;
use crate::support::redis::Server;
use crate::support::resident_kib;
use crate::support::steps::{START, bucket, counters, logs, policy_of, quota};

const CALLERS: u64 = 128;

const KEYS: u64 = 20_000;

const SECOND: u64 = 1_000_000;

fn checks() -> u64 {
    std::env::var("TOLLGATE_CHECKS").ok().and_then(|text| text.parse().ok()).unwrap_or(60_000)
}

/// One policy of each algorithm. Except for the calendar's day, their windows pass many times
/// during the run.
fn policies() -> Vec<Policy> {
    let day = Calendar::new(Unit::Day, "Europe/Berlin").unwrap();
    let calendar = quota(50, Unit::Day.nominal(), Rule::FixedWindow(Anchor::Calendar(day)));
    let of = |algorithm, limits: [u64; 2], rule: Rule| {
        policy_of(algorithm, vec![quota(limits[0], SECOND, rule), quota(limits[1], 3 * SECOND, rule)])
    };
    let policies = [
        of(Algorithm::SlidingWindow, [3, 5], Rule::SlidingWindow),
        of(Algorithm::FixedWindow, [3, 5], Rule::FixedWindow(Anchor::Clock)),
        of(Algorithm::FixedWindow, [3, 5], Rule::FixedWindow(Anchor::FirstHit)),
        policy_of(Algorithm::TokenBucket, vec![bucket(3, 2, SECOND), bucket(5, 7, 3 * SECOND)]),
        logs(&[(3, SECOND), (5, 3 * SECOND)], 4),
        counters(&[(3, SECOND), (5, 3 * SECOND)], Ticks::new(SECOND, false, false)),
        policy_of(Algorithm::FixedWindow, vec![calendar]),
    ];
    let named = |(place, policy)| Policy { name: format!("long-{place}"), ..policy };
    policies.into_iter().enumerate().map(named).collect()
}

#[derive(Default)]
struct Tally {
    checks: AtomicU64,
    allowed: AtomicU64,
    refunded: AtomicU64,
    /// Operations with an unknown outcome. The invariants hold in either case.
    unanswered: AtomicU64,
}

struct Run {
    store: Store,
    subjects: Vec<Subject>,
    tally: Tally,
    /// The clock to advance, for a store with a manual clock.
    hand: Option<Arc<AtomicU64>>,
}

impl Run {
    fn of(store: Store, policies: Vec<Policy>, hand: Option<Arc<AtomicU64>>) -> Arc<Self> {
        let fingerprinter = Fingerprinter::default();
        let subjects = policies.into_iter().map(Arc::new).flat_map(|policy| {
            let fingerprinter = &fingerprinter;
            let subject = |key: u64| {
                let key: Arc<str> = format!("key-{key}").into();
                Subject { fingerprint: fingerprinter.fingerprint(&policy.name, &key), policy: policy.clone(), key }
            };
            (0..KEYS / 6).map(subject).collect::<Vec<_>>()
        });
        let subjects = subjects.collect();
        Arc::new(Self { store, subjects, tally: Tally::default(), hand })
    }

    async fn whole(self: &Arc<Self>) {
        let caller = |number: u64| tokio::spawn(self.clone().caller(number));
        for caller in (0..CALLERS).map(caller).collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        let Tally { checks, allowed, refunded, unanswered } = &self.tally;
        let [checks, allowed, refunded, unanswered] =
            [checks, allowed, refunded, unanswered].map(|count| count.load(Ordering::Relaxed));
        println!("{checks} checks, {allowed} allowed, {refunded} units taken back, {unanswered} unanswered");
        assert!(unanswered < checks / 10, "a slow machine, or a slow store?");
        assert!(allowed > checks / 20 && refunded > checks / 200, "the run does too little");
    }

    async fn caller(self: Arc<Self>, number: u64) {
        let mut dice = Dice::new(number + 1);
        let mut receipts: Vec<(usize, Receipt)> = Vec::new();
        let all = checks();
        loop {
            let number = self.tally.checks.fetch_add(1, Ordering::Relaxed);
            if number >= all {
                return;
            }
            if let Some(hand) = &self.hand {
                hand.fetch_add(dice.below(100), Ordering::SeqCst);
            }
            if number.is_multiple_of(100_000) {
                self.store.sweep();
            }
            // Some keys get many more operations than others.
            let among = [100, self.subjects.len() as u64][usize::from(dice.below(4) > 0)];
            let place = usize::try_from(dice.below(among) * 7919 % self.subjects.len() as u64).unwrap();
            let (place, work) = match dice.below(100) {
                0..5 if !receipts.is_empty() => {
                    let (place, receipt) = receipts.swap_remove(0);
                    (place, Work::GiveBack(receipt))
                }
                5..12 => (place, Work::Reserve { cost: 1 + dice.below(2), hold: 100_000 }),
                12..14 => (place, Work::Refund(dice.below(4))),
                14..16 => (place, Work::RefundOnce(id(&mut dice))),
                16..20 => (place, Work::Once { id: id(&mut dice).into(), cost: 1, over: Over::Deny }),
                20..24 => (place, Work::Look(dice.below(3))),
                24 => (place, Work::Reset(Box::default())),
                _ => (place, Work::Take((0..=dice.below(3)).map(|_| dice.below(4)).collect())),
            };
            let subject = &self.subjects[place];
            let most = if let Work::Refund(cost) = work { cost } else { u64::MAX };
            let done = match self.store.run(subject, work, &[]).await {
                Ok(done) => done,
                Err(StoreError::Timeout | StoreError::Unknown(_) | StoreError::Unreachable(_)) => {
                    self.tally.unanswered.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            match done {
                Done::Reserved(taken, receipt) => {
                    self.note(subject, &taken.ruling.verdicts);
                    receipts.extend(receipt.map(|receipt| (place, receipt)));
                }
                Done::Taken(taken) => self.note(subject, &taken.ruling.verdicts),
                Done::Refunded(taken, given) => {
                    assert!(given <= most, "{given} of {most}");
                    self.tally.refunded.fetch_add(given, Ordering::Relaxed);
                    self.note(subject, &taken.ruling.verdicts);
                }
                _ => {}
            }
        }
    }

    /// More remaining units than the limit would mean a negative count.
    fn note(&self, subject: &Subject, verdicts: &[tollgate::limit::decision::Verdict]) {
        for verdict in verdicts {
            for (quota, state) in subject.policy.quotas.iter().zip(&verdict.quotas) {
                assert!(state.remaining <= quota.limit.get(), "{} of {quota:?}", state.remaining);
            }
            self.tally.allowed.fetch_add(u64::from(verdict.allowed && verdict.cost > 0), Ordering::Relaxed);
        }
    }
}

fn id(dice: &mut Dice) -> Arc<str> {
    format!("id-{}", dice.below(3)).into()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// Each check advances the clock. The last step exceeds the lifetime of the reset of the calendar's
/// day.
#[test]
fn embedded_store_ends_empty() {
    let hand = Arc::new(AtomicU64::new(START));
    let memory = MemoryStore::new(Clock::manual(hand.clone()), 1_000_000);
    let before = resident_kib(std::process::id());
    let run = Run::of(Store::Memory(memory), policies(), Some(hand.clone()));
    runtime().block_on(run.whole());
    let Store::Memory(memory) = &run.store else { panic!("it is the embedded store") };
    let (most, peak) = (memory.len(), resident_kib(std::process::id()));
    hand.fetch_add(3 * 86_400 * SECOND, Ordering::SeqCst);
    memory.sweep();
    assert!(most > 1000 && memory.is_empty(), "{} of {most} are left", memory.len());
    println!(
        "embedded: {most} keys and records, then 0; resident {before} KiB, {peak} KiB, {} KiB",
        resident_kib(std::process::id())
    );
}

/// Runs by the server's own clock. The records of ids live for 5 minutes, and only the long run
/// waits for them.
#[test]
fn redis_store_ends_empty() {
    let (server, runtime) = (Server::start(), runtime());
    let store = {
        let _inside = runtime.enter();
        server.store()
    };
    runtime.block_on(store.ready());
    let mut connection = server.connection().unwrap();
    // Leaves out the calendar's day, which would remain until midnight.
    let run = Run::of(Store::Redis(store), policies().into_iter().take(5).collect(), None);
    runtime.block_on(run.store.charge(&run.subjects[0], &[1], &[])).unwrap();
    let mut memory = || {
        let info: redis::InfoDict = redis::cmd("INFO").arg("memory").query(&mut connection).unwrap();
        info.get::<u64>("used_memory").unwrap()
    };
    let before = memory();
    runtime.block_on(run.whole());
    let peak = memory();
    let (mut keys, mut turns) = (keys_and_lives(&server), 0);
    assert!(keys.len() > 1000, "the run does too little");
    all_end(&keys);
    let is_long = checks() >= 1_000_000;
    // A reset is recorded for longer than any count.
    keys.retain(|(name, _)| !name.ends_with(":reset"));
    while keys.iter().any(|(name, _)| is_long || !name.contains(":id:")) {
        assert!(turns < 400, "{} keys are left, such as {:?}", keys.len(), keys.first());
        std::thread::sleep(Duration::from_secs(1));
        (keys, turns) = (keys_and_lives(&server), turns + 1);
        all_end(&keys);
        keys.retain(|(name, _)| !name.ends_with(":reset"));
    }
    let after = memory();
    println!("redis: {} keys after {turns} s; used memory {before}, {peak}, {after} bytes", keys.len());
    assert!(!is_long || after < before + 4_000_000, "{after} after {before}");
}

fn all_end(keys: &[(String, i64)]) {
    // The record of a reset lives as long as any record of a charge.
    let most = |key: &str| if key.ends_with(":reset") || key.ends_with(":}reset") { 94_000_000 } else { 300_000 };
    let endless = keys.iter().find(|(key, life)| !(0..=most(key)).contains(life));
    assert!(endless.is_none(), "a key without an end: {endless:?}");
}

fn keys_and_lives(server: &Server) -> Vec<(String, i64)> {
    let mut connection = server.connection().unwrap();
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let life = |name: &String| redis::cmd("PTTL").arg(name).query::<i64>(&mut connection).unwrap();
    let lives: Vec<i64> = names.iter().map(life).collect();
    // -2: the key has expired meanwhile.
    names.into_iter().zip(lives).filter(|(_, life)| *life != -2).collect()
}
