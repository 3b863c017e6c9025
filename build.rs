//! Compresses the page of the dashboard, which a node fills in at one place.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::{env, fs};

use flate2::Compression;
use flate2::write::DeflateEncoder;

const PAGE: &str = "src/http/dashboard/dashboard.html";

/// As in `src/http/dashboard/page.rs`.
const NO_NODES: &str = r#"<meta name="nodes" content="">"#;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PAGE}");
    let page = fs::read_to_string(PAGE)?;
    let (before, after) = page.split_once(NO_NODES).ok_or("the page has no place for the nodes")?;
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(before.as_bytes())?;
    // Ends at a whole byte, without a last block.
    encoder.flush()?;
    fs::write(folder.join("dashboard-before.deflate"), encoder.get_ref())?;
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(after.as_bytes())?;
    Ok(fs::write(folder.join("dashboard-after.deflate"), encoder.finish()?)?)
}
