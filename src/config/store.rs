//! Which store, and how long to wait for it.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::limit::time::Micros;

use super::fault::{Faults, Place};
use super::raw::Node;
use super::section::{Section, Shape};
use super::{RedisConfig, StoreConfig, url};

/// How long a check may wait for the store: from 1 ms to 60 s, in us.
pub(super) const TIMEOUT: RangeInclusive<Micros> = 1_000..=20_000_000;

const DEFAULT_TIMEOUT: Duration = Duration::from_millis(100);

/// The first part of each key in Redis, where none is named.
pub const DEFAULT_KEY_PREFIX: &str = "ratelimit";

const SHAPE: Shape = Shape {
    example: "{redis: [redis://127.0.0.1:7001]}",
    known: &["redis", "timeout", "key_prefix"],
    checked: &[],
    later: &["username", "password_file", "tls"],
};

const FLAG: Place = Place::Flag("--store or TOLLGATE_STORE");

/// The store, and the timeout of policies that name none. `urls` come from the command line and beat `store.redis`.
pub(super) fn store(root: &Section<'_>, urls: &[String], faults: &mut Faults) -> Option<(StoreConfig, Duration)> {
    let overriding = from_flag(urls, faults);
    let Some(node) = root.member("store") else {
        return Some((config(overriding?, DEFAULT_KEY_PREFIX), DEFAULT_TIMEOUT));
    };
    let section = Section::open(node, &SHAPE, faults)?;
    let written = written(&section, urls.is_empty(), faults);
    let timeout = section.member("timeout").map_or(Some(DEFAULT_TIMEOUT), |node| node.duration(TIMEOUT, faults));
    let prefix = section.member("key_prefix").map_or(Some(DEFAULT_KEY_PREFIX), |node| node.identifier(faults));
    let seeds = if urls.is_empty() { written } else { overriding };
    Some((config(seeds?, prefix?), timeout?))
}

fn config(seeds: Vec<String>, key_prefix: &str) -> StoreConfig {
    if seeds.is_empty() {
        return StoreConfig::Embedded;
    }
    StoreConfig::Redis(RedisConfig { seeds, key_prefix: key_prefix.to_owned() })
}

/// The seeds at `store.redis`; it may be missing only if a flag names some.
fn written(section: &Section<'_>, needed: bool, faults: &mut Faults) -> Option<Vec<String>> {
    let sentence = "`store` needs `redis`, one or more URLs: leave `store` out for the embedded store";
    let node = if needed { section.required("redis", sentence, faults) } else { section.member("redis") };
    let items = match node {
        Some(node) => node.list("[redis://127.0.0.1:7001]", faults)?,
        None => return (!needed).then(Vec::new),
    };
    if let (Some(node), []) = (node, items) {
        faults.note(node.place, sentence);
    }
    let seeds: Vec<Option<String>> = items.iter().map(|item| seed(item, faults)).collect();
    distinct(items.iter().map(|item| item.place).zip(seeds), faults)
}

fn seed(node: &Node, faults: &mut Faults) -> Option<String> {
    let text = node.text("a URL such as `redis://127.0.0.1:7001`", faults)?;
    url::seed(text).map_err(|message| faults.note(node.place, message)).ok()
}

fn from_flag(urls: &[String], faults: &mut Faults) -> Option<Vec<String>> {
    let texts = urls.iter().flat_map(|urls| urls.split(',')).map(str::trim);
    let read: Vec<_> = texts.map(|text| url::seed(text).map_err(|message| faults.note(FLAG, message)).ok()).collect();
    distinct(read.into_iter().map(|seed| (FLAG, seed)), faults)
}

/// All of the seeds, none if one is missing; notes each that is named again.
fn distinct(seeds: impl Iterator<Item = (Place, Option<String>)>, faults: &mut Faults) -> Option<Vec<String>> {
    let (places, seeds): (Vec<Place>, Vec<Option<String>>) = seeds.unzip();
    for (index, (place, seed)) in places.iter().zip(&seeds).enumerate() {
        if let Some(seed) = seed
            && seeds.iter().take(index).flatten().any(|before| before == seed)
        {
            faults.note(*place, format!("`{seed}` is named twice: once is enough"));
        }
    }
    seeds.into_iter().collect()
}
