//! `tollgate top`: the live state of one or several nodes, summed.
//!
//! `feed.rs` reads the snapshots of each node, and connects again after a failure. `fleet.rs` sums
//! them. `render.rs` draws the sum for `terminal.rs`, and `lines.rs` prints it for programs.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::block_on;
use super::client::Access;
use super::target::Target;

mod snapshot;

mod events;

mod feed;

mod fleet;

mod numbers;

mod render;

mod terminal;

mod lines;

use feed::Feed;
use fleet::{Fleet, MOST_SECONDS};

/// The most nodes.
const MOST_NODES: usize = 100;

/// The history for the lines, which need only the time without a connection.
const LINES_SECONDS: u64 = 60;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The nodes to watch: one or more, at the address of their operators' calls.
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_URL",
        default_value = "http://127.0.0.1:7070",
        value_delimiter = ',',
        num_args = 1..
    )]
    url: Vec<String>,
    /// Print a JSON object a second, instead of the picture.
    #[arg(long)]
    json: bool,
    /// End after this many lines.
    #[arg(long, value_name = "N", requires = "json", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    access: Access,
}

pub(super) fn run(args: Args) -> Result<ExitCode, String> {
    if !args.json && !terminal::is_there() {
        return Err("there is no terminal to draw on: --json prints a line a second".into());
    }
    if args.url.len() > MOST_NODES {
        return Err(format!("--url: at most {MOST_NODES} nodes"));
    }
    let targets: Vec<Target> = args.url.iter().map(|url| url.parse()).collect::<Result<_, _>>()?;
    let names: Vec<String> = targets.iter().map(Target::to_string).collect();
    if let Some(twice) = names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)) {
        return Err(format!("--url: {} is named twice, and would count twice", twice.1));
    }
    block_on(show(targets, args))
}

async fn show(targets: Vec<Target>, args: Args) -> Result<ExitCode, String> {
    let Args { json, count, access, .. } = args;
    let mut fleet = Fleet::new(targets.iter().map(Target::to_string));
    let (sender, mut news) = mpsc::channel(targets.len());
    let question = watch::Sender::default();
    let access = Arc::new(access);
    for (place, target) in targets.into_iter().enumerate() {
        let feed = Feed { place, target, access: access.clone(), news: sender.clone() };
        tokio::spawn(feed.clone().follow(if json { LINES_SECONDS } else { MOST_SECONDS }));
        if !json {
            tokio::spawn(feed.ask_keys(question.subscribe()));
        }
    }
    match json {
        true => lines::write(&mut fleet, &mut news, count).await?,
        false => terminal::show(&mut fleet, &mut news, &question).await?,
    }
    match fleet.unheard() {
        Some(reason) => Err(reason),
        None => Ok(ExitCode::SUCCESS),
    }
}
