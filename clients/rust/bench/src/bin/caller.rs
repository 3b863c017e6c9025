//! Checks one key at a steady rate, like clients/go/bench/caller:
//!
//!     caller NODES POLICY KEY RATE SECONDS

use std::env::args;
use std::error::Error;
use std::io::stdin;
use std::time::{Duration, Instant, SystemTime};

use tollgate_limiter::{Check, Client, Options};

const WORKERS: u32 = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = args().skip(1).collect();
    let [nodes, policy, key, rate, seconds] = &arguments[..] else { return Err("five arguments".into()) };
    let (rate, seconds): (u32, u32) = (rate.parse()?, seconds.parse()?);
    let client = Client::new(Options::default().nodes(nodes.split(',')).deadline(Duration::from_secs(10)))?;
    let check = Check::new(key).policy(policy);
    println!("ready");
    stdin().read_line(&mut String::new())?;
    let began = Instant::now();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| tokio::spawn(work(client.clone(), check.clone(), worker..rate * seconds, (rate, seconds, began))))
        .collect();
    let mut lines = Vec::new();
    for worker in workers {
        lines.extend(worker.await??);
    }
    client.close().await;
    println!("{}", lines.join("\n"));
    Ok(())
}

async fn work(
    client: Client,
    check: Check,
    checks: std::ops::Range<u32>,
    (rate, seconds, began): (u32, u32, Instant),
) -> Result<Vec<String>, tollgate_limiter::Error> {
    let mut lines = Vec::new();
    for i in checks.step_by(WORKERS as usize) {
        let pause = (Duration::from_secs(i.into()) / rate).saturating_sub(began.elapsed());
        tokio::time::sleep(pause).await;
        let begin = micros();
        let answer = client.check(check.clone()).await?;
        let source = format!("{:?}", answer.source).to_lowercase();
        lines.push(format!("{begin} {} {} {source}", micros(), answer.allowed));
        if began.elapsed() > Duration::from_secs(seconds.into()) {
            break;
        }
    }
    Ok(lines)
}

fn micros() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |age| age.as_micros())
}
