//! The store settings: servers, timeout and bounds.

use std::path::Path;
use std::time::Duration;

use super::address_map::address_map;
use super::fault::{Fault, Place, Reading};
use super::node::{Member, Node, Value};
use super::scalar::excerpt;
use super::section::Section;
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

/// The configured store; none after a fault. `urls` come from the command line and override
/// `store.redis`.
pub(super) fn store(root: &Section<'_>, urls: &[String]) -> Option<Stores> {
    let reading = &root.node.reading;
    let overriding = reading.checked(|| from_flag(urls, reading));
    let section = root.section("store", &SHAPE);
    let node = root.member("store");
    let sentinel = section.entry(SENTINEL.name).map(|entry| sentinel_beside(entry, &section));
    let is_needed = node.is_some() && urls.is_empty() && sentinel.is_none() && !section.is_only(MAX_KEYS.name);
    let written = reading.checked(|| written(&section, is_needed));
    if written.iter().flatten().any(|(_, seed)| seed.login.is_some()) {
        reading.files.borrow_mut().warn_of_readers();
    }
    let credentials = node.map(|node| credentials::spec(node, &section));
    let (timeout, max_keys) = (section.read(&TIMEOUT), section.read(&MAX_KEYS));
    let key_prefix = section.member(KEY_PREFIX.name).map_or(Some(DEFAULT_KEY_PREFIX), Node::identifier);
    let address_map = section.member(ADDRESS_MAP.name).map(address_map).unwrap_or_default();
    let (seeds, sentinel) = if urls.is_empty() { (written?, sentinel.flatten()) } else { (overriding?, None) };
    let credentials = match credentials {
        Some(None) => return None,
        credentials => credentials.flatten(),
    };
    let (key_prefix, sentinel) = (key_prefix.unwrap_or_default().to_owned(), sentinel.map(Box::new));
    let redis = RedisConfig { address_map, sentinel, key_prefix, ..RedisConfig::default() };
    let config = reading.noted(config(&seeds, redis, credentials));
    Some(Stores { config: config?, timeout, max_keys: usize::try_from(max_keys).ok()? })
}

/// The store of these servers.
///
/// # Errors
/// Settings that contradict each other.
fn config(
    seeds: &[(Place, Seed)],
    redis: RedisConfig,
    written: Option<credentials::CredentialsSpec<'_>>,
) -> Result<StoreConfig, Fault> {
    if seeds.is_empty() && redis.sentinel.is_none() {
        return Ok(StoreConfig::Embedded);
    }
    let socket = seeds.iter().find(|(_, seed)| seed.is_socket());
    if let (Some((place, _)), 2..) = (socket, seeds.len()) {
        return Err(Fault::at(
            *place,
            "a Unix socket leads to a lone server, which has all counts: name no other beside it",
        ));
    }
    let credentials = credentials::credentials(seeds, written)?;
    if let (Some((place, _)), Some(_)) = (socket, &credentials.tls) {
        return Err(Fault::at(*place, "a Unix socket is without TLS: leave `tls` out, or write `rediss://host:port`"));
    }
    // `tls` holds for all servers, so it changes the scheme of each URL.
    let url = |(_, seed): &(Place, Seed)| match credentials.tls {
        Some(_) if !seed.tls => seed.url.replacen("redis://", "rediss://", 1),
        _ => seed.url.clone(),
    };
    Ok(StoreConfig::Redis(RedisConfig { seeds: seeds.iter().map(url).collect(), credentials, ..redis }))
}

/// The sentinels, which exclude `store.redis`; none after a fault.
fn sentinel_beside(entry: &Member, section: &Section<'_>) -> Option<SentinelConfig> {
    let read = sentinel::sentinel(&entry.node);
    if section.member("redis").is_some() {
        entry.note("`redis` and `sentinel` together: sentinels name the primary, so leave `redis` out");
        return None;
    }
    read
}

/// The seeds at `store.redis`; they may be missing unless they are `needed`.
fn written(section: &Section<'_>, needed: bool) -> Vec<(Place, Seed)> {
    let sentence = "`store` needs `redis`, one or more URLs, or `sentinel`; for the embedded store leave `store` out, or name \
         `max_keys` alone";
    let node = if needed { section.required("redis", sentence) } else { section.member("redis") };
    let Some(node) = node else { return Vec::new() };
    if matches!(&node.value, Value::List(items) if items.is_empty()) {
        node.note(sentence);
    }
    let seeds = node.each("[redis://127.0.0.1:7001]", |item| Some((item.place, seed(item)?)));
    distinct(seeds, &node.reading)
}

fn seed(node: &Node) -> Option<Seed> {
    let message = |wrong| match wrong {
        UrlFault::Several => "several servers in one URL: write a list with a URL for each, such as \
             `[redis://127.0.0.1:7001, redis://127.0.0.1:7002]`"
            .to_owned(),
        UrlFault::Other(reason) => reason,
    };
    node.noted(url::seed(node.text("a URL such as `redis://127.0.0.1:7001`")?).map_err(message))
}

fn from_flag(urls: &[String], reading: &Reading) -> Vec<(Place, Seed)> {
    let texts = urls.iter().flat_map(|word| word.split(',').map(move |text| (word.as_str(), text.trim())));
    let read = texts.filter_map(|(word, text)| flagged(word, text).map_err(|message| reading.note(FLAG, message)).ok());
    distinct(read.map(|seed| (FLAG, seed)).collect(), reading)
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

/// The seeds; notes each duplicate.
fn distinct(seeds: Vec<(Place, Seed)>, reading: &Reading) -> Vec<(Place, Seed)> {
    for (index, (place, seed)) in seeds.iter().enumerate() {
        if let Some((_, before)) = seeds[..index].iter().find(|(_, before)| server_of(before) == server_of(seed)) {
            reading.note(*place, format!("`{}` is named twice: once is enough", before.url));
        }
    }
    seeds
}
