//! Private Redis servers for tests. `REDIS_SERVER` selects another binary.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tempfile::TempDir;
use tollgate::clock::Clock;
use tollgate::config::RedisConfig;
use tollgate::store::RedisStore;
use tollgate::workers::Workers;

use super::cluster::{add_calls, folder};
use super::timed::TimedRedis;
use super::{free_port, hold_port, wait_until};

/// One server without persistence. It ends with the test process, however that ends. Its keeper
/// waits for the pipe to close, and then kills it.
pub struct Server {
    pub port: u16,
    process: rustix::process::Pid,
    _keeper: Child,
    _folder: TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Self {
        Self::start_on(free_port(), options)
    }

    pub fn start_on(port: u16, options: &[&str]) -> Self {
        let text = port.to_string();
        let fixed = ["--bind", "127.0.0.1", "--port", &text, "--save", "", "--appendonly", "no"];
        Self::launch(port, tempfile::tempdir().unwrap(), &[&fixed[..], options].concat())
    }

    /// A Sentinel with these lines in its configuration.
    pub fn start_sentinel(lines: &str) -> Self {
        Self::start_sentinel_on(free_port(), lines)
    }

    pub fn start_sentinel_on(port: u16, lines: &str) -> Self {
        let folder = folder();
        std::fs::write(folder.path().join("sentinel.conf"), format!("port {port}\nbind 127.0.0.1\n{lines}")).unwrap();
        Self::launch(port, folder, &["sentinel.conf", "--sentinel"])
    }

    fn launch(port: u16, folder: TempDir, arguments: &[&str]) -> Self {
        let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let keeper = Command::new("sh")
            .args(["-c", r#"exec 3<&0; "$@" >server.log 2>&1 & server=$!; read -r _ <&3; kill -9 $server; wait"#, "sh"])
            .arg(&program)
            .args(arguments)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = None;
        super::wait_until(&format!("{program} answers (is it there? apt-get install redis-server)"), || {
            told = process_id(port).ok();
            told.is_some()
        });
        let process = told.and_then(rustix::process::Pid::from_raw).unwrap();
        Self { port, process, _keeper: keeper, _folder: folder }
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Kills it and waits; dropping it does not wait. It answers nothing after this.
    pub fn end(self) {
        self.signal(rustix::process::Signal::KILL);
        wait_until("it is gone", || self.connection().is_err());
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.process, signal).unwrap();
    }

    /// The number of clients that wait for others, such as replicas.
    pub fn blocked_clients(&self) -> u64 {
        let info: redis::InfoDict = redis::cmd("INFO").query(&mut self.connection().unwrap()).unwrap();
        info.get("blocked_clients").unwrap()
    }

    pub fn calls<const COUNT: usize>(&self, names: [&str; COUNT]) -> [u64; COUNT] {
        let mut calls = BTreeMap::new();
        add_calls(&mut self.connection().unwrap(), &mut calls);
        names.map(|name| calls.get(name).copied().unwrap_or_default())
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.url())?.get_connection_with_timeout(Duration::from_secs(5))
    }

    /// The same for a server that may not answer.
    pub fn brief_connection(&self) -> redis::RedisResult<redis::Connection> {
        let limit = Duration::from_millis(200);
        let connection = redis::Client::open(self.url())?.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(limit))?;
        Ok(connection)
    }

    /// A section of INFO.
    pub fn info(&self, section: &str) -> String {
        redis::cmd("INFO").arg(section).query(&mut self.connection().unwrap()).unwrap()
    }

    /// Whether it answers, in the role of a primary.
    pub fn is_primary(&self) -> bool {
        let role = |mut connection| redis::cmd("INFO").arg("replication").query::<String>(&mut connection);
        self.brief_connection().and_then(role).is_ok_and(|info| info.contains("role:master"))
    }

    /// A separate store on this server. Needs a tokio runtime around it.
    pub fn store(&self) -> RedisStore {
        open(&self.config())
    }

    pub fn config(&self) -> RedisConfig {
        RedisConfig { seeds: vec![self.url()], key_prefix: "ratelimit".into(), ..RedisConfig::default() }
    }

    /// The same with a given instant for each call.
    pub fn timed_store(&self) -> TimedRedis {
        TimedRedis::open(&[self.url()], Clock::system())
    }
}

/// The process that answers on `port`.
fn process_id(port: u16) -> redis::RedisResult<i32> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
    let info: redis::InfoDict = redis::cmd("INFO").arg("server").query(&mut connection)?;
    info.get("process_id").ok_or_else(|| (redis::ErrorKind::Client, "INFO tells no process_id").into())
}

/// A free port with another one 10,000 above, for the bus of a cluster.
pub fn bus_port() -> u16 {
    let mut ports = std::iter::repeat_with(free_port).filter(|port| *port <= u16::MAX - 10_000).take(100);
    ports.find(|port| hold_port(port + 10_000).is_ok()).expect("a free port")
}

/// A store for a synchronous test, with its runtime.
pub fn opened(config: &RedisConfig) -> (tokio::runtime::Runtime, RedisStore) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = {
        let _inside = runtime.enter();
        open(config)
    };
    runtime.block_on(store.ready());
    (runtime, store)
}

fn open(config: &RedisConfig) -> RedisStore {
    let timeout = Duration::from_secs(5);
    RedisStore::open(config, Clock::system(), timeout, Arc::default(), Workers::default(), None).unwrap()
}

/// The same on the shared server.
pub fn shared_store() -> (tokio::runtime::Runtime, RedisStore) {
    opened(&shared().config())
}

/// The same with a given instant for each call.
pub fn timed_store() -> (tokio::runtime::Runtime, TimedRedis) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let timed = {
        let _inside = runtime.enter();
        shared().timed_store()
    };
    runtime.block_on(timed.store.ready());
    (runtime, timed)
}

/// One server for all tests that share no keys.
pub fn shared() -> &'static Server {
    static SERVER: LazyLock<Server> = LazyLock::new(Server::start);
    &SERVER
}
