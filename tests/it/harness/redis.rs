//! Redis servers of the tests' own. `REDIS_SERVER` chooses another binary.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tempfile::TempDir;
use tollgate::clock::Clock;
use tollgate::config::RedisConfig;
use tollgate::limit::slot::Generations;
use tollgate::store::RedisStore;

use super::free_port;

/// One server without persistence. It ends with the test process, however that ends: its keeper waits for the
/// pipe to close, and then kills it.
pub struct Server {
    pub port: u16,
    _keeper: Child,
    _folder: TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Self {
        let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let keeper = Command::new("sh")
            .args(["-c", r#"exec 3<&0; "$@" >server.log 2>&1 & server=$!; read -r _ <&3; kill -9 $server; wait"#, "sh"])
            .args([&program, "--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .args(options)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let server = Self { port, _keeper: keeper, _folder: folder };
        server.wait_until_ready(&program);
        server
    }

    fn wait_until_ready(&self, program: &str) {
        let pong = || redis::cmd("PING").query::<String>(&mut self.connection()?);
        super::wait_until(&format!("{program} answers (is it there? apt-get install redis-server)"), || pong().is_ok());
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.url())?.get_connection_with_timeout(Duration::from_secs(5))
    }

    /// A store of its own on this server.
    pub fn store(&self) -> RedisStore {
        store(&[self.url()])
    }
}

/// A store on the servers that `seeds` lead to. Needs a tokio runtime around it.
pub fn store(seeds: &[String]) -> RedisStore {
    let config = RedisConfig { seeds: seeds.to_vec(), key_prefix: "ratelimit".into() };
    RedisStore::open(&config, Clock::system(), Duration::from_secs(5), Arc::new(Generations::default())).unwrap()
}

/// One server for all tests that share nothing but keys of their own.
pub fn shared() -> &'static Server {
    static SERVER: LazyLock<Server> = LazyLock::new(Server::start);
    &SERVER
}
