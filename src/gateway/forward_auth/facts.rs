//! The facts of a question: the client's address, and the method, the host and the path of its
//! request. Each has one source.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::HeaderMap;

use super::missing::{Missing, Why};
use super::path::Paths;
use super::question::{Question, is_trusted};
use super::{address, host, path, url};
use crate::config::{ClientFrom, Gate, RequestFrom, RuleMatch};
use crate::limit::address::{canonical, parse};

/// The headers of a peer. They count only if it is one of the gate's proxies.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    headers: &'a HeaderMap,
    pub is_trusted: bool,
}

impl<'a> Fields<'a> {
    /// The only value of a header.
    pub(super) fn only(&self, name: &str, source: Cow<'a, str>) -> Result<&'a str, Missing<'a>> {
        let missing = |why| Missing { source, why };
        if !self.is_trusted {
            return Err(missing(Why::Untrusted));
        }
        let mut values = self.headers.get_all(name).iter();
        let Some(value) = values.next() else { return Err(missing(Why::Absent)) };
        match (values.next(), std::str::from_utf8(value.as_bytes())) {
            (Some(_), _) => Err(missing(Why::Repeated)),
            (None, Ok("")) => Err(missing(Why::Empty)),
            (None, Ok(text)) => Ok(text),
            (None, Err(_)) => Err(missing(Why::Malformed)),
        }
    }

    fn named(&self, name: &'static str) -> Result<&'a str, Missing<'a>> {
        self.only(name, Cow::Borrowed(name))
    }
}

/// The facts of a question.
#[derive(Debug)]
pub struct Facts<'a> {
    pub fields: Fields<'a>,
    pub client: Result<IpAddr, Missing<'a>>,
    /// In upper case.
    pub method: Result<String, Missing<'a>>,
    /// In lower case, without port and final dot.
    pub host: Result<String, Missing<'a>>,
    pub path: Result<Paths, Missing<'a>>,
}

impl<'a> Facts<'a> {
    pub fn read(gate: &Gate, question: &Question<'a>) -> Self {
        let fields = Fields { headers: question.headers, is_trusted: is_trusted(gate, question.peer) };
        let own_host = question.host.ok_or(Missing::new("Host", Why::Absent));
        let (method, host, path) = match gate.request_from {
            RequestFrom::Request => (Ok(question.method), own_host, Ok(question.path)),
            RequestFrom::Forwarded => (
                fields.named("X-Forwarded-Method"),
                fields.named("X-Forwarded-Host"),
                fields.named("X-Forwarded-Uri"),
            ),
            RequestFrom::Original => {
                let host = if fields.is_trusted { own_host } else { Err(Missing::new("Host", Why::Untrusted)) };
                (fields.named("X-Original-Method"), host, fields.named("X-Original-URI"))
            }
            RequestFrom::OriginalUrl => {
                let url = fields.named("X-Original-URL");
                let url = url.and_then(|url| url::split(url).ok_or(Missing::malformed("X-Original-URL")));
                let (host, path) = (url.clone().map(|(host, _)| host), url.map(|(_, path)| path));
                (fields.named("X-Original-Method"), host, path)
            }
        };
        Self {
            fields,
            client: client(gate, question.peer, &fields),
            method: method.and_then(|text| RuleMatch::method(text).ok_or(Missing::malformed("the method"))),
            host: host.and_then(|text| host::host(text).ok_or(Missing::malformed("the host"))),
            path: path.and_then(|text| path::read(text).ok_or(Missing::malformed("the path"))),
        }
    }
}

impl<'a> Facts<'a> {
    /// The first of method, host and path that is there in no readable form.
    pub(super) fn malformed(&self) -> Option<Missing<'a>> {
        let missing = [self.method.as_ref().err(), self.host.as_ref().err(), self.path.as_ref().err()];
        missing.into_iter().flatten().find(|missing| missing.is_there()).cloned()
    }
}

/// The client's address. The headers of an untrusted peer do not count, so that peer is the client.
fn client<'a>(gate: &Gate, peer: Option<IpAddr>, fields: &Fields<'a>) -> Result<IpAddr, Missing<'a>> {
    match gate.client_from {
        ClientFrom::XForwardedFor if fields.is_trusted => {
            address::walk(fields.headers.get_all("x-forwarded-for"), &gate.trusted_proxies)
        }
        ClientFrom::XRealIp if fields.is_trusted => {
            parse(fields.named("X-Real-IP")?).ok_or(Missing::malformed("X-Real-IP"))
        }
        ClientFrom::XForwardedFor | ClientFrom::XRealIp | ClientFrom::Peer => {
            peer.map(canonical).ok_or(Missing::new("the peer's address", Why::Absent))
        }
    }
}
