//! The problems of a failed reload.

use super::document::Problem;
use super::faults::FaultBody;
use super::kind::Kind;
use crate::reload::ReloadError;

impl Problem {
    /// 422 with every fault of the file, or 409 if there is no file to reload.
    pub(in crate::http) fn not_reloaded(error: &ReloadError) -> Self {
        match error {
            ReloadError::NoFile(_) => Self::new(Kind::NothingToReload, error.to_string()),
            ReloadError::Faults(faults) => {
                let faults: Vec<_> = faults.iter().map(|fault| FaultBody::from(fault).into_owned()).collect();
                let number = match faults.len() {
                    1 => "1 fault".to_owned(),
                    number => format!("{number} faults"),
                };
                let detail = format!("the running policies stay in force: {number}, see violations");
                Self { faults, ..Self::new(Kind::InvalidConfiguration, detail) }
            }
        }
    }
}
