//! The faults of a configuration as JSON.

use serde::Serialize;

use crate::config::{Fault, Place};

/// One fault of the configuration. Line and column are positions in its file, from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::http) struct FaultBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    /// The fault and its correction. A fault of the command line begins with its flag.
    detail: std::borrow::Cow<'a, str>,
}

impl FaultBody<'_> {
    pub(in crate::http) fn into_owned(self) -> FaultBody<'static> {
        FaultBody { detail: self.detail.into_owned().into(), ..self }
    }
}

impl<'a> From<&'a Fault> for FaultBody<'a> {
    fn from(fault: &'a Fault) -> Self {
        let detail = fault.message.as_str().into();
        match fault.place {
            Place::At { line, column } => Self { line: Some(line), column: Some(column), detail },
            Place::Flag(_) => Self { line: None, column: None, detail: fault.to_string().into() },
            // `Asked` never occurs here, since a file has no quotas of a request.
            Place::Source | Place::Asked { .. } => Self { line: None, column: None, detail },
        }
    }
}
