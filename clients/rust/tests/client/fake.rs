//! Unit tests of an application, without a node.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use tollgate_limiter::{Check, Client, Error, Fake, LimitLayer, Refund};

use crate::browser::Browser;
use crate::servers::run;

const WAIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn fake_answers_by_a_list_and_the_last_end_goes_on() {
    let client = Client::fake([Fake::Allow, Fake::Deny(WAIT)]);
    for allowed in [true, false, false] {
        let decision = client.check(Check::new("a").policy("p")).await.unwrap();
        assert_eq!((decision.allowed, decision.policy.as_str()), (allowed, "p"));
    }
    let stats = client.stats();
    assert_eq!((stats.allowed, stats.denied), (1, 2));
}

#[tokio::test]
async fn fake_has_every_call() {
    let (client, check) = (Client::fake([]), Check::new("a"));
    assert!(client.check_all([check.clone(), check.clone()]).await.unwrap().allowed);
    assert!(client.check_batch([check.clone(), check.clone()]).await.unwrap()[0].as_ref().unwrap().allowed);
    assert!(client.hold(check.clone()).await.unwrap().settle(2).await.unwrap()[0].settled);
    assert!(client.acquire(check.clone(), Duration::ZERO).await.unwrap().allowed);
    assert_eq!(client.refund(Refund::by_id("a", "a")).await.unwrap().refunded, 0);
    assert!(client.usage(check.clone()).await.unwrap().decision.allowed);
    let denied = Client::fake([Fake::Deny(WAIT)]).hold(check.clone()).await;
    assert!(matches!(denied, Err(Error::Denied(_))));
    assert!(matches!(Client::fake([Fake::Fail]).check(check).await, Err(Error::Unavailable(_))));
}

#[tokio::test]
async fn fake_limits_a_layer() {
    let client = Client::fake([Fake::Allow, Fake::Deny(WAIT), Fake::Fail]);
    let layer = LimitLayer::new(client).on_error(|_| {});
    let url = run(Router::new().route("/", get(async || "hello")).layer(layer)).await;
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::OK] {
        let response = Browser::new().get(&url).await;
        assert_eq!(response.status(), status);
        if status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(response.headers()["retry-after"], "30");
        }
    }
}
