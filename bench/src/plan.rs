//! The resolved settings of a run.

use tollgate::cli::target::Target;
use tollgate::limit::time::{MICROS_PER_SECOND, Micros};

use super::args::Args;
use super::dialect::{Dialect, Service, Subject, Throttle};
use super::keys::Keys;
use super::template::Template;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) targets: Vec<Target>,
    pub(super) clients: u32,
    pub(super) threads: u32,
    /// Checks due in a second; none in a closed loop.
    pub(super) rate: Option<u64>,
    /// Without a duration the number of checks ends the run.
    pub(super) duration: Option<Micros>,
    pub(super) checks: Option<u64>,
    pub(super) warmup: Micros,
    pub(super) keys: Keys,
    pub(super) dialect: Dialect,
    pub(super) peer: Option<Service>,
    pub(super) subject: Subject,
    /// The token for a node; a peer gets none.
    token: Option<String>,
    pub(super) seed: u64,
}

impl Plan {
    pub(super) fn template(&self, target: &Target) -> Result<Template, String> {
        Template::new(target, &self.dialect, &self.subject, self.keys.count(), self.token())
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Time between calls of all clients together, us; 0 in a closed loop.
    pub(super) fn interval(&self) -> Micros {
        self.rate.map_or(0, |rate| self.dialect.checks_per_call() * MICROS_PER_SECOND / rate)
    }
}

impl TryFrom<Args> for Plan {
    type Error = String;

    fn try_from(args: Args) -> Result<Self, String> {
        let dialect = dialect(&args)?;
        let per_call = dialect.checks_per_call();
        if let Some(checks) = args.checks.filter(|checks| checks % per_call != 0) {
            return Err(format!("--checks {checks} cannot be asked in batches of {per_call}"));
        }
        if args.duration == Some(0) {
            return Err("--duration must be longer than 0".into());
        }
        let connections = dialect.shared_connections().unwrap_or(args.concurrency);
        if connections > args.concurrency {
            let clients = args.concurrency;
            return Err(format!("--grpc {connections} has more connections than --concurrency {clients} has clients"));
        }
        for (count, name) in [(args.threads as usize, "threads"), (args.urls.len(), "URLs")] {
            if count > connections as usize {
                return Err(format!("{count} {name} need at least {count} connections, not {connections}"));
            }
        }
        let token = if args.peer.is_none() { args.bearer.token()? } else { None };
        if token.is_some() && args.pipeline.is_some() {
            return Err("--pipeline sends no token: use a node without check tokens".into());
        }
        let counted = args.checks.is_some();
        let plan = Self {
            targets: args.urls.iter().map(|url| target(url)).collect::<Result<_, _>>()?,
            clients: args.concurrency,
            threads: args.threads,
            rate: args.rate,
            duration: args.duration.or((!counted).then_some(10 * MICROS_PER_SECOND)),
            checks: args.checks,
            warmup: args.warmup.unwrap_or(if counted { 0 } else { MICROS_PER_SECOND }),
            keys: args.keys,
            dialect,
            peer: args.peer,
            subject: Subject { policy: args.policy, key_prefix: args.key_prefix, cost: args.cost },
            token,
            seed: args.seed,
        };
        plan.targets.iter().try_for_each(|target| plan.template(target).map(drop))?;
        Ok(plan)
    }
}

fn dialect(args: &Args) -> Result<Dialect, String> {
    let quotas = &args.quotas;
    match (args.peer, args.grpc, args.pipeline, &args.gate) {
        (None | Some(Service::Envoy), Some(connections), ..) => Ok(Dialect::Grpc { connections, quotas: quotas.len() }),
        (Some(_), Some(_), ..) => Err("--grpc works with Tollgate and with --peer envoy".into()),
        (None, None, Some(pipeline), _) => Ok(Dialect::Resp { pipeline, throttle: None }),
        (Some(Service::Throttlecrab), None, Some(pipeline), _) => {
            Ok(Dialect::Resp { pipeline, throttle: Some(Throttle::try_from(&quotas[..])?) })
        }
        (Some(_), None, Some(_), _) => Err("--pipeline works with Tollgate and with --peer throttlecrab".into()),
        (Some(service), None, None, _) => Ok(Dialect::Peer(service, quotas.clone())),
        (None, None, None, Some(gate)) => Ok(Dialect::Gate(gate.clone())),
        (None, None, None, None) => Ok(Dialect::Tollgate { batch: args.batch }),
    }
}

fn target(url: &str) -> Result<Target, String> {
    let target: Target = url.parse()?;
    if target.encrypted { Err("there is no TLS here: write http://host:port".into()) } else { Ok(target) }
}
