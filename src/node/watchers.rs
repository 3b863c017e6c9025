//! The subscribers of `GET /v1/live`.
//!
//! Each second has at most two renderings: with keys, and with their hashes. All subscribers share
//! them. Callers share the places by [`crate::shares`]. A subscriber that leaves [`UNREAD`]
//! snapshots unread is dropped, so its memory is bounded.
//! A reload that changes the tokens ends all subscriptions. Clients call again, and so each shows
//! its token again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::access::{Access, Token};
use crate::limit::time::{MICROS_PER_SECOND, Micros};
use crate::shares::{Holder, has_share};

/// The most subscribers at once. One caller gets half.
pub const MAX_WATCHERS: usize = 64;

/// The most that are no operators.
const MAX_OTHERS: usize = 24;

/// Snapshots that may wait for a subscriber.
const UNREAD: usize = 2;

/// How long a token stays logged in after its last subscription, us.
const LOGIN: Micros = 3_600 * MICROS_PER_SECOND;

/// The most logins that a node remembers.
const MAX_LOGINS: usize = 1024;

/// A rendered snapshot, which all subscribers share.
pub type Event = Arc<[u8]>;

/// The subscribers of a node.
#[derive(Debug, Clone, Default)]
pub struct Watchers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    watchers: Vec<Watcher>,
    /// When a token last logged in from an address, us.
    logins: HashMap<(String, Option<IpAddr>), Micros>,
    is_closed: bool,
}

/// A caller that subscribes.
#[derive(Debug, Clone)]
pub struct Subscriber {
    /// Whether it may read keys in clear.
    pub in_clear: bool,
    /// Whether it may do what operators do.
    pub is_operator: bool,
    pub holder: Holder,
    /// Its token, if it has one.
    pub token: Option<Arc<Token>>,
    /// The tokens by which it was permitted.
    pub access: Access,
}

impl Subscriber {
    /// Whether it may still read, by the present tokens.
    fn is_valid(&self, access: &Access) -> bool {
        self.access == *access && !self.token.as_ref().is_some_and(|token| token.has_expired())
    }
}

#[derive(Debug)]
struct Watcher {
    events: Sender<Event>,
    subscriber: Subscriber,
}

impl Watchers {
    /// Adds a subscriber, with the result of `first`. No second ends between the two. `None`: there
    /// are too many, or too many of its holder. After [`Self::close`] its events end at once.
    pub fn join<T>(&self, subscriber: Subscriber, first: impl FnOnce() -> T) -> Option<(T, Receiver<Event>)> {
        let mut state = self.lock();
        state.watchers.retain(|watcher| !watcher.events.is_closed());
        if !state.has_place(&subscriber) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(UNREAD);
        if !state.is_closed {
            state.watchers.push(Watcher { events: sender, subscriber });
        }
        Some((first(), receiver))
    }

    /// Ends a second by `observe`, and sends what `render` returns for keys in clear or not.
    /// `access` has the present tokens.
    pub fn publish(&self, access: &Access, observe: impl FnOnce(), render: impl Fn(bool) -> Event) {
        let mut state = self.lock();
        observe();
        let mut rendered = [None, None];
        state.watchers.retain(|Watcher { events, subscriber }| {
            !events.is_closed() && subscriber.is_valid(access) && {
                let in_clear = subscriber.in_clear;
                let event = rendered[usize::from(in_clear)].get_or_insert_with(|| render(in_clear));
                events.try_send(event.clone()).is_ok()
            }
        });
    }

    /// Whether the subscription of a token from this address at `now` (us) is a login. Within an
    /// hour of one it continues it: clients subscribe again after each fault.
    pub fn is_login(&self, token: &str, address: Option<IpAddr>, now: Micros) -> bool {
        let logins = &mut self.lock().logins;
        logins.retain(|_, at| now < *at + LOGIN);
        let is_new = !logins.contains_key(&(token.to_owned(), address));
        if logins.len() < MAX_LOGINS || !is_new {
            logins.insert((token.to_owned(), address), now);
        }
        is_new
    }

    /// Ends all subscriptions.
    pub fn close(&self) {
        *self.lock() = State { is_closed: true, ..State::default() };
    }

