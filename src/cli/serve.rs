//! `tollgate serve`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::{block_on, descriptors, fail, load, log, print, signals};
use crate::clock::unix_micros;
use crate::config::{Config, Faults, Overrides, Setup};
use crate::reload::{ON_NODE, Reloader};
use crate::serve::Server;

/// A signal this soon after the first one is a repetition of it: `timeout` signals the process and
/// then its group.
const REPEATED_SIGNAL: Duration = Duration::from_secs(1);

/// The variable that names the configuration when the command line does not.
const CONFIG: &str = "TOLLGATE_CONFIG";

/// A flag beats its environment variable, which beats the file.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration; `-` is standard input. Without one, that which TOLLGATE_CONFIG names, or
    /// else the built-in example policies.
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The same.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to answer checks.
    #[arg(long, value_name = "ADDR", env = load::LISTEN)]
    listen: Option<String>,
    /// Where to answer operators, if not there as well.
    #[arg(long, value_name = "ADDR", env = load::ADMIN_LISTEN)]
    admin_listen: Option<String>,
    /// One or more nodes of Redis: `redis://host:port`, also separated by commas. Or one
    /// `unix:///path`.
    #[arg(long, value_name = "URL", env = load::STORE, num_args = 1..)]
    store: Vec<String>,
}

impl Args {
    fn setup(self) -> Setup {
        let (listen, admin_listen, store) = (self.listen, self.admin_listen, self.store);
        let overrides = Overrides { listen, admin_listen, store, ..Overrides::default() };
        // Not through clap: it rejects a variable together with an argument.
        let variable = || std::env::var_os(CONFIG).filter(|file| !file.is_empty()).map(PathBuf::from);
        Setup { file: self.file.or(self.config).or_else(variable), overrides, ..Setup::default() }
    }
}

pub(super) fn run(args: Args) -> ExitCode {
    if let Err(error) = descriptors::some_are_free() {
        return fail(&format!("{error}: raise `ulimit -n` (LimitNOFILE)"), 1);
    }
    log::start(None);
    run_node(args.setup().with_text())
}

/// Runs a node until a signal ends it. The log has started.
pub(super) fn run_node(setup: Result<Setup, Faults>) -> ExitCode {
    let config = setup.and_then(|setup| Ok((setup.load(unix_micros())?, setup))).map_err(|faults| faults.to_string());
    // Must run while there is only one thread.
    let config = config.map(|(config, setup)| (descriptors::reserve(&config), config, setup));
    if let Err(error) = log::write() {
        return fail(&error.to_string(), 1);
    }
    let served = config.and_then(|(connections, config, setup)| block_on(serve(setup, config, connections)));
    log::end(served.as_ref().err().map(String::as_str));
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn serve(setup: Setup, config: Config, connections: u64) -> Result<(), String> {
    let ends = signals(&[SignalKind::terminate(), SignalKind::interrupt()]).map_err(|error| error.to_string())?;
    let hangup = signal(SignalKind::hangup()).map_err(|error| error.to_string())?;
    let server = Server::open(setup, config).await.map_err(|error| error.to_string())?;
    let server = server.with_connections(connections);
    // A separate thread prints the greeting, because a full pipe may block it. Without a thread
    // there is no greeting.
    let greeting = server.greeting();
    let _ = std::thread::Builder::new().name("greeting".into()).spawn(move || drop(print(&greeting)));
    let reloads = reload_on(hangup, server.reloader());
    let (stop, stopped) = oneshot::channel();
    tokio::select! {
        () = server.run(async { drop(stopped.await) }) => Ok(()),
        () = reloads => Ok(()),
        () = end_on(ends, stop) => Ok(()),
    }
}

/// Stops the node at the first signal, and ends the process at once at a later one.
async fn end_on(mut ends: mpsc::Receiver<()>, stop: oneshot::Sender<()>) {
    ends.recv().await;
    let _ = stop.send(());
    tokio::time::sleep(REPEATED_SIGNAL).await;
    while ends.try_recv().is_ok() {}
    ends.recv().await;
    log::end(Some("ended at once by a second signal"));
    // Dropping the running tasks may block on other services, such as a trace collector.
    std::process::exit(1);
}

/// Reloads the configuration at each signal; never returns.
async fn reload_on(mut hangup: Signal, reloader: Arc<Reloader>) {
    while hangup.recv().await.is_some() {
        // The reloader has logged the result.
        let _ = reloader.reload("SIGHUP", ON_NODE).await;
    }
    std::future::pending().await
}
