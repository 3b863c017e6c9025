//! The only file that reads the time.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "this is the file that reads the time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
