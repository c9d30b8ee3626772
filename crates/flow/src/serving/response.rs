//! Responses.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;

use crate::serving::chunks::{ChunkReader, Chunks, chunks};

/// A response: a status, headers and a body.
#[derive(Clone)]
pub struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

/// The body of a response.
#[derive(Clone)]
pub enum Body {
    /// The whole body.
    Whole(Bytes),
    /// A body that is still being made.
    Chunks(ChunkReader),
}

impl Response {
    /// Returns an empty response with this status, from 200 to 599.
    pub fn new(status: u16) -> Response {
        Response {
            status,
            headers: Vec::new(),
            body: Body::Whole(Bytes::new()),
        }
    }

    /// Returns a response with the status 200 and a value as JSON. If the value cannot be JSON, as a map whose keys are no
    /// texts, the status is 500.
    pub fn json(value: &(impl Serialize + ?Sized)) -> Response {
        match serde_json::to_vec(value) {
            Ok(bytes) => Response::bytes("application/json", bytes),
            Err(error) => {
                tracing::warn!("a response cannot be written as JSON: {error}");
                Response::error(500, "the flow's response cannot be written as JSON")
            }
        }
    }

    /// Returns a response with the status 200 and a text.
    pub fn text(text: impl Into<String>) -> Response {
        Response::bytes("text/plain; charset=utf-8", text.into())
    }

    /// Returns a response with the status 200 and a body of this media type.
    pub fn bytes(media_type: &str, body: impl Into<Bytes>) -> Response {
        Response {
            body: Body::Whole(body.into()),
            ..Response::new(200).header("content-type", media_type)
        }
    }

    /// Returns a response with the status 404 and a message.
    pub fn not_found(message: &str) -> Response {
        Response::error(404, message)
    }

    /// Returns a response with this status and a message: `{"error": "…"}`.
    pub fn error(status: u16, message: &str) -> Response {
        Response::json(&json!({ "error": message })).status(status)
    }

    /// Returns a response with the status 200 whose body the program sends piece by piece, from any thread, after the
    /// response itself. [`Chunks::send`] waits while the client is slow, so operators do not call it.
    pub fn streamed(media_type: &str) -> (Chunks, Response) {
        let (sender, reader) = chunks();
        let response = Response {
            body: Body::Chunks(reader),
            ..Response::new(200).header("content-type", media_type)
        };
        (sender, response)
    }

    /// Sets the body, of any media type.
    pub(super) fn body_of(mut self, body: Vec<u8>) -> Response {
        self.body = Body::Whole(body.into());
        self
    }

    /// Sets the status, from 200 to 599.
    #[must_use]
    pub fn status(mut self, status: u16) -> Response {
        self.status = status;
        self
    }

    /// Adds a header. The HTTP server sets those of the connection and of the body's length itself.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Response {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the status.
    pub fn status_code(&self) -> u16 {
        self.status
    }

    /// Returns all headers in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let headers = self.headers.iter();
        headers.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Returns the whole body as text; `None` if it is sent in chunks, or is no text.
    pub fn body_text(&self) -> Option<&str> {
        match &self.body {
            Body::Whole(bytes) => str::from_utf8(bytes).ok(),
            Body::Chunks(_) => None,
        }
    }
}

/// Shows the status alone: the content may be secret.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({})", self.status)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn responses_have_the_status_and_the_type_of_their_content() {
        let response = Response::json(&[1, 2]);
        assert_eq!(response.body_text(), Some("[1,2]"));
        assert_eq!(response.status_code(), 200);
        let headers: Vec<_> = response.headers().collect();
        assert_eq!(headers, [("content-type", "application/json")]);
        let missing = Response::not_found("no such user");
        assert_eq!(missing.status_code(), 404);
        assert_eq!(missing.body_text(), Some(r#"{"error":"no such user"}"#));
        let odd = Response::json(&BTreeMap::from([([1, 2], 3)]));
        assert_eq!(odd.status_code(), 500);
        assert_eq!(Response::new(204).body_text(), Some(""));
    }
}
