//! Notices: a policy reports keys that cross a part of a limit.

use std::fmt;

/// The notices of a policy.
#[derive(Clone, PartialEq, Eq)]
pub struct Notify {
    /// Parts of a limit in percent, 1 to 100, in rising order.
    pub marks: Vec<u8>,
    /// The receiver. Its path may be a secret.
    pub url: String,
    /// `https://host:port` of the receiver.
    pub origin: String,
    /// Signs each notice.
    pub secret: Box<[u8]>,
}

impl Notify {
    /// The marks of `limit` that the use of so many units crosses, from `before` to `after`.
    pub fn crossed(&self, limit: u64, before: u64, after: u64) -> impl Iterator<Item = u8> {
        let units = move |mark: &u8| (u128::from(limit) * u128::from(*mark)).div_ceil(100);
        self.marks
            .iter()
            .copied()
            .filter(move |mark| (u128::from(before) + 1..=after.into()).contains(&units(mark)))
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Notify")
            .field("marks", &self.marks)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_crossed_by_the_charge_that_reaches_it() {
        let secret = b"secret of the receiver".to_vec().into();
        let (url, origin) = ("https://a.example/hook".to_owned(), "https://a.example".to_owned());
        let notify = Notify { marks: vec![80, 100], url, origin, secret };
        for (limit, before, after, expected) in [
            (10, 0, 7, &[][..]),
            (10, 7, 8, &[80]),
            (10, 8, 9, &[]),
            (10, 9, 10, &[100]),
            (10, 0, 10, &[80, 100]),
            (3, 1, 2, &[]),
            (3, 2, 3, &[80, 100]),
            (1, 0, 1, &[80, 100]),
            (10, 10, 12, &[]),
            (1_000_000_000_000_000, 0, 799_999_999_999_999, &[]),
        ] {
            assert_eq!(notify.crossed(limit, before, after).collect::<Vec<_>>(), expected, "{limit} {before} {after}");
        }
        let shown = format!("{notify:?}");
        assert!(!shown.contains("secret") && !shown.contains("hook"), "{shown}");
    }
}
