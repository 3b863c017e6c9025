//! `tollgate explain`: the effect of a file's policy on a key, or of its gate on a request, offline.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{load, print, shown};

mod gate;

mod policy;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration with the policy; `-` is standard input.
    file: PathBuf,
    /// The policy's name.
    #[arg(required_unless_present = "gate")]
    policy: Option<String>,
    /// The key, as a check would name it.
    #[arg(required_unless_present = "gate")]
    key: Option<String>,
    #[command(flatten)]
    question: gate::Question,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    let config = load::config(&args.file).map_err(|faults| faults.to_string())?;
    let (told, text) = match (&args.question.gate, &args.policy, &args.key) {
        (Some(name), ..) => {
            let told = gate::explain(&config, name, &args.question)?;
            let text = gate::text(&told);
            (told, text)
        }
        (None, name, key) => {
            let told =
                policy::explain(&config, name.as_deref().unwrap_or_default(), key.as_deref().unwrap_or_default())?;
            let text = policy::lines(&policy::text(&told));
            (told, text)
        }
    };
    print(&if args.json { shown::json(&format!("{told}\n")) } else { text })?;
    Ok(ExitCode::SUCCESS)
}
