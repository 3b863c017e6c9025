//! The configuration, and the keys of callers.

use tollgate::config::{Overrides, Source, load};
use tollgate::limit::key::KeyType;
use tollgate::store::redis::protocol::keys::Tag;

use crate::support::dice::Dice;
use crate::support::fuzz::{cases, corpus};
use crate::support::mutation::mutant;

#[test]
fn mutated_configurations_load_or_report_faults() {
    let corpus = corpus(&["config/good", "config/bad"]);
    let mut loaded = 0;
    for seed in 0..cases(3000) {
        let text = String::from_utf8_lossy(&mutant(&corpus, &mut Dice::new(seed))).into_owned();
        let source = Source { origin: "fuzz".to_owned(), text: text.clone(), file: None };
        match load(&source, &Overrides::default(), 0) {
            Ok(_) => loaded += 1,
            Err(faults) => assert!(faults.iter().count() > 0 && !faults.to_string().is_empty(), "seed {seed}: {text}"),
        }
    }
    assert!(loaded > 0, "not one mutant was good: the corpus is");
}

/// One slot for all names of a key: a pair of braces, with nothing inside that ends them early.
#[test]
fn every_key_forms_one_hash_tag() {
    let corpus: Vec<Vec<u8>> = ["203.0.113.7", "2001:db8::1", "::ffff:1.2.3.4", "user:{42}", "a%7Bb", "ünï", "%h00"]
        .map(|key| key.as_bytes().to_vec())
        .into();
    for seed in 0..cases(20_000) {
        let bytes = mutant(&corpus, &mut Dice::new(seed));
        let key = String::from_utf8_lossy(&bytes);
        for key in [KeyType::Text, KeyType::Ip { ipv6_prefix: 64 }]
            .into_iter()
            .filter_map(|kind| kind.normalise(&key).ok())
        {
            let name = Tag::new("ratelimit", &key).record("p", &key);
            let (start, end) = (name.starts_with("{ratelimit:"), name.matches(['{', '}']).count());
            assert_eq!((start, end), (true, 2), "seed {seed}: {key:?} is {name}");
        }
    }
}
