//! `tollgate overrides`: lists and changes the overrides of a running node.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::client::{Node, encoded, parameters};
use super::offline::rfc3339;
use super::{block_on, complain, print, shown};
use crate::clock::unix_micros;
use crate::config::{span, visible};
use crate::limit::time::{MICROS_PER_MILLI, millis_up};

/// Faulty lines of an import that are reported one by one.
const MOST_FAULTS: usize = 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the overrides of a policy, in the order of their matches.
    List {
        policy: String,
        /// Only those whose match begins so, such as `key:al`.
        #[arg(long = "match", value_name = "TEXT")]
        start: Option<String>,
        #[command(flatten)]
        node: Node,
    },
    /// Give keys other quotas, a plan, or a verdict.
    Set(Box<Set>),
    /// End an override.
    Remove {
        policy: String,
        /// The match: `key:alice`, `prefix:test:` or `cidr:192.0.2.0/24`, or as `list` prints it.
        #[arg(value_name = "MATCH")]
        matched: String,
        /// The reason, for the audit.
        #[arg(long)]
        reason: Option<String>,
        /// The version that the override must have.
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
        #[command(flatten)]
        node: Node,
    },
    /// End all overrides of a policy. Nodes write back what Redis loses, so a flush of Redis ends
    /// none.
    Clear {
        policy: String,
        /// The reason, for the audit.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        node: Node,
    },
    /// Print all overrides of a policy, one JSON object a line, for `import`.
    Export {
        policy: String,
        #[command(flatten)]
        node: Node,
    },
    /// Set the overrides on standard input, as `export` prints them, but for those that have ended.
    /// Other overrides stay.
    Import {
        policy: String,
        /// Permit limits below the present ones.
        #[arg(long)]
        lower: bool,
        #[command(flatten)]
        node: Node,
    },
}

#[derive(Debug, clap::Args)]
struct Set {
    policy: String,
    /// The match: `key:alice`, `prefix:test:` or `cidr:192.0.2.0/24`.
    #[arg(value_name = "MATCH")]
    matched: String,
    #[command(flatten)]
    grant: Grant,
    /// How long it lasts, such as `1h`; without it until it is removed.
    #[arg(long, value_name = "TIME")]
    expires_in: Option<String>,
    /// The reason, for `explain` and the audit.
    #[arg(long)]
    reason: Option<String>,
    /// The version that the override must have; 0 if there must be none.
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
    /// Permit a limit below the present one.
    #[arg(long)]
    lower: bool,
    #[command(flatten)]
    node: Node,
}

// The grant of an override: limits, or one of the others.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Grant {
    /// A quota such as `1000 per 1m`; once for each.
    #[arg(long = "quota", value_name = "QUOTA", conflicts_with_all = ["plan", "deny", "allow"])]
    quotas: Vec<String>,
    /// The most open holds of a key, alone or beside quotas.
    #[arg(long, value_name = "PLACES", conflicts_with_all = ["plan", "deny", "allow"])]
    in_flight: Option<u64>,
    /// The limits of this plan.
    #[arg(long, conflicts_with_all = ["deny", "allow"])]
    plan: Option<String>,
    /// The keys are denied.
    #[arg(long, conflicts_with = "allow")]
    deny: bool,
    /// The keys are allowed and not counted.
    #[arg(long)]
    allow: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, String> {
    match &args.action {
        Action::List { policy, start, node } => {
            each(node, policy, start.as_deref(), |entry| print(&format!("{}\n", visible(&sentence(entry)))))?;
        }
        Action::Export { policy, node } => {
            each(node, policy, None, |entry| print(&format!("{}\n", shown::json(&wanted(entry).to_string()))))?;
        }
        Action::Clear { policy, reason, node } => {
            let removed = clear(node, policy, reason.as_deref())?;
            print(&format!("{removed} removed\n"))?;
        }
        Action::Set(set) => set.run()?,
        Action::Remove { policy, matched, reason, if_version, node } => {
            let body = json!({"match": parsed(matched)?, "reason": reason, "if_version": if_version});
            let removed = changed(node.delete(&path(policy), Some(&body))?)?;
            print(if removed["removed"] == true { "removed\n" } else { "there was none\n" })?;
        }
        Action::Import { policy, lower, node } => return block_on(import(node, policy, *lower)),
    }
    Ok(ExitCode::SUCCESS)
}

