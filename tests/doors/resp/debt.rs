//! One counter per key, whatever the numbers of a command.

use std::thread;

use super::{Door, door, numbers};
use crate::support::redis::shared;
use crate::support::unique;

/// On the embedded store and on Redis.
fn on_both_stores(test: impl Fn(&Door)) {
    for store in [String::new(), format!("store: {{timeout: 5s, redis: [{}]}}\n", shared().url())] {
        test(&door(&format!("{store}policies: {{p: {{quotas: [5 per 1h]}}}}")));
    }
}

#[test]
fn changed_numbers_keep_the_debt_of_a_key() {
    on_both_stores(|door| {
        let (mut connection, key) = (door.connect(), unique("debt"));
        let mut throttle = |numbers_of: &str| numbers(&mut connection, &format!("CL.THROTTLE {key} {numbers_of}"));
        assert_eq!(throttle("15 30 3600 16")[..3], [0, 16, 0]);
        // A faster rate refills the same debt sooner.
        assert_eq!(throttle("15 60 3600"), [1, 16, 0, 60, 960]);
        // A larger burst has room beside the debt.
        assert_eq!(throttle("31 60 3600 15")[..3], [0, 32, 1]);
        // A smaller one has none.
        assert_eq!(throttle("7 60 3600")[..3], [1, 8, 0]);
        assert_eq!(throttle("31 7 3600 0")[..3], [0, 32, 1]);
    });
}

#[test]
fn a_pipeline_of_different_numbers_shares_the_debt() {
    on_both_stores(|door| {
        let key = &unique("mixed");
        let commands = ["15 30 3600 10", "15 60 3600 5", "7 60 3600 1", "15 30 3600 1", "15 30 3600 1"];
        let pipeline = commands.map(|words| format!("CL.THROTTLE {key} {words}\r\n")).concat();
        let answers = door.exchange(pipeline);
        let shown: Vec<Vec<&str>> =
            answers.split("*5\r\n").skip(1).map(|answer| answer.lines().take(3).collect()).collect();
        let expected =
            [[":0", ":16", ":6"], [":0", ":16", ":1"], [":1", ":8", ":0"], [":0", ":16", ":0"], [":1", ":16", ":0"]];
        assert_eq!(shown, expected);
    });
}

#[test]
fn a_key_has_one_string_in_redis() {
    let door = door(&format!("store: {{redis: [{}]}}\npolicies: {{p: {{quotas: [5 per 1h]}}}}", shared().url()));
    let (mut connection, key) = (door.connect(), unique("one"));
    for numbers_of in ["15 30 3600", "15 31 3600", "99 7 60", "0 1 86400"] {
        numbers(&mut connection, &format!("CL.THROTTLE {key} {numbers_of}"));
    }
    let mut redis = shared().connection().unwrap();
    let names: Vec<String> = redis::cmd("KEYS").arg(format!("*{key}*")).query(&mut redis).unwrap();
    assert_eq!(names, [format!("{{ratelimit:{key}:}}cl.throttle:buckets")]);
}

#[test]
fn reset_of_the_policy_forgets_the_debt() {
    on_both_stores(|door| {
        let (mut connection, key) = (door.connect(), unique("reset"));
        assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 0 1 3600"))[0], 0);
        assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 0 1 3600"))[0], 1);
        let path = format!("/v1/usage?policy=cl.throttle&key={key}");
        assert_eq!(crate::support::http::call(&door.node.address, "DELETE", &path, None, "").status, 200);
        assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 0 1 3600"))[0], 0);
    });
}

#[test]
fn ten_connections_admit_exactly_the_burst() {
    on_both_stores(|door| {
        let key = &unique("ten");
        let allowed = || {
            let mut connection = door.connect();
            let throttle = |_: &i32| numbers(&mut connection, &format!("CL.THROTTLE {key} 99 1 86400"))[0] == 0;
            (0..40).filter(throttle).count()
        };
        let all: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..10).map(|_| scope.spawn(allowed)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(all, 100);
    });
}
