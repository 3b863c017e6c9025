//! `tollgate explain`: the effect of a file's policy on a key, or of its gate on a request,
//! offline. A running node explains its own policies.

use std::path::PathBuf;
use std::process::ExitCode;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};

use super::client::{Access, parameters};
use super::{load, print, shown};

mod descriptor;

mod gate;

mod policy;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration with the policy; `-` is standard input. Or the URL of a running node, such
    /// as `http://127.0.0.1:7070`.
    #[arg(value_name = "FILE|URL")]
    file: PathBuf,
    /// The policy's name.
    #[arg(required_unless_present_any = ["gate", "domain"])]
    policy: Option<String>,
    /// The key, as a check would name it.
    #[arg(required_unless_present_any = ["gate", "domain"])]
    key: Option<String>,
    #[command(flatten)]
    question: gate::GateQuestion,
    /// A domain of Envoy, instead of a policy and a key.
    #[arg(long, conflicts_with_all = ["policy", "gate"], requires = "descriptor")]
    domain: Option<String>,
    /// An entry of the descriptor, as KEY=VALUE; once for each entry, in order.
    #[arg(long, requires = "domain")]
    descriptor: Vec<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    if let Some(url) = args.file.to_str().filter(|file| file.starts_with("http://") || file.starts_with("https://")) {
        return of_node(args, url);
    }
    let config = load::config(&args.file).map_err(|faults| faults.to_string())?;
    let (told, text) = match (&args.question.gate, &args.domain) {
        (Some(name), _) => {
            let told = gate::explain(&config, name, &args.question)?;
            let text = gate::text(&told);
            (told, text)
        }
        (None, domain) => {
            let told = match domain {
                Some(domain) => descriptor::explain(&config, domain, &args.descriptor)?,
                None => policy::explain(
                    &config,
                    args.policy.as_deref().unwrap_or_default(),
                    args.key.as_deref().unwrap_or_default(),
                )?,
            };
            let text = policy::lines(&policy::text(&told));
            (told, text)
        }
    };
    print(&if args.json { shown::json(&format!("{told}\n")) } else { text })?;
    Ok(ExitCode::SUCCESS)
}

/// Explains a policy in force on the node at `url`.
fn of_node(args: &Args, url: &str) -> Result<ExitCode, String> {
    let (Some(policy), Some(key)) = (&args.policy, &args.key) else {
        return Err("a node explains a POLICY and a KEY: --gate and --domain need the file".into());
    };
    let query = parameters(&[("policy", policy), ("key", key)]);
    let answer = args.access.call(url, Method::GET, &format!("/v1/explain?{query}"), Bytes::new())?;
    let told = answer.json();
    if answer.status != StatusCode::OK || !told["policy"].is_string() {
        return Err(answer.failure());
    }
    answer.show(args.json, || policy::lines(&policy::text_of_node(&told)))?;
    Ok(ExitCode::SUCCESS)
}
