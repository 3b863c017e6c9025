//! A node's surface in the test's own process, for situations that the program cannot reach.

use std::convert::Infallible;

use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tollgate::access::Reach;
use tollgate::http::{CheckService, Surface};
use tollgate::node::Node;

/// Serves the node on a free port as long as the runtime runs; returns its address.
pub(crate) async fn serve(node: Node) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let checks = CheckService::new(node, Surface::Whole, Reach::Loopback);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let checks = checks.clone();
            let service = service_fn(move |request| checks.clone().answer(request, true).map(Ok::<_, Infallible>));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}
