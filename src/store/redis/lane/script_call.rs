//! One script call of a pipeline: for one key, or for several that share it.

use redis::{Cmd, Value};
use smallvec::{SmallVec, smallvec};

use crate::limit::key::Fingerprint;
use crate::limit::time::Micros;
use crate::store::redis::lane::key_batch::{COSTS, KeyBatch};
use crate::store::redis::lane::shard::Shard;
use crate::store::redis::protocol::address::Address;
use crate::store::redis::protocol::call::{By, Call};
use crate::store::redis::protocol::check;
use crate::store::redis::protocol::reply::{NoVerdict, Reply, refused};
use crate::store::redis::protocol::server_error::is_from_inside;
use crate::store::redis::protocol::sources::ScriptId;
use crate::telemetry::traces;

/// The most quotas in a call for several keys. The server spends about a millisecond on them.
const QUOTAS: usize = 64;

/// Groups that become one call: one batch, or several checks by the same script.
pub struct ScriptCall {
    pub batches: SmallVec<[KeyBatch; 1]>,
    pub by: By,
    /// How much later than expected TIME is when the call arrives, us. The last round measured it,
    /// if TIME was outside the bounds. A long way or a busy server cause it without a fault of the
    /// clocks.
    pub lead: Micros,
}

/// Combines batches that may share a call. Shared calls, other calls and the batches of a key each
/// keep their order. The batches of a key are adjacent. A missing script must not move a call of a
/// key behind the next. The first call by each script of these keys therefore carries the source.
/// Sales and returns of leases have no order, since each belongs to a request of its own.
pub fn script_calls(batches: Vec<KeyBatch>, several: bool) -> Vec<ScriptCall> {
    let mut packed = Packed { script_calls: Vec::with_capacity(batches.len()), open: SmallVec::new() };
    // The key of the previous batch, and the index of its call.
    let mut before: Option<(Fingerprint, usize)> = None;
    // The indices of the calls of keys with several calls.
    let mut in_order: SmallVec<[usize; 4]> = SmallVec::new();
    for batch in batches {
        let key = batch.key();
        if batch.is_of_lease() {
            packed.put(batch, None, 0);
            continue;
        }
        let previous = before.filter(|(of, _)| *of == key).map(|(_, place)| place);
        let script = if several { batch.shared_script() } else { None };
        let place = packed.put(batch, script, previous.unwrap_or(0));
        in_order.extend(previous.into_iter().flat_map(|previous| [previous, place]));
        before = Some((key, place));
    }
    in_order.sort_unstable();
    let mut brought: SmallVec<[ScriptId; 4]> = SmallVec::new();
    in_order.into_iter().for_each(|place| packed.script_calls[place].bring_script(&mut brought));
    packed.script_calls
}

/// The calls so far.
struct Packed {
    script_calls: Vec<ScriptCall>,
    /// For each script, the index of the call with room. There are few scripts.
    open: SmallVec<[(ScriptId, usize); 4]>,
}

impl Packed {
    /// Adds a batch to the open call of its `script`, if any, or to a new call. The call must not
    /// be before the index `first`. Returns the index of the call.
    fn put(&mut self, batch: KeyBatch, script: Option<ScriptId>, first: usize) -> usize {
        let known = self.open.iter_mut().find(|(of, _)| Some(*of) == script);
        if let Some((_, place)) = &known
            && *place >= first
            && self.script_calls[*place].accepts(&batch)
        {
            self.script_calls[*place].batches.push(batch);
            return *place;
        }
        let place = self.script_calls.len();
        match (known, script) {
            (Some(known), _) => known.1 = place,
            (None, Some(script)) => self.open.push((script, place)),
            (None, None) => {}
        }
        self.script_calls.push(ScriptCall::of(batch));
        place
    }
}

impl ScriptCall {
    pub fn of(batch: KeyBatch) -> Self {
        Self { batches: smallvec![batch], by: By::Hash, lead: 0 }
    }

    /// Makes its call carry the script's source, unless an earlier call does.
    fn bring_script(&mut self, brought: &mut SmallVec<[ScriptId; 4]>) {
        if let Some(script) = self.batches[0].script_in_order().filter(|script| !brought.contains(script)) {
            brought.push(script);
            self.by = By::Source;
        }
    }

