//! The arguments of reservations, refunds and resets, after those of the algorithm. The scripts
//! read them from the end: `hold_head.lua`, `back_head.lua`.

use redis::Cmd;

use super::call::Call;
use super::counters;
use super::keys::recorded;
use crate::limit::policy::Algorithm;
use crate::limit::refunds::{Entry, Receipt};
use crate::limit::time::millis_up;
use crate::store::Taken;
use crate::store::work::{Work, longest_life};

/// Returns the key of the last reset, if the work depends on it.
pub fn key(call: &Call<'_>) -> Option<String> {
    let is_needed = call.work.takes_back() || matches!(call.work, Work::Reserve { .. });
    is_needed.then(|| match call.policy.algorithm {
        Algorithm::SlidingCounter => counters::reset(call.tag, call.policy),
        _ => call.tag.reset(call.policy.counters()),
    })
}

/// Adds the arguments.
pub fn arguments(call: &Call<'_>, cmd: &mut Cmd) {
    match call.work {
        Work::Take(_) | Work::Look(_) | Work::Once { .. } | Work::ReadLog(_) | Work::ReadTicks(_) => {}
        Work::Reserve { hold, .. } => {
            cmd.arg(*hold);
        }
        Work::GiveBack(receipt) => {
            cmd.arg(receipt.at).arg(receipt.cost);
            for entry in &receipt.entries {
                let entry = entry.unwrap_or_default();
                cmd.arg(entry.number).arg(entry.debt);
            }
            cmd.arg(receipt.entries.len()).arg("charge");
        }
        Work::Refund(cost) => {
            cmd.arg(*cost).arg("cost");
        }
        Work::RefundOnce(_) => {
            let quotas = &call.policy.quotas;
            for quota in quotas {
                cmd.arg(recorded(quota));
            }
            cmd.arg(quotas.len()).arg("id");
        }
        Work::Reset => {
            cmd.arg(millis_up(longest_life(call.policy))).arg("reset");
        }
    }
}

/// Returns the receipt of a reservation in sliding windows with room to spare. Their states are not
/// part of the reply.
pub fn roomy_receipt(call: &Call<'_>, taken: &Taken) -> Option<Receipt> {
    let Work::Reserve { cost, .. } = call.work else { return None };
    let entries = call.policy.quotas.iter().map(|_| Some(Entry::default())).collect();
    Some(Receipt { at: taken.at, cost: *cost, entries })
}
