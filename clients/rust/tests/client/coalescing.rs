use tokio::task::JoinSet;
use tollgate_limiter::{Check, Error};

use crate::begun;
use crate::cases::client;
use crate::node::Node;
use crate::servers::{Mode, Proxy};

/// A turn of this runtime has the checks of all tasks.
#[tokio::test]
async fn checks_of_one_turn_share_one_call() {
    let node = Node::start("cases.yaml");
    let proxy = Proxy::start(node.url(), Mode::Faithful).await;
    let client = client(&proxy.url);
    let mut checks = JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        checks.spawn(async move { client.check(Check::new("turn").policy("ten")).await.unwrap().allowed });
    }
    let allowed = checks.join_all().await.into_iter().filter(|&allowed| allowed).count();
    assert_eq!(allowed, 10);
    assert_eq!(proxy.seen.lock().unwrap().paths, ["/v1/check/batch"]);
}

#[tokio::test]
async fn batch_has_at_most_100_checks_and_half_a_mebibyte() {
    let node = Node::start("cases.yaml");
    let proxy = Proxy::start(node.url(), Mode::Faithful).await;
    let client = client(&proxy.url);
    for (number, meta, calls) in [(250, 0, 3), (100, 200_000, 100)] {
        let before = proxy.calls();
        let mut checks = JoinSet::new();
        for _ in 0..number {
            let (client, check) = (client.clone(), Check::new("sizes").policy("thousand").meta("m".repeat(meta)));
            checks.spawn(async move { client.check(check).await });
        }
        for answer in checks.join_all().await {
            // A cause of that length is invalid, and only its check fails.
            assert!(answer.is_ok() || meta > 256, "{answer:?}");
        }
        assert!(proxy.calls() - before >= calls, "{} calls", proxy.calls() - before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_batch_goes_one_by_one() {
    let node = Node::start("cases.yaml");
    let client = client(&Proxy::start(node.url(), Mode::NoBatches).await.url);
    let mut checks = JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        checks.spawn(async move { client.check(Check::new("each").policy("ten")).await.unwrap().allowed });
    }
    assert_eq!(checks.join_all().await.into_iter().filter(|&allowed| allowed).count(), 10);
}

/// A node closes the connection of a longer body. The client would then avoid the node.
#[tokio::test]
async fn too_large_check_fails_alone_and_is_not_sent() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let check = |key: &str| client.check(Check::new(key).policy("thousand"));
    let huge = "x".repeat(32 << 20);
    let (first, huge, last) = tokio::join!(check("a"), check(&huge), check("b"));
    assert!(matches!(&huge, Err(Error::Problem(problem)) if problem.name() == "too-large"), "{huge:?}");
    assert!(first.unwrap().allowed && last.unwrap().allowed);
}

/// The first check to wait begins the batch of all.
#[tokio::test]
async fn leaving_leader_spoils_no_other_check_and_is_not_charged() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let check = || client.check(Check::new("leader").policy("ten"));
    let (first, follower) = (begun(check()), {
        let leader = begun(check());
        let follower = begun(check());
        drop(leader);
        follower
    });
    let (first, follower) = (first.await.unwrap(), follower.await.unwrap());
    assert_eq!(first.remaining.min(follower.remaining), Some(8), "{first:?} {follower:?}");
}

/// A runtime that ends takes the leader along. The other checks fail, and do not hang.
#[test]
fn checks_behind_a_lost_leader_fail_and_the_next_one_leads() {
    let node = Node::start("cases.yaml");
    let client = client(&node.url());
    let check = || client.check(Check::new("lost"));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ended, other) = (runtime(), runtime());
    let mut first = None;
    ended.block_on(async {
        first = Some(begun(check()));
        drop(begun(check()));
    });
    let answer = other.block_on(async {
        let behind = begun(check());
        ended.shutdown_background();
        behind.await
    });
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    drop(first);
    assert!(other.block_on(check()).unwrap().allowed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_on_two_threads_share_calls() {
    let node = Node::start("cases.yaml");
    let proxy = Proxy::start(node.url(), Mode::Faithful).await;
    let client = client(&proxy.url);
    let mut callers = JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        callers.spawn(async move {
            for _ in 0..20 {
                assert!(client.check(Check::new("threads").policy("thousand").cost(0)).await.unwrap().allowed);
            }
        });
    }
    callers.join_all().await;
    assert!(proxy.calls() <= 64 * 20 / 2, "{} calls", proxy.calls());
}
