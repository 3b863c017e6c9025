//! Expired and emptied keys free the capacity of the embedded store.

use tollgate::limit::policy::Policy;
use tollgate::limit::time::Micros;
use tollgate::store::{Done, Over, Subject, Work};

use crate::support::timed::Timed;
use crate::support::{steps, unique};

const SECOND: Micros = 1_000_000;

const START: Micros = 1_700_000_000 * SECOND;

#[test]
fn expired_keys_free_capacity_for_next_check() {
    let store = Timed::new(100);
    let keys: Vec<Subject> = (0..200).map(|_| subject("p", 5)).collect();
    let fill = |now, keys: &[Subject]| keys.iter().filter(|key| store.at(now).charge(key, &[1], &[]).is_ok()).count();
    assert_eq!(fill(START, &keys), 100);
    assert_eq!(fill(START + SECOND / 2, &keys[100..]), 0);
    assert_eq!(fill(START + 3 * SECOND, &keys[100..]), 100);
    store.at(START + 10 * SECOND).sweep();
    assert_eq!((store.at(START).len(), store.at(START).is_full()), (0, false));
}

#[test]
fn refund_that_empties_a_key_frees_capacity() {
    let store = Timed::new(10);
    for _ in 0..3 {
        let keys: Vec<Subject> = (0..10).map(|_| subject("p", 5)).collect();
        for key in &keys {
            assert!(store.at(START).charge(key, &[1], &[]).is_ok());
            assert!(store.at(START).run(key, &Work::Refund(1), &[]).is_ok());
        }
        store.at(START).sweep();
        assert_eq!(store.at(START).len(), 0);
    }
}

#[test]
fn known_key_is_denied_when_no_capacity_is_left_for_its_id() {
    let store = Timed::new(3);
    let key = subject("p", 2);
    let once = |id: &str| store.at(START).run(&key, &Work::Once { id: id.into(), cost: 1, over: Over::Deny }, &[]);
    let charged =
        |id: &str, replayed: bool| matches!(once(id), Ok(Done::Charged(charged)) if charged.replayed == replayed);
    assert!(charged("one", false));
    assert!(store.at(START).charge(&subject("p", 2), &[1], &[]).is_ok());
    // The check would be allowed, and a retry would charge it again.
    assert!(once("two").is_err());
    assert!(charged("one", true));
    assert!(store.at(START).charge(&key, &[1], &[]).is_ok());
    let denied = once("three").unwrap();
    assert!(matches!(&denied, Done::Taken(taken) if !taken.ruling.verdicts[0].allowed), "{denied:?}");
    assert_eq!(store.at(START).len(), 3);
}

#[test]
fn ids_of_one_key_leave_capacity_for_other_keys() {
    let store = Timed::new(32_000);
    let key = subject("p", 1_000_000);
    let once = |number: usize, now| {
        store
            .at(now)
            .run(&key, &Work::Once { id: format!("{number}").into(), cost: 1, over: Over::Deny }, &[])
            .is_ok()
    };
    assert_eq!((0..5000).filter(|number| once(*number, START)).count(), 4000);
    assert!(once(3999, START), "a known id is answered as before");
    assert!(store.at(START).charge(&subject("p", 1), &[1], &[]).is_ok());
    // Records live for five minutes.
    assert!(once(5000, START + 301 * SECOND));
    store.at(START + 700 * SECOND).sweep();
    assert_eq!(store.at(START).len(), 0);
}

fn subject(name: &str, limit: u64) -> Subject {
    let policy = steps::policy(&[(limit, SECOND)]);
    steps::subject(Policy { name: name.into(), ..policy }, &unique("capacity"))
}
