//! The store settings: servers, timeout and bounds.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::address_map::address_map;
use super::fault::{Faults, Place};
use super::files::Files;
use super::raw::Node;
use super::scalar::excerpt;
use super::section::Section;
use super::setting::Kind;
use super::settings::store::{ADDRESS_MAP, KEY_PREFIX, MAX_KEYS, SENTINEL, SHAPE, TIMEOUT};
use super::url::{Seed, UrlFault};
use super::{RedisConfig, SentinelConfig, StoreConfig, credentials, sentinel, url};

/// The default first part of each key in Redis.
pub const DEFAULT_KEY_PREFIX: &str = KEY_PREFIX.kind.0;

/// The default of `store.max_keys`.
pub const DEFAULT_MAX_KEYS: usize = MAX_KEYS.kind.1 as usize;

const FLAG: Place = Place::Flag("--store or TOLLGATE_STORE");

/// The settings of `store`.
pub(super) struct Stores {
    pub config: StoreConfig,
    /// The timeout of policies that name none.
    pub timeout: Duration,
    /// Bounds the embedded store, also the one for `on_store_failure: local`.
    pub max_keys: usize,
}

/// The configured store. `urls` come from the command line and override `store.redis`.
pub(super) fn store(root: &Section<'_>, urls: &[String], files: &mut Files, faults: &mut Faults) -> Option<Stores> {
    let overriding = from_flag(urls, faults);
    let Some(node) = root.member("store") else {
        let config = config(&overriding?, None, None, DEFAULT_KEY_PREFIX, BTreeMap::new(), faults)?;
        return Some(Stores { config, timeout: TIMEOUT.kind.default(), max_keys: DEFAULT_MAX_KEYS });
    };
    let section = Section::open(node, &SHAPE, faults)?;
    let sentinel = sentinel_beside(&section, files, faults);
    let is_needed = urls.is_empty() && section.member(SENTINEL.name).is_none() && !section.is_only(MAX_KEYS.name);
    let written = written(&section, is_needed, faults);
    if written.iter().flatten().any(|(_, seed)| seed.login.is_some()) {
        files.warn_of_readers();
    }
    let credentials = credentials::spec(node.place, &section, files, faults);
    let timeout = section.read(&TIMEOUT, faults);
    let prefix = section.or(KEY_PREFIX.name, DEFAULT_KEY_PREFIX, |node| node.identifier(faults));
    let address_map = section.or(ADDRESS_MAP.name, BTreeMap::new(), |node| address_map(node, faults));
    let max_keys = section.read(&MAX_KEYS, faults).and_then(|most| usize::try_from(most).ok());
    let (seeds, sentinel) = if urls.is_empty() { (written, sentinel?) } else { (overriding, None) };
    let (seeds, credentials) = (seeds?, credentials?);
    let (key_prefix, map) = (prefix.unwrap_or_default(), address_map.clone().unwrap_or_default());
    let config = config(&seeds, sentinel, Some(credentials), key_prefix, map, faults);
    prefix.and(address_map)?;
    Some(Stores { config: config?, timeout: timeout?, max_keys: max_keys? })
}

fn config(
    seeds: &[(Place, Seed)],
    sentinel: Option<Box<SentinelConfig>>,
    written: Option<credentials::CredentialsSpec>,
    key_prefix: &str,
    address_map: BTreeMap<String, String>,
    faults: &mut Faults,
) -> Option<StoreConfig> {
    if seeds.is_empty() && sentinel.is_none() {
        return Some(StoreConfig::Embedded);
    }
    if let (Some((place, _)), 2..) = (seeds.iter().find(|(_, seed)| seed.is_socket()), seeds.len()) {
        faults.note(*place, "a Unix socket leads to a lone server, which has all counts: name no other beside it");
    }
    let credentials = credentials::credentials(seeds, written, faults)?;
    // `tls` holds for all servers, so it changes the scheme of each URL.
    let url = |seed: &Seed| match credentials.tls {
        Some(_) if !seed.tls => seed.url.replacen("redis://", "rediss://", 1),
        _ => seed.url.clone(),
    };
    if let (Some((place, _)), true) = (seeds.iter().find(|(_, seed)| seed.is_socket()), credentials.tls.is_some()) {
        faults.note(*place, "a Unix socket is without TLS: leave `tls` out, or write `rediss://host:port`");
    }
    let seeds = seeds.iter().map(|(_, seed)| url(seed)).collect();
    Some(StoreConfig::Redis(RedisConfig {
        seeds,
        address_map,
        sentinel,
        key_prefix: key_prefix.to_owned(),
        credentials,
    }))
}

