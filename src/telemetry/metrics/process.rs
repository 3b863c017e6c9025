//! The process metrics, from Linux's /proc. Other systems have none.

use std::fs;

use super::{Metrics, Seconds, single};

/// Ticks of /proc in a second, on every machine.
const TICKS: f64 = 100.0;

/// Adds the process metrics. Unreadable ones have no series.
pub fn read(metrics: &mut Metrics) {
    let text = |path| fs::read_to_string(path).ok();
    if let Some(stat) = text("/proc/self/stat").as_deref().and_then(Stat::parse) {
        metrics.process_cpu = single(Seconds(stat.cpu / TICKS));
        if let Some(boot) = text("/proc/stat").as_deref().and_then(boot_time) {
            metrics.process_start_time = single(boot + stat.started / TICKS);
        }
    }
    let status = text("/proc/self/status").unwrap_or_default();
    if let Some(resident) = memory(&status, "VmRSS:") {
        metrics.process_resident_memory = single(resident);
    }
    if let Some(mapped) = memory(&status, "VmSize:") {
        metrics.process_virtual_memory = single(mapped);
    }
    if let Some(open) = fs::read_dir("/proc/self/fd").ok().and_then(|open| u32::try_from(open.count()).ok()) {
        // The listing itself has one descriptor open.
        metrics.process_open_fds = single(f64::from(open.saturating_sub(1)));
    }
    if let Some(most) = text("/proc/self/limits").as_deref().and_then(max_fds) {
        metrics.process_max_fds = single(most);
    }
}

struct Stat {
    /// Ticks in user and system mode.
    cpu: f64,
    /// Ticks after the machine's start.
    started: f64,
}

impl Stat {
    /// Counts the fields after the name, since the name may hold any text.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self { cpu: field(14)? + field(15)?, started: field(22)? })
    }
}

fn boot_time(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// A size in `status`, in bytes.
fn memory(text: &str, name: &str) -> Option<f64> {
    let kilobytes = text.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?;
    Some(kilobytes.parse::<f64>().ok()? * 1024.0)
}

/// The soft limit. `unlimited` has no number.
fn max_fds(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0 4200 900000 2500 184467";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.cpu, stat.started), (200.0, 4200.0));
        assert_eq!(memory("Name:\ta\nVmRSS:\t    2048 kB\n", "VmRSS:"), Some(2_097_152.0));
        assert_eq!(boot_time("cpu 1\nbtime 1700000000\n"), Some(1_700_000_000.0));
        assert_eq!(max_fds("Limit Soft Hard\nMax open files            1024   4096   files\n"), Some(1024.0));
    }
}
