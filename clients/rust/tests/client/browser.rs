//! Sends requests as browsers and proxies do.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

#[derive(Clone)]
pub struct Browser(Client<HttpConnector, Full<Bytes>>);

impl Browser {
    pub fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    pub async fn get(&self, url: &str) -> Response<Bytes> {
        self.send(Method::GET, url, HeaderMap::new(), Bytes::new()).await
    }

    pub async fn send(&self, method: Method, url: &str, headers: HeaderMap, body: Bytes) -> Response<Bytes> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = url.parse().unwrap();
        *request.headers_mut() = headers;
        let (head, body) = self.0.request(request).await.unwrap().into_parts();
        Response::from_parts(head, body.collect().await.unwrap().to_bytes())
    }

    pub async fn json(&self, url: &str) -> Value {
        let response = self.get(url).await;
        serde_json::from_slice(response.body()).unwrap()
    }
}
