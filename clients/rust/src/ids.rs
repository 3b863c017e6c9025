use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::rand::{SecureRandom, SystemRandom};

use crate::options::InvalidOptions;

/// Makes ids that no other process makes: a random text of the client, and a number.
#[derive(Debug)]
pub(crate) struct Ids {
    prefix: String,
    next: AtomicU64,
}

impl Ids {
    pub fn new() -> Result<Self, InvalidOptions> {
        let mut random = [0; 16];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| InvalidOptions("the system has no random numbers for `retry`".to_owned()))?;
        Ok(Self { prefix: hexadecimal(&random), next: AtomicU64::new(1) })
    }

    pub fn next(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(self.prefix.len() + 17);
        id.push_str(&self.prefix);
        // Writing to a string never fails.
        let _ = write!(id, "-{number:x}");
        id
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