    /// Whether one more batch by the same script has room.
    fn accepts(&self, batch: &KeyBatch) -> bool {
        let quotas = self.batches[0].requests[0].policy.quotas.len();
        (self.batches.len() + 1) * quotas <= QUOTAS && self.checks() + batch.costs.len() <= COSTS
    }

    /// Returns the source that the server loads before the call.
    pub fn source_to_load(&self) -> Option<&'static str> {
        (self.by == By::Load).then(|| self.batches[0].script_id().source())
    }

    /// Drops the requests of callers that gave up. Returns whether any are left.
    pub fn is_wanted(&mut self) -> bool {
        self.batches.retain(KeyBatch::is_wanted);
        !self.batches.is_empty()
    }

    pub fn asking(&self) -> bool {
        self.batches[0].requests[0].asking
    }

    /// Returns the checks that share the call.
    fn calls(&self) -> SmallVec<[Call<'_>; 1]> {
        self.batches.iter().filter_map(KeyBatch::check).collect()
    }

    /// Builds the command for a shard whose expected TIME is `now`, us.
    pub fn command(&self, shard: &Shard, now: Micros) -> Cmd {
        let (now, time) = (now + self.lead, shard.shared.time());
        if let [batch] = &self.batches[..] {
            return batch.call().command(self.by, now, time);
        }
        check::command(&self.calls(), shard.declared(), self.by, now, time)
    }

    /// Returns one reply for each batch.
    pub fn replies(&self, reply: &Value, from: &Address) -> SmallVec<[Reply; 1]> {
        if let Value::ServerError(error) = reply {
            let several = self.batches.len() > 1;
            let of_each = || match refused(error, from) {
                NoVerdict::Failed(_) if several && !is_from_inside(error) => Reply::Undecided,
                reason => Reply::NoVerdict(reason),
            };
            return self.batches.iter().map(|_| of_each()).collect();
        }
        match &self.batches[..] {
            [batch] => smallvec![batch.call().reply(reply)],
            _ => check::replies(&self.calls(), reply),
        }
    }

    /// Returns the number of checks in the call. A refund, for example, is no check.
    pub fn checks(&self) -> usize {
        self.batches.iter().map(|batch| batch.costs.len()).sum()
    }

    /// Records the call in the traces of its checks, if any.
    pub fn called(&mut self, shard: &Shard, calls: usize, (sent, ended): (Micros, Micros), error: Option<&str>) {
        if self.batches.iter().flat_map(|batch| &batch.requests).all(|request| request.trace.is_none()) {
            return;
        }
        let call = traces::SentCall {
            host: &shard.address.host,
            port: shard.address.port,
            operation: self.batches[0].command(self.by),
            script: &self.batches[0].script(),
            checks: self.checks(),
            pipeline: calls,
            sent,
            ended,
            error,
        };
        let requests = self.batches.iter_mut().flat_map(|batch| &mut batch.requests);
        traces::called(requests.filter_map(|request| request.trace.as_deref_mut()), &call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::request::KeyRequest;
    use crate::store::redis::request::tests::request;
    use crate::store::{Over, Work};

    fn batch(key: &str) -> KeyBatch {
        KeyBatch::of(request(key).0)
    }

    /// Returns the outcome of a call for one key with this error reply.
    fn outcome(error: &str) -> Option<Reply> {
        let from = Address { host: "shard".into(), port: 7001 };
        let reply = redis::parse_redis_value(format!("-{error}\r\n").as_bytes()).unwrap();
        let script_call = ScriptCall { batches: smallvec![batch("a")], by: By::Hash, lead: 0 };
        script_call.replies(&reply, &from).pop()
    }

    #[test]
    fn refused_shared_call_is_repeated_for_each_key() {
        let from = Address { host: "shard".into(), port: 7001 };
        let outcome = |keys: &[&str], error: &str| {
            let script_call =
                ScriptCall { batches: keys.iter().map(|key| batch(key)).collect(), by: By::Hash, lead: 0 };
            let reply = redis::parse_redis_value(format!("-{error}\r\n").as_bytes()).unwrap();
            let mut outcomes = script_call.replies(&reply, &from);
            assert_eq!(outcomes.len(), keys.len());
            outcomes.pop()
        };
        for error in ["CROSSSLOT Keys in request don't hash to the same slot", "ERR Number of keys can't be zero"] {
            assert!(matches!(outcome(&["a", "b"], error), Some(Reply::Undecided)), "{error}");
            assert!(matches!(outcome(&["a"], error), Some(Reply::NoVerdict(NoVerdict::Failed(_)))), "{error}");
        }
        let inside = "ERR bad argument script: 1e6a, on @user_script:12.";
        assert!(matches!(outcome(&["a", "b"], inside), Some(Reply::NoVerdict(NoVerdict::Failed(_)))));
        let elsewhere = outcome(&["a", "b"], "MOVED 1 127.0.0.1:7002");
        assert!(matches!(elsewhere, Some(Reply::NoVerdict(NoVerdict::Moved(_)))));
    }

    #[test]
    fn hostless_redirections_lead_to_the_same_host() {
        let other = |host: &str| Address { host: host.into(), port: 7002 };
        let led_to = |outcome| match outcome {
            Some(Reply::NoVerdict(NoVerdict::Moved(address) | NoVerdict::Ask(address))) => Some(address),
            _ => None,
        };
        for word in ["MOVED", "ASK"] {
            assert_eq!(led_to(outcome(&format!("{word} 1 :7002"))), Some(other("shard")));
            assert_eq!(led_to(outcome(&format!("{word} 1 elsewhere:7002"))), Some(other("elsewhere")));
            let nobody = outcome(&format!("{word} 1 ?:7002"));
            assert!(matches!(nobody, Some(Reply::NoVerdict(NoVerdict::NotNow(_)))), "{word}");
        }
    }

    #[test]
    fn readonly_reply_reveals_a_replica() {
        for error in [
            "READONLY You can't write against a read only replica. script: 5f, on @user_script:12.",
            "ERR Error running script (call to f_5f): @user_script:12: @user_script: 12: -READONLY You can't write against \
             a read only replica.",
        ] {
            assert!(matches!(outcome(error), Some(Reply::NoVerdict(NoVerdict::NotNow(_)))), "{error}");
        }
    }

    #[test]
    fn a_refusal_names_its_cause_without_the_place_in_the_script() {
        let error = "OOM command not allowed when used memory > 'maxmemory'. script: 5f, on @user_script:12.";
        let told = match outcome(error) {
            Some(Reply::NoVerdict(NoVerdict::Failed(error))) => Some(error.to_string()),
            _ => None,
        };
        let sentence = "refused: OOM: the memory of the server is full (maxmemory), so it makes no charges";
        assert_eq!(told.as_deref(), Some(sentence));
    }

    fn once() -> KeyBatch {
        let work = Work::Once { id: "id".into(), cost: 1, over: Over::Deny };
        KeyBatch::of(KeyRequest { work, ..request("a").0 })
    }

    #[test]
    fn the_calls_of_a_key_keep_their_order() {
        let script_calls = script_calls(vec![batch("b"), batch("a"), once(), batch("a"), batch("c"), batch("d")], true);
        let keys = |script_call: &ScriptCall| script_call.batches.iter().map(KeyBatch::key).collect::<Vec<_>>();
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|key| batch(key).key());
        assert_eq!(script_calls.iter().map(keys).collect::<Vec<_>>(), [vec![b, a], vec![a], vec![a, c, d]]);
    }

    #[test]
    fn sales_of_leases_need_no_order_and_carry_no_script() {
        let sale = || {
            let work = Work::Lease { costs: smallvec![1, 4], hold: 1 };
            KeyBatch::of(KeyRequest { work, ..request("a").0 })
        };
        let carry = |batches| {
            let script_calls = script_calls(batches, true);
            script_calls.iter().map(|script_call| script_call.by == By::Source).collect::<Vec<_>>()
        };
        assert_eq!(carry(vec![once(), batch("a")]), [true, true]);
        assert_eq!(carry(vec![sale(), batch("a")]), [false, false]);
        assert_eq!(carry(vec![once(), sale(), batch("a")]), [true, false, true]);
    }

    #[test]
    fn script_calls_bound_their_quotas() {
        let keys: Vec<String> = (0..150).map(|number| number.to_string()).collect();
        let batches = || keys.iter().map(|key| batch(key)).collect();
        let sizes = |several| {
            script_calls(batches(), several)
                .iter()
                .map(|script_call| script_call.batches.len())
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(true), [QUOTAS, QUOTAS, 150 - 2 * QUOTAS]);
        assert_eq!(sizes(false), [1; 150]);
    }
}
