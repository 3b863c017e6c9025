//! A request that is rendered once: each call changes only the numbers of the keys.

use tollgate::cli::target::Target;

use super::dialect::{Dialect, Subject};
use super::{grpc, resp};

#[derive(Debug, Clone)]
pub(super) struct Template {
    bytes: Vec<u8>,
    /// The first digit of each key.
    places: Vec<usize>,
    /// All numbers are as long as the longest, so no length ever changes.
    digits: usize,
}

impl Template {
    /// # Errors
    /// When the service does not support the settings.
    pub(super) fn new(
        target: &Target,
        dialect: &Dialect,
        subject: &Subject,
        keys: u64,
        token: Option<&str>,
    ) -> Result<Self, String> {
        let digits = keys.saturating_sub(1).to_string().len();
        let with = |digit: &str| {
            let key = subject.key_prefix.clone() + &digit.repeat(digits);
            request(target, dialect, subject, &key, token)
        };
        let (bytes, other) = (with("0")?, with("1")?);
        let different = bytes.iter().zip(&other).enumerate().filter(|(_, (zero, one))| zero != one);
        let places = different.map(|(place, _)| place).step_by(digits).collect();
        Ok(Self { bytes, places, digits })
    }

    pub(super) fn render(&mut self, mut pick: impl FnMut() -> u64) -> &[u8] {
        for place in &self.places {
            let mut rest = pick();
            for digit in self.bytes[*place..place + self.digits].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        &self.bytes
    }
}

/// A request; by gRPC its message, since the head is the same for all.
fn request(
    target: &Target,
    dialect: &Dialect,
    subject: &Subject,
    key: &str,
    token: Option<&str>,
) -> Result<Vec<u8>, String> {
    match dialect {
        Dialect::Resp { pipeline, throttle } => Ok(resp::commands(subject, key, *pipeline, *throttle)),
        Dialect::Grpc { quotas, .. } => grpc::message(subject, key, *quotas),
        _ => http(target, dialect, subject, key, token).map(String::into_bytes),
    }
}

fn http(
    target: &Target,
    dialect: &Dialect,
    subject: &Subject,
    key: &str,
    token: Option<&str>,
) -> Result<String, String> {
    let body = dialect.body(subject, key)?;
    let shown = token.map(|token| dialect.token_field(token)).unwrap_or_default();
    Ok(format!(
        "POST {}{} HTTP/1.1\r\nHost: {}\r\n{shown}{}Content-Length: {}\r\n\r\n{body}",
        target.path,
        dialect.path(),
        target.authority,
        dialect.fields(key),
        body.len(),
    ))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tollgate::gateway::envoy::messages::RateLimitRequest;

    use super::*;

    #[test]
    fn only_the_numbers_change() {
        let target: Target = "http://[::1]:7070/inner/".parse().unwrap();
        let subject = Subject { policy: "é".into(), key_prefix: "k".into(), cost: 1 };
        let dialect = Dialect::Tollgate { batch: Some(2) };
        let mut template = Template::new(&target, &dialect, &subject, 1000, None).unwrap();
        let mut next = 41;
        let text = String::from_utf8(
            template
                .render(|| {
                    next += 1;
                    next
                })
                .to_vec(),
        )
        .unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, r#"{"checks":[{"key":"k042","policy":"é"},{"key":"k043","policy":"é"}]}"#);
        assert!(head.starts_with("POST /inner/v1/check/batch HTTP/1.1\r\nHost: [::1]:7070\r\n"), "{head}");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
    }

    #[test]
    fn a_message_has_the_key_once_for_each_quota() {
        let target: Target = "http://127.0.0.1:8081".parse().unwrap();
        // A length of two bytes, which is no UTF-8.
        let subject = Subject { policy: "d".repeat(200), key_prefix: "k".into(), cost: 1 };
        let dialect = Dialect::Grpc { connections: 1, quotas: 2 };
        let mut template = Template::new(&target, &dialect, &subject, 1000, None).unwrap();
        let mut keys = [42, 43].into_iter();
        let message = template.render(|| keys.next().unwrap());
        let descriptors = RateLimitRequest::decode(&message[5..]).unwrap().descriptors;
        let values: Vec<_> = descriptors.iter().map(|descriptor| &*descriptor.entries[0].value).collect();
        assert_eq!(values, ["k042", "k043"]);
    }

    #[test]
    fn a_gate_finds_the_key_in_a_field() {
        let target: Target = "http://127.0.0.1:7070".parse().unwrap();
        let subject = Subject { policy: "p".into(), key_prefix: "k".into(), cost: 1 };
        let mut template = Template::new(&target, &Dialect::Gate("edge".into()), &subject, 1000, None).unwrap();
        let text = String::from_utf8(template.render(|| 42).to_vec()).unwrap();
        let fields = "Host: 127.0.0.1:7070\r\nX-User: k042\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(text, format!("POST /v1/gate/edge HTTP/1.1\r\n{fields}"));
    }
}
