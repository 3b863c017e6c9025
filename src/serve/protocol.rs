//! HTTP as the listeners speak it.

use hyper::rt::Executor;
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto::Builder;

use super::service::{HttpService, Service};
use crate::timeouts;
use crate::workers::{TaskKind, Workers};

/// Largest request line plus header fields of an HTTP/1.1 request, bytes. For HTTP/2 hyper permits
/// 16 KiB.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Bytes of a request body that an HTTP/2 client may send ahead on one stream. A connection permits
/// twice as many.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Streams that an HTTP/2 client may have open on one connection. Clients assume as many before they
/// know (RFC 9113, 6.5.2).
const MAX_STREAMS: u32 = 100;

/// Runs each HTTP/2 stream on the worker with the fewest streams. So one connection of a proxy uses
/// all cores.
#[derive(Debug, Clone)]
pub(super) struct StreamExecutor(Workers);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        self.0.spawn(TaskKind::Stream, stream);
    }
}

/// The protocol of a listener. gRPC needs HTTP/2.
pub(super) fn http(service: &Service, workers: &Workers) -> Builder<StreamExecutor> {
    let mut protocol = Builder::new(StreamExecutor(workers.clone()));
    // `timed_stream.rs` limits the time of clients without a timer for each request.
    protocol.http1().header_read_timeout(None);
    protocol.http2().timer(TokioTimer::new()).keep_alive_interval(timeouts::PING_INTERVAL);
    protocol
        .http2()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(2 * STREAM_WINDOW)
        .max_concurrent_streams(MAX_STREAMS);
    protocol.http1().max_buf_size(MAX_HEAD_BYTES);
    // A client that closes its sending side (`nc -N`) still receives its answer.
    protocol.http1().half_close(true);
    if let Service::Http(HttpService::Envoy(..)) = service {
        protocol = protocol.http2_only();
    }
    protocol
}
