//! Two limits of one application: by address for all routes, by user for one that costs more.
//!
//! ```sh
//! tollgate serve --config examples/tollgate.yaml
//! cargo run --example axum
//! curl -i http://127.0.0.1:8080/
//! curl -i -H 'authorization: Bearer alice' http://127.0.0.1:8080/report
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use tollgate_limiter::{Client, LimitLayer, Options};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::new(Options::default().nodes(["http://127.0.0.1:7070"]))?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    // Without the address of its peer, a request has no default key.
    let service = app(&client).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    client.close().await;
    Ok(())
}

pub fn app(client: &Client) -> Router {
    let per_ip = LimitLayer::new(client.clone()).policy("per-ip");
    let per_user = LimitLayer::new(client.clone())
        .policy("per-user")
        .key(user)
        .cost(|_| 5)
        .body("Your reports of this minute are used up.\n");
    Router::new()
        .route("/report", get(async || "a long report\n"))
        .layer(per_user)
        // Layers below run first: a limit by user needs the user.
        .layer(middleware::from_fn(authenticate))
        .route("/", get(async || "hello\n"))
        .layer(per_ip)
}

#[derive(Clone)]
struct User(String);

fn user(request: &Parts) -> Option<String> {
    request.extensions.get().map(|User(name)| name.clone())
}

/// Stands for an authentication: it believes the token.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let header = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let name = header.and_then(|text| text.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
    let user = User(name.to_owned());
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}
