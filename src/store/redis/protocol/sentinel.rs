//! The answers of sentinels, and the vote over them.
//!
//! Sentinel gives each failover an epoch of its own, higher than all before. A sentinel may be cut
//! off, or start anew from an old file, and then names a former primary. So one sentinel proves
//! nothing. A majority of all that are configured does, unless it names a lower epoch than before.

use redis::Value;

use super::address::{Address, is_host};
use super::failure::{Failure, Kind};
use super::reply::text;
use super::server_error::unless_error;

/// The primary that a sentinel names, and the epoch of the failover that promoted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub epoch: u64,
    pub primary: Address,
}

impl Named {
    /// Reads the answers to SENTINEL MASTER, which has the epoch, and to SENTINEL
    /// GET-MASTER-ADDR-BY-NAME. During a failover only the second one names the new primary.
    ///
    /// # Errors
    /// When the server is no sentinel, or does not watch this master.
    pub fn read(master: Value, address: Value) -> Result<Self, Failure> {
        let (fields, address) = (answer(master)?, answer(address)?);
        let epoch = field(&fields, "config-epoch").and_then(|epoch| epoch.parse().ok());
        let primary = match &address {
            Value::Nil => return Err(unwatched()),
            Value::Array(parts) => primary(parts),
            _ => None,
        };
        let (epoch, primary) = epoch.zip(primary).ok_or_else(|| Failure::unfit("SENTINEL MASTER"))?;
        Ok(Self { epoch, primary })
    }
}

fn primary(parts: &[Value]) -> Option<Address> {
    let [host, port] = parts else { return None };
    let host = text(host).filter(|host| is_host(host))?.to_owned();
    Some(Address { host, port: text(port)?.parse().ok().filter(|port| *port > 0)? })
}

fn answer(reply: Value) -> Result<Value, Failure> {
    match &reply {
        Value::ServerError(error) => {
            let details = error.details().unwrap_or_default();
            if details.contains("No such master") {
                return Err(unwatched());
            }
            if details.contains("nknown command") {
                return Err(Failure::new(
                    Kind::NotRedis,
                    "no sentinel is at this address: name sentinels in `store.sentinel.nodes`, and other servers in \
                     `store.redis`",
                ));
            }
            unless_error(reply).map_err(|failure| failure.about("SENTINEL MASTER"))
        }
        _ => Ok(reply),
    }
}

fn unwatched() -> Failure {
    Failure::new(Kind::Answer, "the sentinel watches no master of the name in `store.sentinel.master`")
}

/// A field of a list of names and values.
fn field<'a>(fields: &'a Value, name: &str) -> Option<&'a str> {
    let Value::Array(fields) = fields else { return None };
    let (fields, _) = fields.as_chunks::<2>();
    fields.iter().find_map(|[known, value]| text(value).filter(|_| text(known) == Some(name)))
}

/// The latest answer of each sentinel, and the primary that a majority has named.
#[derive(Debug)]
pub struct Ballot {
    answers: Vec<Option<Named>>,
    believed: Option<Named>,
}

/// The result of a vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vote {
    /// A majority names the primary that is believed already.
    Confirmed,
    /// A majority names another primary, which is believed from now on.
    Elected(Named),
    /// A majority names a primary of a lower epoch than the believed one.
    Outdated(Named),
    /// No majority agrees. That many sentinels name some primary.
    NoMajority(usize),
}

impl Ballot {
    /// Creates one for this many sentinels.
    pub fn new(sentinels: usize) -> Self {
        Self { answers: vec![None; sentinels], believed: None }
    }

    pub fn sentinels(&self) -> usize {
        self.answers.len()
    }

    /// Replaces the answer of one sentinel, which is none if it gave none. Counts the votes.
    pub fn enter(&mut self, place: usize, answer: Option<Named>) -> Vote {
        if let Some(latest) = self.answers.get_mut(place) {
            *latest = answer;
        }
        let Some(named) = self.majority() else { return Vote::NoMajority(self.answers.iter().flatten().count()) };
        match &self.believed {
            Some(believed) if named.epoch < believed.epoch => Vote::Outdated(named),
            Some(believed) if named.primary == believed.primary => {
                self.believed = Some(named);
                Vote::Confirmed
            }
            _ => {
                self.believed = Some(named.clone());
                Vote::Elected(named)
            }
        }
    }

    /// The answer that more than half of all sentinels give, including the silent ones.
    fn majority(&self) -> Option<Named> {
        let count = |named: &Named| self.answers.iter().flatten().filter(|other| *other == named).count();
        self.answers.iter().flatten().find(|named| count(named) * 2 > self.answers.len()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn list(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| bulk(word)).collect())
    }

    fn error(line: &str) -> Value {
        redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap()
    }

    fn named(epoch: u64, port: u16) -> Named {
        Named { epoch, primary: Address { host: "127.0.0.1".into(), port } }
    }

