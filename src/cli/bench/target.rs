//! Where to ask: `http://host:port`.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;

/// The service to ask, plain HTTP.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    /// As the field `Host` writes it.
    pub(super) authority: String,
    /// Comes before every path; without a slash at its end.
    pub(super) path: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "write http://host:port".to_owned();
        let uri: Uri = text.parse().map_err(|_| form())?;
        let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(if uri.scheme_str() == Some("https") {
                "there is no TLS here: ".to_owned() + &form()
            } else {
                form()
            });
        };
        Ok(Self {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.as_str().to_owned(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}
