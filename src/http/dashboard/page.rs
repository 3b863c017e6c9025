//! The bytes of the page, plain and compressed.
//!
//! `build.rs` compresses the page in two parts. Between them is the line with the other nodes, which
//! the configuration names. A node joins the three once, so no answer has bytes of its own.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::body::Bytes;
use axum::http::{HeaderMap, header};

pub(super) const HTML: &str = include_str!("dashboard.html");

/// The part of the page that lists the other nodes.
pub(super) const NO_NODES: &str = r#"<meta name="nodes" content="">"#;

const BEFORE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dashboard-before.deflate"));
const AFTER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dashboard-after.deflate"));

/// The page for one configuration.
#[derive(Debug)]
pub(super) struct Page {
    nodes: Arc<Vec<String>>,
    pub(super) plain: Bytes,
    pub(super) gzip: Bytes,
}

impl Page {
    /// The page with these origins of other nodes, made anew only after a change.
    pub(super) fn of(nodes: &Arc<Vec<String>>) -> Arc<Self> {
        static LAST: ArcSwapOption<Page> = ArcSwapOption::const_empty();
        if let Some(last) = &*LAST.load()
            && last.nodes == *nodes
        {
            return last.clone();
        }
        let page = Arc::new(Self::new(nodes));
        LAST.store(Some(page.clone()));
        page
    }

    fn new(nodes: &Arc<Vec<String>>) -> Self {
        // Origins have no character that ends an attribute.
        let line = format!(r#"<meta name="nodes" content="{}">"#, nodes.join(" "));
        let plain = HTML.replacen(NO_NODES, &line, 1);
        let gzip = gzip(plain.as_bytes(), line.as_bytes());
        Self { nodes: nodes.clone(), plain: plain.into(), gzip: gzip.into() }
    }
}

/// Whether the client accepts gzip (RFC 9110, 12.5.3).
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
    let weights = lines.flat_map(|line| line.split(',')).filter_map(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.trim().parse::<f32>().ok())?;
        Some((name.trim().to_ascii_lowercase(), weight > 0.0))
    });
    // The name of a coding counts more than `*`.
    let (mut named, mut any) = (None, false);
    for (name, accepts) in weights {
        match name.as_str() {
            "gzip" | "x-gzip" => named = Some(accepts),
            "*" => any = accepts,
            _ => {}
        }
    }
    named.unwrap_or(any)
}

/// A file of gzip (RFC 1952): the compressed parts, and between them `line` as a stored block
/// (RFC 1951, 3.2.4).
fn gzip(page: &[u8], line: &[u8]) -> Vec<u8> {
    // Without a name and a time, from an unknown system.
    const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let mut file = [&HEAD, BEFORE].concat();
    for block in line.chunks(u16::MAX.into()) {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        file.push(0);
        file.extend(length.to_le_bytes());
        file.extend((!length).to_le_bytes());
        file.extend(block);
    }
    file.extend(AFTER);
    file.extend(crc32(page).to_le_bytes());
    file.extend(u32::try_from(page.len()).unwrap_or(u32::MAX).to_le_bytes());
    file
}

/// The check sum of gzip (RFC 1952, 8).
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn gzip_is_for_clients_that_accept_it() {
        for (lines, expected) in [
            (&[][..], false),
            (&["gzip"], true),
            (&["br, GZIP;q=0.5"], true),
            (&["deflate", "x-gzip"], true),
            (&["*"], true),
            (&["identity"], false),
            (&["gzip;q=0, *"], false),
            (&["gzip; q=0.0"], false),
            (&["*;q=0"], false),
            (&["*;q=0, gzip;q=1"], true),
            (&["gzip;q=x"], false),
        ] {
            let mut headers = HeaderMap::new();
            lines
                .iter()
                .for_each(|line| _ = headers.append(header::ACCEPT_ENCODING, HeaderValue::from_static(line)));
            assert_eq!(accepts_gzip(&headers), expected, "{lines:?}");
        }
    }

    #[test]
    fn check_sum_is_that_of_gzip() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn page_is_made_once_for_each_list_of_nodes() {
        let nodes = |origin: &str| Arc::new(vec![origin.to_owned()]);
        let page = Page::of(&nodes("http://10.0.0.1:7070"));
        assert!(Arc::ptr_eq(&page, &Page::of(&nodes("http://10.0.0.1:7070"))));
        let other = Page::of(&nodes("http://10.0.0.2:7070"));
        assert!(page.plain != other.plain && page.gzip != other.gzip);
        assert!(other.gzip.len() < other.plain.len() / 3);
    }
}
