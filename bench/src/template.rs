//! A request that is rendered once: each call changes only the numbers of the keys.

use tollgate::cli::target::Target;

use super::dialect::{Dialect, PLACEHOLDER, Subject};

#[derive(Debug, Clone)]
pub(super) struct Template {
    bytes: Vec<u8>,
    placeholders: Vec<usize>,
    /// All numbers are as long as the longest, so the length of the body never changes.
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
        let (head, body) = match dialect.commands(subject, digits) {
            Some(commands) => (String::new(), commands),
            None => http(target, dialect, subject, digits, token)?,
        };
        let (mut bytes, mut placeholders) = (Vec::new(), Vec::new());
        let mut letters = [0; 4];
        let mut open = 0;
        for letter in head.chars().chain(body.chars()) {
            if letter == PLACEHOLDER {
                if open % digits == 0 {
                    placeholders.push(bytes.len());
                }
                open += 1;
                bytes.push(b'0');
            } else {
                bytes.extend_from_slice(letter.encode_utf8(&mut letters).as_bytes());
            }
        }
        Ok(Self { bytes, placeholders, digits })
    }

    pub(super) fn render(&mut self, mut pick: impl FnMut() -> u64) -> &[u8] {
        for placeholder in &self.placeholders {
            let mut rest = pick();
            for digit in self.bytes[*placeholder..placeholder + self.digits].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        &self.bytes
    }
}

/// The head and the body of an HTTP request.
fn http(
    target: &Target,
    dialect: &Dialect,
    subject: &Subject,
    digits: usize,
    token: Option<&str>,
) -> Result<(String, String), String> {
    let widened = |text: String| text.replace(PLACEHOLDER, &PLACEHOLDER.to_string().repeat(digits));
    let (body, fields) = (widened(dialect.body(subject)?), widened(dialect.fields(subject)));
    let length = body.chars().map(|letter| if letter == PLACEHOLDER { 1 } else { letter.len_utf8() }).sum::<usize>();
    let shown = token.map(|token| dialect.token_field(token)).unwrap_or_default();
    let head = format!(
        "POST {}{} HTTP/1.1\r\nHost: {}\r\n{shown}{fields}Content-Length: {length}\r\n\r\n",
        target.path,
        dialect.path(),
        target.authority,
    );
    Ok((head, body))
}

#[cfg(test)]
mod tests {
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
    fn a_pipeline_has_a_command_for_each_check() {
        let target: Target = "http://127.0.0.1:6380".parse().unwrap();
        let subject = Subject { policy: "p".into(), key_prefix: "k-".into(), cost: 1 };
        let mut template = Template::new(&target, &Dialect::Resp { pipeline: 2 }, &subject, 100, None).unwrap();
        let mut next = 6;
        let text = String::from_utf8(
            template
                .render(|| {
                    next += 1;
                    next
                })
                .to_vec(),
        );
        let command = |key: &str| format!("*4\r\n$8\r\nTG.CHECK\r\n$1\r\np\r\n$4\r\n{key}\r\n$1\r\n1\r\n");
        assert_eq!(text.unwrap(), command("k-07") + &command("k-08"));
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
