//! Leases: units that the client buys from a real node and spends without a call.

use std::time::Duration;

use tollgate_limiter::{Check, Client, Decision, Options, Source};

use crate::cases::client;
use crate::node::Node;

/// The limit of the policy `leased`.
const LIMIT: u64 = 1000;

fn check(key: &str) -> Check {
    Check::new(key).policy("leased")
}

async fn remaining(node: &Node, key: &str) -> u64 {
    client(&node.url()).usage(check(key)).await.unwrap().decision.remaining.unwrap()
}

/// Checks until a lease has paid one. Returns the allowed checks.
async fn check_until_leased(client: &Client, key: &str) -> u64 {
    for number in 1..1000 {
        let decision = client.check(check(key)).await.unwrap();
        assert!(decision.allowed, "{decision:?}");
        if decision.source == Source::Lease {
            return number;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no lease has paid a check");
}

#[tokio::test]
async fn saturated_key_gets_exactly_its_limit_from_two_clients() {
    let node = Node::start("cases.yaml");
    let clients = [client(&node.url()), client(&node.url())];
    let spend = async |client: &Client| {
        let (mut allowed, mut leased) = (0, 0);
        let mut denied = 0;
        // The other client may return units at the end of its lease.
        while denied < 100 {
            let decision: Decision = client.check(check("saturated")).await.unwrap();
            allowed += u64::from(decision.allowed);
            leased += u64::from(decision.source == Source::Lease);
            denied += u64::from(!decision.allowed);
            if !decision.allowed {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        }
        (allowed, leased)
    };
    let ((first, by_first), (second, by_second)) = tokio::join!(spend(&clients[0]), spend(&clients[1]));
    assert_eq!(first + second, LIMIT);
    assert!(by_first + by_second > LIMIT / 2, "leases paid {by_first} and {by_second}");
}

#[tokio::test]
async fn close_returns_what_is_not_spent() {
    let node = Node::start("cases.yaml");
    let own = client(&node.url());
    let allowed = check_until_leased(&own, "closed").await;
    own.close().await;
    assert_eq!(remaining(&node, "closed").await, LIMIT - allowed);
}

#[tokio::test]
async fn units_in_hand_pay_while_no_node_answers() {
    let mut node = Node::start("cases.yaml");
    let own = client(&node.url());
    check_until_leased(&own, "alone").await;
    node.kill();
    let decision = own.check(check("alone")).await.unwrap();
    assert_eq!((decision.allowed, decision.source), (true, Source::Lease));
    assert_eq!((decision.charged, decision.limit, decision.quota.as_deref()), (1, Some(LIMIT), Some("1h")));
    // Other keys need the node.
    assert!(own.check(check("other")).await.is_err());
}

#[tokio::test]
async fn checks_that_a_node_must_decide_leave_the_lease_alone() {
    let node = Node::start("cases.yaml");
    let own = client(&node.url());
    check_until_leased(&own, "beside").await;
    for other in
        [check("beside").id("a"), check("beside").cost(0), check("beside").meta("m"), check("beside").look(true)]
    {
        assert_eq!(own.check(other).await.unwrap().source, Source::Store);
    }
    assert_eq!(own.check(check("beside")).await.unwrap().source, Source::Lease);
    let batch = own.check_batch([check("beside"), check("beside").meta("m")]).await.unwrap();
    let sources: Vec<_> = batch.into_iter().map(|decision| decision.unwrap().source).collect();
    assert_eq!(sources, [Source::Lease, Source::Store]);
}

#[tokio::test]
async fn checks_that_are_charged_once_may_be_paid() {
    let node = Node::start("cases.yaml");
    let own = client(&node.url());
    for _ in 0..1000 {
        if own.check(check("once").once(true)).await.unwrap().source == Source::Lease {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no lease has paid a check");
}

#[tokio::test]
async fn client_without_leases_asks_for_each_check() {
    let node = Node::start("cases.yaml");
    let own =
        Client::new(Options::default().nodes([node.url()]).deadline(Duration::from_secs(5)).lease(false)).unwrap();
    for _ in 0..50 {
        assert_eq!(own.check(check("off")).await.unwrap().source, Source::Store);
    }
    assert_eq!(remaining(&node, "off").await, LIMIT - 50);
}

#[tokio::test]
async fn lease_of_a_policy_is_returned_after_half_of_its_time() {
    let node = Node::start("cases.yaml");
    let own = client(&node.url());
    let mut allowed = 0;
    for _ in 0..4 {
        allowed += u64::from(own.check(check("idle")).await.unwrap().allowed);
    }
    for _ in 0..300 {
        if remaining(&node, "idle").await == LIMIT - allowed {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the lease is not returned");
}
