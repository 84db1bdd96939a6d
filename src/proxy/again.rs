//! What it takes to send a request once more.

use http::{HeaderMap, Method, Request, Uri, Version};

/// A request's head, for sending it again; what hyper has attached to it stays behind.
#[derive(Debug)]
pub struct Head {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
}

// === impl Head ===

impl Head {
    /// A copy.
    pub fn of<B>(request: &Request<B>) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            headers: request.headers().clone(),
        }
    }

    /// The request once more.
    pub fn with<B>(self, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.version_mut() = self.version;
        *request.headers_mut() = self.headers;
        request
    }
}
