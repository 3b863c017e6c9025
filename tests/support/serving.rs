//! A node's surface in the test's own process, for situations that the program cannot reach.

use std::convert::Infallible;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tollgate::access::Reach;
use tollgate::http::{CheckService, Surface, refuse_request};
use tollgate::node::{Arrival, Caller, Holdings, Node};

/// Serves the node on a free port as long as the runtime runs; returns its address.
pub(crate) async fn serve(node: Node) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let checks = CheckService::new(node, Surface::Whole, Reach::Loopback);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let holdings = Holdings::new(checks.load(), None);
            let checks = checks.with_caller(Caller::default(), holdings.clone());
            let service = service_fn(move |request| {
                let (checks, begun) = (checks.clone(), Arrival::begin(&holdings, request));
                async move {
                    let (_arrival, request) = match begun {
                        Ok(begun) => begun,
                        Err(unfit) => return Ok::<_, Infallible>(refuse_request(unfit)),
                    };
                    Ok(checks.answer(request, true).await)
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}
