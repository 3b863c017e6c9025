//! The pictures of the documentation, from the real page: `scripts/pictures`.

use std::path::Path;

use crate::browser::run;
use crate::load::Load;
use crate::stories::{Guarded, store};
use crate::support::cluster::shared;

#[test]
#[ignore = "scripts/pictures runs it: it writes into docs"]
fn pictures() {
    let guarded = Guarded::start(&store(shared()));
    let _load = Load::start(&guarded.node.address, Some(&guarded.admin));
    let mut settings = guarded.settings();
    settings["folder"] = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/integrations").to_str().unwrap().into();
    run("pictures", &settings);
}
