//! Checks in the background, as services make them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use crate::support::http;

/// Batches of checks until it is dropped.
pub(crate) struct Load {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Checks of many keys under the policies `default` and `per-ip`, of which some are denied.
    pub(crate) fn start(address: &str, token: Option<&str>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (until, address) = (ended.clone(), address.to_owned());
        let bearer = token.map(|token| format!("Bearer {token}"));
        let thread = std::thread::spawn(move || {
            let mut round = 0_u32;
            let mut headers = vec![("Content-Type", "application/json")];
            headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
            while !until.load(Ordering::Relaxed) {
                // A frozen shard makes some calls slow, and a stopped node breaks them.
                let call = http::request("POST", "/v1/check/batch", &headers, batch(round).as_bytes());
                let _ = http::try_exchange(&address, &call);
                round += 1;
                std::thread::sleep(Duration::from_millis(40));
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

/// Forty checks. Low numbers of addresses come most often.
fn batch(round: u32) -> String {
    let address = |place: u32| {
        let heavy = (round * 7 + place * place) % 97;
        format!("203.0.113.{}", if place.is_multiple_of(2) { heavy % 9 } else { heavy })
    };
    let check = |place: u32| match place % 4 {
        0 => json!({"policy": "default", "key": format!("service-{}", (round + place) % 40)}),
        1 => json!({"policy": "login", "key": format!("user-{}", (round * 3 + place) % 60)}),
        _ => json!({"policy": "per-ip", "key": address(place)}),
    };
    json!({"checks": (0..40).map(check).collect::<Vec<_>>()}).to_string()
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
