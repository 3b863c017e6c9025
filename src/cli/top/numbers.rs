//! Numbers as people read them, each short enough for a column.

use indicatif::HumanCount;

/// `812`, `1,234`; from a million on `1.2M`.
pub(super) fn count(number: u64) -> String {
    if number >= 1_000_000 {
        return short(number);
    }
    HumanCount(number).to_string()
}

/// `812`, `12.3k`, `1.2M`, `3.4G`: at most 6 characters below 10^18.
pub(super) fn short(number: u64) -> String {
    scaled(number, 1000, ["", "k", "M", "G", "T", "P"])
}

/// The same for bytes, in powers of 1024: `1.5Mi`.
pub(super) fn bytes(number: u64) -> String {
    scaled(number, 1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi"])
}

fn scaled(number: u64, step: u64, units: [&str; 6]) -> String {
    let mut unit = 0;
    let mut size = 1;
    while number / size >= step && unit + 1 < units.len() {
        (unit, size) = (unit + 1, size * step);
    }
    let (whole, tenth) = (number / size, number % size * 10 / size);
    match whole < 100 && unit > 0 {
        true => format!("{whole}.{tenth}{}", units[unit]),
        false => format!("{whole}{}", units[unit]),
    }
}

/// A span: `21 us`, `4.1 ms`, `1.2 s`.
pub(super) fn micros(span: u64) -> String {
    match span {
        0..1000 => format!("{span} us"),
        1000..1_000_000 => format!("{}.{} ms", span / 1000, span % 1000 / 100),
        _ => format!("{}.{} s", span / 1_000_000, span % 1_000_000 / 100_000),
    }
}

/// Counts as a line of bars, `width` wide. Each bar is the mean of its part, and the highest is
/// full.
pub(super) fn sparkline(counts: &[u64], width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if counts.is_empty() || width == 0 {
        return String::new();
    }
    let width = width.min(counts.len());
    let part = |place: usize| {
        let part = &counts[place * counts.len() / width..(place + 1) * counts.len() / width];
        // Thousandths keep rates below one a second apart from none.
        part.iter().sum::<u64>().saturating_mul(1000) / part.len() as u64
    };
    let parts: Vec<u64> = (0..width).map(part).collect();
    let most = parts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |height: u64| BARS[usize::try_from(height.saturating_mul(8).div_ceil(most)).unwrap_or(8).min(8)];
    parts.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 999_999].map(count), ["0", "999", "1,000", "999,999"]);
        assert_eq!([999, 1000, 99_999, 123_456, 1_234_567].map(short), ["999", "1.0k", "99.9k", "123k", "1.2M"]);
        assert_eq!([1023, 1536, 100 << 20, 3 << 30].map(bytes), ["1023", "1.5Ki", "100Mi", "3.0Gi"]);
        assert_eq!([21, 4_150, 1_250_000].map(micros), ["21 us", "4.1 ms", "1.2 s"]);
        assert!(short(u64::MAX).len() < 8 && bytes(u64::MAX).len() < 8);
    }

    #[test]
    fn bars_follow_the_counts() {
        assert_eq!(sparkline(&[0, 1, 4, 8], 4), " ▁▄█");
        assert_eq!(sparkline(&[0, 0, 8, 8, 0, 1], 3), " █▁");
        assert_eq!(sparkline(&[0, 0], 9), "  ");
        assert_eq!(sparkline(&[], 9), "");
        assert_eq!(sparkline(&[u64::MAX, 1], 2).chars().count(), 2);
    }
}
