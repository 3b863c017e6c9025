use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::browser::Browser;
use crate::cases::client;
use crate::node::Node;
use crate::servers::run;

#[allow(dead_code, reason = "the test runs the application without its main function")]
#[path = "../../examples/axum.rs"]
mod axum;

#[tokio::test]
async fn example_limits_by_address_and_by_user() {
    let node = Node::start("rust/examples/tollgate.yaml");
    let (url, browser) = (run(self::axum::app(&client(&node.url()))).await, Browser::new());
    let report = async |user| {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(user))]);
        browser.send(Method::GET, &format!("{url}/report"), headers, Bytes::new()).await
    };
    for _ in 0..4 {
        assert_eq!(report("Bearer alice").await.status(), StatusCode::OK);
    }
    let denied = report("Bearer alice").await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.body(), "Your reports of this minute are used up.\n");
    assert!(denied.headers().contains_key("retry-after"));
    assert_eq!(report("Bearer bob").await.status(), StatusCode::OK);
    assert_eq!(report("").await.status(), StatusCode::UNAUTHORIZED);
    // Seven requests from this address were counted.
    let hello = browser.get(&url).await;
    let fields = hello.headers()["ratelimit"].to_str().unwrap();
    assert!(hello.status() == StatusCode::OK && fields.starts_with("\"1m\";r=92;"), "{fields}");
}
