use std::sync::OnceLock;
use std::time::Duration;

use http::HeaderMap;

use crate::error::{Error, Problem};

/// Mistakes in the configuration, each told once. Without these words a limiter that fails open
/// would pass requests in silence.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    policy: OnceLock<()>,
    hold: OnceLock<()>,
    token: OnceLock<()>,
    deadline: OnceLock<()>,
    proxy: OnceLock<()>,
}

impl Warnings {
    pub fn about(&self, error: &Error) {
        if let Error::Problem(problem) = error {
            self.about_problem(problem);
        }
    }

    pub fn about_problem(&self, problem: &Problem) {
        match problem.status {
            404 if problem.name() == "unknown-policy" => {
                _ = self.policy.get_or_init(|| {
                    let known = problem.known.join(", ");
                    tracing::warn!(
                        "{}: it has {known}. Checks of it get no decision: set `policy` to one of them",
                        problem.detail
                    );
                })
            }
            404 if problem.name() == "no-hold" => {
                _ = self.hold.get_or_init(|| tracing::warn!("{}", problem.detail));
            }
            401 | 403 => {
                _ = self.token.get_or_init(|| {
                    tracing::warn!("the node refused the token: set `token` to a check token of the node");
                })
            }
            _ => {}
        }
    }

    /// `waited` is what a node had for its answer, and `timeout` what its store has.
    pub fn about_timeout(&self, waited: Duration, timeout: Duration) {
        if waited <= timeout {
            let (waited, timeout) = (waited.as_millis(), timeout.as_millis());
            self.deadline.get_or_init(|| {
                tracing::warn!(
                    "the deadline of {waited} ms is not above the node's timeout of {timeout} ms: set the deadline to \
                     at least {} ms",
                    2 * timeout
                );
            });
        }
    }

    /// A request that counts by the address of its peer.
    pub fn about_proxy(&self, headers: &HeaderMap) {
        if ["x-forwarded-for", "forwarded"].iter().any(|name| headers.contains_key(*name)) {
            self.proxy.get_or_init(|| {
                tracing::warn!(
                    "requests have X-Forwarded-For or Forwarded, but the key is the address of the peer, so all \
                     clients behind one proxy count as one: set `key` to a function that trusts the proxy"
                );
            });
        }
    }
}