/// The sentinels, if any; they exclude `store.redis`. The outer None marks a fault.
fn sentinel_beside(
    section: &Section<'_>,
    files: &mut Files,
    faults: &mut Faults,
) -> Option<Option<Box<SentinelConfig>>> {
    let Some(entry) = section.entry(SENTINEL.name) else { return Some(None) };
    let read = sentinel::sentinel(&entry.node, files, faults);
    if section.member("redis").is_some() {
        faults.note(entry.place, "`redis` and `sentinel` together: sentinels name the primary, so leave `redis` out");
        return None;
    }
    read.map(|read| Some(Box::new(read)))
}

/// The seeds at `store.redis`; they may be missing unless they are `needed`.
fn written(section: &Section<'_>, needed: bool, faults: &mut Faults) -> Option<Vec<(Place, Seed)>> {
    let sentence = "`store` needs `redis`, one or more URLs, or `sentinel`; for the embedded store leave `store` out, or name \
         `max_keys` alone";
    let node = if needed { section.required("redis", sentence, faults) } else { section.member("redis") };
    let items = match node {
        Some(node) => node.list("[redis://127.0.0.1:7001]", faults)?,
        None => return (!needed).then(Vec::new),
    };
    if let (Some(node), []) = (node, items) {
        faults.note(node.place, sentence);
    }
    let seeds: Vec<Option<Seed>> = items.iter().map(|item| seed(item, faults)).collect();
    distinct(items.iter().map(|item| item.place).zip(seeds), faults)
}

fn seed(node: &Node, faults: &mut Faults) -> Option<Seed> {
    let text = node.text("a URL such as `redis://127.0.0.1:7001`", faults)?;
    let message = |wrong| match wrong {
        UrlFault::Several => "several servers in one URL: write a list with a URL for each, such as \
             `[redis://127.0.0.1:7001, redis://127.0.0.1:7002]`"
            .to_owned(),
        UrlFault::Other(reason) => reason,
    };
    url::seed(text).map_err(|wrong| faults.note(node.place, message(wrong))).ok()
}

fn from_flag(urls: &[String], faults: &mut Faults) -> Option<Vec<(Place, Seed)>> {
    let texts = urls.iter().flat_map(|word| word.split(',').map(move |text| (word.as_str(), text.trim())));
    let read = texts.map(|(word, text)| flagged(word, text).map_err(|message| faults.note(FLAG, message)).ok());
    let read: Vec<_> = read.collect();
    distinct(read.into_iter().map(|seed| (FLAG, seed)), faults)
}

/// The URL in a word of the command line. `--store` takes every word after it, even a
/// configuration. A fault repeats only the name of a configuration: any other word may be a part of
/// a password.
fn flagged(word: &str, text: &str) -> Result<Seed, String> {
    if text.contains(char::is_whitespace) {
        return Err("a blank in a URL: several are separated by commas".to_owned());
    }
    if !is_configuration(word) {
        let separate = |wrong| match wrong {
            UrlFault::Several => "several URLs in one: separate them by commas".to_owned(),
            // A comma in a password has split the URL.
            UrlFault::Other(reason) if word.contains(',') && word.contains('@') => {
                format!("{reason} (commas separate URLs: one in a password is `%2C`)")
            }
            UrlFault::Other(reason) => reason,
        };
        return url::seed(text).map_err(separate);
    }
    let shown = excerpt(word);
    Err(format!(
        "`{shown}` is not the URL of a Redis, `redis://host:port`; a configuration is named before `--store`"
    ))
}

fn is_configuration(word: &str) -> bool {
    let path = Path::new(word);
    let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    !word.contains([':', '@', ',']) && (is_yaml || path.is_file())
}

/// The part of a seed's URL after its scheme: `store.tls` makes `redis://` and `rediss://` equal.
fn server_of(seed: &Seed) -> Option<&str> {
    seed.url.split_once("://").map(|(_, server)| server)
}

/// All of the seeds, none if one is missing; notes each duplicate.
fn distinct(seeds: impl Iterator<Item = (Place, Option<Seed>)>, faults: &mut Faults) -> Option<Vec<(Place, Seed)>> {
    let seeds: Vec<(Place, Option<Seed>)> = seeds.collect();
    for (index, (place, seed)) in seeds.iter().enumerate() {
        let known = |before: &&Seed| seed.as_ref().is_some_and(|seed| server_of(seed) == server_of(before));
        let before = seeds.iter().take(index).filter_map(|(_, before)| before.as_ref()).find(known);
        if let Some(before) = before {
            faults.note(*place, format!("`{}` is named twice: once is enough", before.url));
        }
    }
    seeds.into_iter().map(|(place, seed)| Some((place, seed?))).collect()
}
