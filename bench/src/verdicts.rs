//! The decisions in the answer to a call, or the reason why it has none.

/// The sources of decisions that answers name.
pub(super) const SOURCES: [&str; 5] = ["store", "prefilter", "fallback", "list", "lease"];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Verdicts {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// Checks by `SOURCES`; all 0 if the answers name no source.
    pub(super) by: [u64; SOURCES.len()],
}

impl Verdicts {
    pub(super) fn one(allowed: bool) -> Self {
        Self { allowed: allowed.into(), denied: (!allowed).into(), ..Self::default() }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.by.iter_mut().zip(other.by).for_each(|(sum, more)| *sum += more);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failure {
    /// No connection, or a broken one.
    Broken(String),
    Closed,
    Status(u16),
    /// The code of gRPC, other than 0.
    Grpc(u16),
    Malformed,
    /// An item of a batch or pipeline without a decision.
    Refused,
    Unanswered,
}

impl Failure {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Broken(reason) => reason.clone(),
            Self::Closed => "connection closed".into(),
            Self::Status(status) => format!("status {status}"),
            Self::Grpc(code) => format!("gRPC status {code}"),
            Self::Malformed => "malformed answer".into(),
            Self::Refused => "refused item of a batch".into(),
            Self::Unanswered => "no answer before the end".into(),
        }
    }

    /// Whether the connection cannot be used any more.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Closed)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.kind().to_string())
    }
}