    /// Whether there is a subscriber.
    pub fn is_watched(&self) -> bool {
        self.lock().watchers.iter().any(|watcher| !watcher.events.is_closed())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_place(&self, subscriber: &Subscriber) -> bool {
        let present = || self.watchers.iter().map(|watcher| &watcher.subscriber);
        let own = present().filter(|other| other.holder == subscriber.holder).count();
        let free = MAX_WATCHERS.saturating_sub(self.watchers.len());
        if subscriber.is_operator {
            return has_share(own, free);
        }
        let others = present().filter(|other| !other.is_operator).count();
        has_share(own, free.min(MAX_OTHERS.saturating_sub(others)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::error::TryRecvError;

    use super::*;

    fn event(text: &str) -> Event {
        text.as_bytes().into()
    }

    fn subscriber(holder: u8, is_operator: bool) -> Subscriber {
        let holder = Holder::at(Some([10, 0, 0, holder].into()));
        Subscriber { in_clear: false, is_operator, holder, token: None, access: Access::default() }
    }

    fn operator(in_clear: bool) -> Subscriber {
        Subscriber { in_clear, ..subscriber(0, true) }
    }

    #[test]
    fn callers_leave_places_for_each_other_and_for_operators() {
        let watchers = Watchers::default();
        let mut joined = Vec::new();
        let mut join = |subscriber: &Subscriber| {
            let places = std::iter::from_fn(|| watchers.join(subscriber.clone(), || ())).take(100);
            let before = joined.len();
            joined.extend(places);
            joined.len() - before
        };
        let others = [1, 2, 3, 4].map(|holder| join(&subscriber(holder, false)));
        assert_eq!(others, [12, 6, 3, 2]);
        let operators = [5, 6, 7, 8].map(|holder| join(&subscriber(holder, true)));
        assert_eq!(operators, [21, 10, 5, 3]);
        assert_eq!([join(&subscriber(9, true)), join(&subscriber(10, false))], [1, 1]);
    }

    #[test]
    fn subscription_is_a_login_once_an_hour() {
        let watchers = Watchers::default();
        let [here, there] = [1, 2].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        let minute = 60 * MICROS_PER_SECOND;
        for (token, address, at, expected) in [
            ("a", here, 0, true),
            ("a", here, 50 * minute, false),
            ("a", there, 50 * minute, true),
            ("b", here, 50 * minute, true),
            ("a", here, 109 * minute, false),
            ("a", here, 170 * minute, true),
        ] {
            assert_eq!(watchers.is_login(token, address, at), expected, "{token} {address:?} {at}");
        }
    }

    #[test]
    fn one_rendering_serves_all_subscribers_alike() {
        let watchers = Watchers::default();
        let mut joined: Vec<_> =
            [false, true, false].map(|clear| watchers.join(operator(clear), || ()).unwrap().1).into();
        let rendered = Mutex::new(Vec::new());
        watchers.publish(
            &Access::default(),
            || (),
            |in_clear| {
                rendered.lock().unwrap().push(in_clear);
                event(if in_clear { "clear" } else { "hashed" })
            },
        );
        assert_eq!(rendered.into_inner().unwrap(), [false, true]);
        let got: Vec<_> = joined.iter_mut().map(|events| events.try_recv().unwrap()).collect();
        assert_eq!(got, [event("hashed"), event("clear"), event("hashed")]);
        assert!(Arc::ptr_eq(&got[0], &got[2]));
    }

    #[test]
    fn subscribers_are_limited_and_free_their_places() {
        let watchers = Watchers::default();
        let most = MAX_WATCHERS / 2;
        let mut joined: Vec<_> = (0..most).map(|_| watchers.join(operator(false), || ()).unwrap()).collect();
        let mut is_rendered = false;
        assert!(watchers.join(operator(false), || is_rendered = true).is_none());
        assert!(!is_rendered);
        joined.pop();
        assert!(watchers.join(operator(false), || ()).is_some());
        drop(joined);
        assert!(!watchers.is_watched());
    }

    #[test]
    fn slow_subscribers_are_dropped() {
        let watchers = Watchers::default();
        let [mut slow, mut quick] = [(); 2].map(|()| watchers.join(operator(false), || ()).unwrap().1);
        for second in 0..=UNREAD {
            watchers.publish(&Access::default(), || (), |_| event(&second.to_string()));
            assert_eq!(quick.try_recv().unwrap(), event(&second.to_string()));
        }
        assert_eq!(watchers.lock().watchers.len(), 1);
        let left: Vec<_> = std::iter::from_fn(|| slow.try_recv().ok()).collect();
        assert_eq!((left.len(), slow.try_recv()), (UNREAD, Err(TryRecvError::Disconnected)));
    }

    #[test]
    fn changed_tokens_end_subscriptions() {
        let watchers = Watchers::default();
        let (_, mut events) = watchers.join(operator(true), || ()).unwrap();
        let changed = Access::new(Vec::new(), true);
        watchers.publish(&changed, || (), |_| event("secret"));
        assert_eq!(events.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn closing_ends_present_and_later_subscriptions() {
        let watchers = Watchers::default();
        let (_, mut before) = watchers.join(operator(false), || ()).unwrap();
        watchers.close();
        let (first, mut after) = watchers.join(operator(false), || 7).unwrap();
        let ended = [before.try_recv(), after.try_recv()].map(Result::unwrap_err);
        assert_eq!((first, ended), (7, [TryRecvError::Disconnected; 2]));
    }
}
