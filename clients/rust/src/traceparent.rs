/// Whether `text` is `00-<32 digits>-<16 digits>-<2 digits>`, in lower-case hexadecimal (W3C Trace
/// Context). A caller of a service may choose any text. A node would reject a call with a faulty
/// one, so that its check would not count.
pub(crate) fn is_valid(text: &str) -> bool {
    let is_right = |(place, letter): (usize, u8)| match place {
        2 | 35 | 52 => letter == b'-',
        _ => matches!(letter, b'0'..=b'9' | b'a'..=b'f'),
    };
    text.len() == 55 && text.bytes().enumerate().all(is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_is_valid() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(is_valid(valid));
        for text in ["", "a\r\nx: y", &valid.to_uppercase(), &valid[1..], &"-".repeat(55), &"a".repeat(55)] {
            assert!(!is_valid(text), "{text}");
        }
        assert!(!is_valid(&format!("{valid}\n")));
    }
}
