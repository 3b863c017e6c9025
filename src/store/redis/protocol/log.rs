//! The calls for sliding logs: their arguments and replies.

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::call::Call;
use super::reply::{EXACT, unsigned};
use crate::limit::digest::LogDigest;
use crate::limit::history::{Charge, Note};
use crate::limit::log::{SlidingLog, max_entries};
use crate::limit::policy::Policy;
use crate::limit::state::State;
use crate::limit::time::Micros;
use crate::store::{LogPage, Work};

/// The most metas in one reply.
pub const PORTION: usize = 1000;

/// Sums are kept modulo 2^52.
const SUMS: u64 = (1 << 52) - 1;

/// Adds the KEYS and ARGV of `log_head.lua`, without an instant.
pub fn arguments(call: &Call<'_>, cmd: &mut Cmd, more_keys: &[String]) {
    let Call { tag, policy, work, costs, metas } = *call;
    let (quotas, longest) = (&policy.quotas, policy.longest());
    // A refunded charge may have a meta, and so may that of a hold.
    let noted = metas.iter().any(Option::is_some) || work.takes_back() || work.is_held(policy);
    cmd.arg(quotas.len() + usize::from(noted) + more_keys.len());
    for quota in quotas {
        cmd.arg(tag.log(policy.counters(), quota));
    }
    if noted {
        cmd.arg(tag.metas(policy.counters(), &quotas[longest]));
    }
    cmd.arg(more_keys);
    cmd.arg(quotas.len());
    for quota in quotas {
        cmd.arg(quota.window)
            .arg(quota.limit.get())
            .arg(max_entries(quota))
            .arg(SlidingLog::slack(quota.window));
    }
    cmd.arg(if noted { longest + 1 } else { 0 }).arg(work.ahead(policy));
    let meta = |place: usize| metas.get(place).and_then(|meta| meta.as_deref()).unwrap_or_default();
    let mut place = 0;
    while place < costs.len() {
        let alike = |other: &usize| costs[*other] == costs[place] && meta(*other) == meta(place);
        let times = (place..costs.len()).take_while(alike).count();
        cmd.arg(costs[place]).arg(times).arg(meta(place));
        place += times;
    }
    if let Work::Look(cost) = work {
        // A peek sends its cost with zero charges.
        cmd.arg(*cost).arg(0).arg("");
    }
}

/// Reads the state of each quota from the reply of `log_check.lua`.
pub fn digests(policy: &Policy, values: &[Value]) -> Option<SmallVec<[State; 3]>> {
    let quotas = policy.quotas.len();
    let numbers = values.iter().map(unsigned).collect::<Option<Vec<u64>>>()?;
    let (found, fits) = numbers.split_at_checked(3 * quotas)?;
    let (fits, mark) = match fits.len() % (1 + quotas) {
        0 if fits.is_empty() => (fits, 0),
        1 => fits.split_last().map(|(mark, fits)| (fits, *mark))?,
        _ => return None,
    };
    let digest = |(quota, found): (usize, &[u64])| {
        let instants = fits.chunks_exact(1 + quotas).map(|fit| (fit[0], fit[1 + quota]));
        let fits_at = instants.filter(|(_, at)| *at > 0).collect();
        State::LogDigest(Box::new(LogDigest { counted: found[0], entries: found[1], latest: found[2], mark, fits_at }))
    };
    Some(found.chunks_exact(3).enumerate().map(digest).collect())
}

/// Adds the KEYS and ARGV of `log_read.lua` for portion `number` of the metas.
pub fn page_arguments(call: &Call<'_>, number: usize, cmd: &mut Cmd) {
    let Call { tag, policy, .. } = call;
    let quota = &policy.quotas[policy.longest()];
    cmd.arg(2)
        .arg(tag.log(policy.counters(), quota))
        .arg(tag.metas(policy.counters(), quota))
        .arg(number);
}

/// Reads the reply of `log_read.lua`.
pub fn page(value: &Value) -> Option<LogPage> {
    let Value::Array(values) = value else { return None };
    let [time, Value::BulkString(pairs), Value::Array(metas)] = &values[..] else { return None };
    let (pairs, []) = pairs.as_chunks::<16>() else { return None };
    let pairs: Vec<(Micros, u64)> = pairs.iter().map(|pair| (number(&pair[..8]), number(&pair[8..]))).collect();
    let charge = |pair: &[(Micros, u64)]| {
        let ((_, before), (at, sum)) = (pair[0], pair[1]);
        Charge { at, sum, cost: sum.wrapping_sub(before) & SUMS }
    };
    let charges = pairs.windows(2).rev().map(charge).collect();
    let notes = metas.iter().rev().map(note).collect::<Option<Vec<Note>>>()?;
    let instants = pairs.iter().map(|(at, _)| *at).chain(notes.iter().map(|note| note.at));
    let is_sound = instants.max().is_none_or(|latest| latest <= EXACT);
    is_sound.then_some(LogPage { at: unsigned(time)?, charges, notes })
}

impl LogPage {
    /// Whether older metas may follow.
    pub fn is_full(&self) -> bool {
        self.notes.len() == PORTION
    }

    /// Adds an older portion. It may begin with known notes, if charges were made meanwhile.
    pub fn extend(&mut self, older: Self) {
        let known = self.notes.last().map(|note| (note.at, note.sum));
        let is_known = |note: &Note| {
            // The note is later, or of the same instant and not before the known one.
            known
                .is_some_and(|(at, sum)| note.at > at || note.at == at && note.sum.wrapping_sub(sum) & SUMS <= SUMS / 2)
        };
        self.notes.extend(older.notes.into_iter().skip_while(is_known));
    }
}

fn note(value: &Value) -> Option<Note> {
    let Value::BulkString(bytes) = value else { return None };
    let (name, meta) = bytes.split_at_checked(24)?;
    let (at, sum, cost) = (number(&name[..8]), number(&name[8..16]), number(&name[16..]));
    Some(Note { at, sum, cost, meta: std::str::from_utf8(meta).ok()?.into() })
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
