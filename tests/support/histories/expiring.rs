//! A Redis whose keys end by the instants of a history: the time between two steps passes for their
//! TTLs, too.

use std::cell::{Cell, RefCell};

use tokio::runtime::Runtime;
use tollgate::limit::time::Micros;
use tollgate::store::redis::RedisStore;
use tollgate::store::{Done, Meta, StoreError, Subject, Work};

use super::engine::Runs;
use crate::support::redis::Server;
use crate::support::timed::TimedRedis;

/// Shortens all TTLs by some ms, which may be negative, instead of the ms since the last such call.
const PASS: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local real = now - (redis.call('GET', 'passed') or now)
redis.call('SET', 'passed', string.format('%.0f', now))
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then
    redis.call('PEXPIRE', key, string.format('%.0f', left + real - ARGV[1]))
  end
end";

/// A server of its own, for one history at a time.
pub struct ExpiringRedis {
    redis: TimedRedis,
    connection: RefCell<redis::Connection>,
    /// The latest instant, us.
    now: Cell<Micros>,
    _server: Server,
}

impl ExpiringRedis {
    /// Needs a tokio runtime around it.
    pub async fn open() -> Self {
        let server = Server::start();
        let redis = server.timed_store();
        redis.store.ready().await;
        let connection = RefCell::new(server.connection().unwrap());
        Self { redis, connection, now: Cell::new(0), _server: server }
    }

    /// Forgets all keys, before a history.
    pub fn clear(&self) {
        redis::cmd("FLUSHALL").exec(&mut *self.connection.borrow_mut()).unwrap();
        self.now.set(0);
    }

    /// The store at `now` (us).
    pub fn at(&self, now: Micros) -> &RedisStore {
        self.pass(now);
        self.redis.at(now)
    }

    /// The runtime around a server.
    pub fn with_runtime() -> (Runtime, Self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let redis = runtime.block_on(Self::open());
        (runtime, redis)
    }

    fn pass(&self, now: Micros) {
        let before = self.now.replace(now);
        let gap = (now / 1000).cast_signed() - (before / 1000).cast_signed();
        if before > 0 {
            redis::cmd("EVAL").arg(PASS).arg(0).arg(gap).exec(&mut *self.connection.borrow_mut()).unwrap();
        }
    }
}

impl Runs for ExpiringRedis {
    async fn run(&self, now: Micros, subject: &Subject, work: &Work, metas: &[Meta]) -> Result<Done, StoreError> {
        self.pass(now);
        self.redis.run(now, subject, work, metas).await
    }
}