    #[test]
    fn answers_of_a_sentinel_are_read() {
        let master = || list(&["name", "m", "ip", "192.0.2.1", "port", "7001", "flags", "master", "config-epoch", "7"]);
        let address = list(&["192.0.2.2", "7002"]);
        let read = Named::read(master(), address.clone()).unwrap();
        assert_eq!((read.epoch, read.primary.to_string()), (7, "192.0.2.2:7002".into()));
        let rows = [
            (error("ERR No such master with that name"), address.clone(), "`store.sentinel.master`"),
            (master(), Value::Nil, "`store.sentinel.master`"),
            (
                error("ERR unknown command 'SENTINEL', with args beginning with: 'MASTER'"),
                address.clone(),
                "no sentinel",
            ),
            (error("NOAUTH Authentication required."), address.clone(), "NOAUTH"),
            (list(&["name", "m"]), address.clone(), "not one that a Redis gives"),
            (list(&["config-epoch", "-1"]), address, "not one that a Redis gives"),
            (master(), list(&["a b", "7002"]), "not one that a Redis gives"),
            (master(), list(&["192.0.2.2", "70000"]), "not one that a Redis gives"),
            (master(), list(&["192.0.2.2"]), "not one that a Redis gives"),
        ];
        for (master, address, part) in rows {
            let failure = Named::read(master, address).unwrap_err().to_string();
            assert!(failure.contains(part), "{part}: {failure}");
        }
    }

    #[test]
    fn one_of_three_sentinels_elects_nothing() {
        let mut ballot = Ballot::new(3);
        assert_eq!(ballot.enter(0, Some(named(4, 1))), Vote::NoMajority(1));
        assert_eq!(ballot.enter(1, Some(named(4, 1))), Vote::Elected(named(4, 1)));
        assert_eq!(ballot.enter(2, Some(named(3, 9))), Vote::Confirmed, "a stale sentinel is outvoted");
        // The first that learns of a failover, and the one that is stale.
        assert_eq!(ballot.enter(0, Some(named(5, 2))), Vote::NoMajority(3));
        assert_eq!(ballot.enter(1, Some(named(5, 2))), Vote::Elected(named(5, 2)));
        assert_eq!(ballot.enter(1, None), Vote::NoMajority(2));
        assert_eq!(ballot.enter(0, Some(named(3, 9))), Vote::Outdated(named(3, 9)));
        assert_eq!(ballot.believed.as_ref(), Some(&named(5, 2)));
    }

    #[test]
    fn half_of_the_sentinels_are_no_majority() {
        let mut ballot = Ballot::new(4);
        assert_eq!(ballot.enter(0, Some(named(1, 1))), Vote::NoMajority(1));
        assert_eq!(ballot.enter(1, Some(named(1, 1))), Vote::NoMajority(2));
        assert_eq!(ballot.enter(2, Some(named(1, 1))), Vote::Elected(named(1, 1)));
    }

    /// A step of a random history.
    #[derive(Debug, Clone)]
    enum Step {
        /// A failover to a server, which some sentinels learn at once.
        FailOver { port: u16, learn: u8 },
        /// A sentinel learns the newest configuration.
        Learn { place: usize },
        /// A sentinel starts anew from a file of that many failovers ago.
        Restore { place: usize, failovers: usize },
        /// The node receives the answer of a sentinel, or none.
        Answer { place: usize, is_lost: bool },
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let place = 0..5_usize;
        prop_oneof![
            1 => (1..4_u16, any::<u8>()).prop_map(|(port, learn)| Step::FailOver { port, learn }),
            2 => place.clone().prop_map(|place| Step::Learn { place }),
            1 => (place.clone(), 0..4_usize).prop_map(|(place, failovers)| Step::Restore { place, failovers }),
            6 => (place, prop::bool::weighted(0.2)).prop_map(|(place, is_lost)| Step::Answer { place, is_lost }),
        ]
    }

    proptest! {
        /// The believed epoch never decreases, names a primary that existed under it, and needed a
        /// majority. Once all sentinels agree and answer, it is the newest.
        #[test]
        fn belief_follows_majorities_to_higher_epochs(
            sentinels in 1..=5_usize,
            steps in prop::collection::vec(any_step(), 0..120),
        ) {
            let mut history = vec![named(0, 1)];
            let mut knows = vec![0; sentinels];
            let mut latest: Vec<Option<Named>> = vec![None; sentinels];
            let mut ballot = Ballot::new(sentinels);
            for step in steps {
                match step {
                    Step::FailOver { port, learn } => {
                        history.push(named(history.len() as u64, port));
                        let learning = (0..sentinels).filter(|place| learn >> place & 1 == 1);
                        learning.for_each(|place| knows[place] = history.len() - 1);
                    }
                    Step::Learn { place } => knows[place % sentinels] = history.len() - 1,
                    Step::Restore { place, failovers } => {
                        knows[place % sentinels] = knows[place % sentinels].saturating_sub(failovers);
                    }
                    Step::Answer { place, is_lost } => {
                        let place = place % sentinels;
                        let answer = (!is_lost).then(|| history[knows[place]].clone());
                        latest[place] = answer.clone();
                        let before = ballot.believed.clone();
                        let vote = ballot.enter(place, answer);
                        let after = ballot.believed.clone();
                        let votes = latest.iter().flatten().filter(|named| Some(*named) == after.as_ref()).count();
                        prop_assert!(before.as_ref().map(|named| named.epoch) <= after.as_ref().map(|named| named.epoch));
                        prop_assert!(after.as_ref().is_none_or(|named| history.contains(named)));
                        prop_assert!(before == after || votes * 2 > sentinels, "{vote:?}");
                        let moved = before.map(|named| named.primary) != after.map(|named| named.primary);
                        prop_assert_eq!(matches!(vote, Vote::Elected(_)), moved);
                    }
                }
            }
            for place in 0..sentinels {
                ballot.enter(place, history.last().cloned());
            }
            prop_assert_eq!(ballot.believed.as_ref(), history.last());
        }
    }
}
