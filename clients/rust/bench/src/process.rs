use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use crate::Result;
use crate::servers::UNITS;

/// A child with the address where it listens. It ends with this value.
pub struct Process {
    pub address: String,
    child: Child,
}

impl Process {
    fn start(address: String, program: impl AsRef<Path>, arguments: &[&str], input: &str) -> Result<Self> {
        let program = program.as_ref();
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut process = Self { address, child };
        if let Some(mut stdin) = process.child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let pause = || thread::sleep(Duration::from_millis(10));
        match (0..1000).any(|_| TcpStream::connect(&process.address).inspect_err(|_| pause()).is_ok()) {
            true => Ok(process),
            false => Err(format!("{} does not listen at {}", program.display(), process.address).into()),
        }
    }

    /// The user and system time so far: fields 14 and 15 of /proc/PID/stat, in ticks of 10 ms.
    pub fn cpu(&self) -> Result<Duration> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = text.rsplit_once(") ").ok_or("no fields in stat")?;
        let ticks: Vec<u64> =
            fields.split(' ').skip(11).take(2).map(str::parse).collect::<std::result::Result<_, _>>()?;
        Ok(Duration::from_millis(10 * ticks.iter().sum::<u64>()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A child that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The servers behind the limiters.
pub struct Backends {
    node: Process,
    /// The node's door for Redis clients, which answers CL.THROTTLE as the module redis-cell does.
    cell: String,
    redis: Process,
}

impl Backends {
    pub fn start() -> Result<Self> {
        let (redis, node, cell) = (free_address()?, free_address()?, free_address()?);
        let port = redis.rsplit(':').next().unwrap_or_default();
        let arguments = ["--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"];
        let redis = Process::start(redis.clone(), "redis-server", &arguments, "")?;
        let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/release/tollgate");
        let binary = env::var_os("TOLLGATE_BIN").map_or_else(built, Into::into);
        let config = format!("resp: {{listen: {cell}}}\npolicies: {{default: {{quotas: [{UNITS} per 1h]}}}}\n");
        let node = Process::start(node.clone(), binary, &["serve", "--listen", &node, "-"], &config)?;
        Ok(Self { node, cell, redis })
    }

    pub fn serve(&self, kind: &str) -> Result<Process> {
        let (address, node) = (free_address()?, format!("http://{}", self.node.address));
        let (cell, redis) = (format!("redis://{}", self.cell), format!("redis://{}", self.redis.address));
        Process::start(address.clone(), env::current_exe()?, &["serve", kind, &address, &node, &cell, &redis], "")
    }
}

fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