impl Set {
    fn run(&self) -> Result<(), String> {
        let Grant { quotas, in_flight, plan, deny, allow } = &self.grant;
        let mut body = json!({"match": parsed(&self.matched)?, "lower": self.lower});
        match (plan, deny, allow) {
            (Some(plan), ..) => body["plan"] = json!(plan),
            (None, true, _) => body["deny"] = json!(true),
            (None, _, true) => body["allow"] = json!(true),
            _ if quotas.is_empty() => {}
            _ => body["quotas"] = json!(quotas),
        }
        if let Some(places) = in_flight {
            body["in_flight"] = json!(places);
        }
        if let Some(time) = &self.expires_in {
            let micros = span(time).map_err(|fault| format!("--expires-in: {fault}"))?;
            body["expires_in_ms"] = json!(micros / MICROS_PER_MILLI);
        }
        body["reason"] = json!(self.reason);
        body["if_version"] = json!(self.if_version);
        let entry = changed(self.node.put(&path(&self.policy), &body)?)?;
        for warning in entry["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            complain(warning);
        }
        print(&format!("{}\n", visible(&sentence(&entry))))
    }
}

/// Sets each line of standard input. A faulty one is reported, and the others follow.
async fn import(node: &Node, policy: &str, lower: bool) -> Result<ExitCode, String> {
    let (mut set, mut ended, mut faults, mut connection) = (0, 0, 0, None);
    for (number, line) in std::io::stdin().lines().enumerate() {
        let line = line.map_err(|error| format!("standard input: {error}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let entry = serde_json::from_str::<Map<String, Value>>(&line);
        let put = match entry.map_err(|error| format!("no JSON object: {error}")).and_then(lasting) {
            Err(fault) => Err(fault),
            Ok(None) => {
                ended += 1;
                continue;
            }
            Ok(Some(mut entry)) => {
                entry.insert("lower".into(), json!(lower));
                node.put_over(&mut connection, &path(policy), &entry.into()).await.and_then(changed)
            }
        };
        match put {
            Ok(_) => set += 1,
            Err(fault) => {
                faults += 1;
                if faults <= MOST_FAULTS {
                    complain(&format!("line {}: {fault}", number + 1));
                }
            }
        }
    }
    let ended = if ended > 0 { format!(", {ended} skipped since they have ended") } else { String::new() };
    print(&format!("{set} set, {faults} failed{ended}\n"))?;
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// An exported override with the time that it has left instead of its end; none if it has ended.
/// Former versions exported the time.
fn lasting(mut entry: Map<String, Value>) -> Result<Option<Map<String, Value>>, String> {
    let Some(end) = entry.remove("expires_at").filter(|end| !end.is_null()) else { return Ok(Some(entry)) };
    let instant = end.as_str().and_then(rfc3339);
    let instant =
        instant.ok_or_else(|| format!("`expires_at` is {end}: write an instant such as \"2026-11-27T10:00:00Z\""))?;
    let left = u64::try_from(instant).unwrap_or_default().saturating_sub(unix_micros());
    entry.insert("expires_in_ms".into(), json!(millis_up(left)));
    Ok(Some(entry).filter(|_| left > 0))
}

/// Ends all overrides of a policy, page by page. Returns how many.
fn clear(node: &Node, policy: &str, reason: Option<&str>) -> Result<usize, String> {
    let mut removed = 0;
    loop {
        let mut page = Vec::new();
        each_of_page(node, policy, &[], |entry| {
            page.push(entry["match"].clone());
            Ok(())
        })?;
        if page.is_empty() {
            return Ok(removed);
        }
        let before = removed;
        for matched in page {
            let answer = changed(node.delete(&path(policy), Some(&json!({"match": matched, "reason": reason})))?)?;
            removed += usize::from(answer["removed"] == true);
        }
        if removed == before {
            return Err("the node lists overrides that it cannot remove: call it again".to_owned());
        }
    }
}

/// Calls `show` with each override of a policy.
fn each(
    node: &Node,
    policy: &str,
    start: Option<&str>,
    mut show: impl FnMut(&Value) -> Result<(), String>,
) -> Result<(), String> {
    let mut cursor: Option<String> = None;
    loop {
        let given = [("match", start), ("cursor", cursor.as_deref())];
        let given: Vec<_> = given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        match each_of_page(node, policy, &given, &mut show)? {
            Some(next) => cursor = Some(next),
            None => return Ok(()),
        }
    }
}

/// Calls `show` with each override of a page. Returns the cursor of the next one.
fn each_of_page(
    node: &Node,
    policy: &str,
    given: &[(&str, &str)],
    show: impl FnMut(&Value) -> Result<(), String>,
) -> Result<Option<String>, String> {
    let page = node.get(&format!("{}?{}", path(policy), parameters(given)))?;
    let body = page.json();
    let Some(entries) = body["entries"].as_array() else { return Err(page.failure()) };
    entries.iter().try_for_each(show)?;
    Ok(body["next"].as_str().map(str::to_owned))
}

fn path(policy: &str) -> String {
    format!("/v1/overrides/{}", encoded(policy))
}

/// The body of a successful change.
fn changed(answer: super::client::Answer) -> Result<Value, String> {
    if answer.status.is_success() { Ok(answer.json()) } else { Err(answer.failure()) }
}

/// A match such as `key:alice`, or as [`spelling`] has it, as the API has it.
fn parsed(matched: &str) -> Result<Value, String> {
    if matched.starts_with('{') {
        return serde_json::from_str(matched).map_err(|error| format!("{matched:?} is no JSON object: {error}"));
    }
    let (kind, text) = matched.split_once(':').unwrap_or_default();
    match kind {
        "key" | "prefix" | "cidr" => Ok(json!({kind: text})),
        _ => Err(format!("{matched:?} is no match: write `key:alice`, `prefix:test:` or `cidr:192.0.2.0/24`")),
    }
}

/// The members of an override that make it again; also those that only a later version knows.
fn wanted(entry: &Value) -> Value {
    let is_wanted = |name: &str| !matches!(name, "at" | "by" | "version" | "expires_in_ms");
    let members = entry.as_object().into_iter().flatten().filter(|(name, _)| is_wanted(name));
    members.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>().into()
}

/// A match such as `key:alice`, or a JSON object if it has letters that a terminal does not show.
fn spelling(matched: &Value) -> String {
    let part = matched.as_object().and_then(|matched| matched.iter().next());
    let text = part.map(|(kind, text)| format!("{kind}:{}", text.as_str().unwrap_or("?"))).unwrap_or_default();
    if visible(&text) == text { text } else { shown::json(&matched.to_string()) }
}

/// A line such as `key:alice  plan pro  until 2026-11-27T10:00:00Z  by ci: case 4711`.
fn sentence(entry: &Value) -> String {
    let text = |name: &str| entry[name].as_str().unwrap_or("?");
    let matched = spelling(&entry["match"]);
    let places = entry["in_flight"].as_u64().map(|places| format!("in_flight {places}"));
    let grant = match (&entry["quotas"], &entry["plan"]) {
        (Value::Array(quotas), _) => {
            let quotas: Vec<_> =
                quotas.iter().map(|quota| quota.as_str().map_or_else(|| quota.to_string(), Into::into)).collect();
            quotas.iter().map(String::as_str).chain(places.as_deref()).collect::<Vec<_>>().join(", ")
        }
        (_, Value::String(plan)) => format!("plan {plan}"),
        _ if entry["deny"] == true => "deny".to_owned(),
        _ if entry["allow"] == true => "allow".to_owned(),
        _ => places.unwrap_or_else(|| "a grant that this version does not know".to_owned()),
    };
    let until = entry["expires_at"].as_str().map(|end| format!("  until {end}")).unwrap_or_default();
    let reason = entry["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{matched}  {grant}{until}  by {}{reason}", text("by"))
}
