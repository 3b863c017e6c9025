//! `tollgate validate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::Access;

use super::{load, print, say};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration to read; `-` is standard input. TOLLGATE_LISTEN, TOLLGATE_ADMIN_LISTEN and
    /// TOLLGATE_STORE beat it, as for `serve`; the variables OTEL_* are read by `serve` alone.
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let config = match load::config(&args.file) {
        Ok(config) => config,
        Err(faults) => {
            // Editors and CI parse each line, so the first line has no prefix.
            say(&faults.to_string());
            return Ok(ExitCode::FAILURE);
        }
    };
    let of_files = config.warnings.iter().cloned();
    let warnings = of_files
        .chain(config.access.warnings())
        .chain(config.policies.warnings(|policy, plan| config.access.may_check(policy, plan)))
        .chain(config.idle_leases())
        .chain(unwritable(config.overrides_file.as_deref()))
        .chain(config.gates.warnings());
    warnings.for_each(|warning| say(&format!("warning: {warning}")));
    let counted = |number: usize, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
    let written = config.policies.by_name.values().filter(|policy| !policy.is_of_envoy()).count();
    let mut told = counted(written, "policy", "policies");
    if !config.gates.0.is_empty() {
        told += &format!(", {}", counted(config.gates.0.len(), "gate", "gates"));
    }
    if let Some((domains, rules)) = config.envoy_counts() {
        told +=
            &format!(", {} of Envoy with {}", counted(domains, "domain", "domains"), counted(rules, "rule", "rules"));
    }
    print(&format!("{}: valid, {told}\n", config.policies.origin))?;
    Ok(ExitCode::SUCCESS)
}

/// Why the file of the overrides cannot be written.
fn unwritable(file: Option<&Path>) -> Option<String> {
    let folder = file?.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let error = rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!(
        "the folder of `overrides.file`, {}, is not writable here: {}. The packages have /var/lib/tollgate for it",
        folder.display(),
        std::io::Error::from(error)
    ))
}
