//! Requests.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use percent_encoding::percent_decode_str;

/// A request: a method, a path, a query, headers and a body.
///
/// `Debug` shows the method and the path alone, since dead letters and logs have it, and the rest may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    method: String,
    /// Begins with `/`; percent-encoded.
    path: String,
    /// Without the `?`; percent-encoded.
    query: String,
    /// The names are in lower case.
    headers: Vec<(String, Bytes)>,
    body: Bytes,
}

impl Request {
    /// Returns a request with this method for a path and a query, both percent-encoded, such as `/ann?n=10`.
    pub fn new(method: &str, target: &str) -> Request {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let slash = if path.starts_with('/') { "" } else { "/" };
        Request {
            method: method.to_owned(),
            path: format!("{slash}{path}"),
            query: query.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// Returns a GET of a path and a query, as [`new`](Self::new) takes them.
    pub fn get(target: &str) -> Request {
        Request::new("GET", target)
    }

    /// Returns a POST of a body to a path and a query, as [`new`](Self::new) takes them.
    pub fn post(target: &str, body: impl Into<Bytes>) -> Request {
        Request::new("POST", target).with_body(body)
    }

    /// Sets the body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Request {
        self.body = body.into();
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<Bytes>) -> Request {
        self.headers.push((name.to_ascii_lowercase(), value.into()));
        self
    }

    /// Returns the method, such as `GET`, in the caller's letters.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns the path below the flow's own, percent-encoded. It begins with `/`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the query, percent-encoded.
    pub(super) fn raw_query(&self) -> &str {
        &self.query
    }

    /// Returns a segment of the path, decoded; the first one has the index 0. `None` if there is none, or if it is empty.
    pub fn segment(&self, index: usize) -> Option<String> {
        let segment = self.path[1..].split('/').nth(index)?;
        (!segment.is_empty()).then(|| decoded(segment).into_owned())
    }

    /// Returns the first value of this name in the query, decoded; the empty text for a name without a value.
    pub fn query(&self, name: &str) -> Option<String> {
        let mut pairs = self.query_pairs();
        pairs.find_map(|(found, value)| (found == name).then_some(value))
    }

    /// Returns all names and values of the query, decoded, in their order. A `+` is a space.
    pub fn query_pairs(&self) -> impl Iterator<Item = (String, String)> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = |text: &str| decoded(&text.replace('+', " ")).into_owned();
            (text(name), text(value))
        })
    }

    /// Returns the first header of this name as text; `None` if there is none, or if it is no text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers();
        let (_, value) = headers.find(|(found, _)| found.eq_ignore_ascii_case(name))?;
        str::from_utf8(value).ok()
    }

    /// Returns all headers, the names in lower case. Over HTTP, `Authorization` is left out: it is for the server.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let headers = self.headers.iter();
        headers.map(|(name, value)| (name.as_str(), value.as_ref()))
    }

    /// Returns the body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the body, read as JSON.
    ///
    /// # Errors
    /// If it is not JSON, or not of this type.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// Its memory, about.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.headers.iter();
        let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        self.path.len() + self.query.len() + headers + self.body.len()
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// Decodes percent-encoded text. Bytes that are no UTF-8 become replacement characters.
fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_and_queries_are_decoded() {
        let request = Request::get("/gr%C3%BC%C3%9Fe/a%2Fb//c?n=10&n=11&q=a+b%2B&flag&=x");
        let segments = [0, 1, 2, 3, 4].map(|index| request.segment(index));
        let expected = [Some("grüße"), Some("a/b"), None, Some("c"), None];
        assert_eq!(segments, expected.map(|text| text.map(str::to_owned)));
        assert_eq!(request.query("n").as_deref(), Some("10"));
        assert_eq!(request.query("q").as_deref(), Some("a b+"));
        assert_eq!(request.query("flag").as_deref(), Some(""));
        assert_eq!(request.query("m"), None);
        assert_eq!(request.query_pairs().count(), 5);
        assert_eq!(Request::get("x").path(), "/x");
        assert_eq!(Request::get("").segment(0), None);
    }

    #[test]
    fn debug_output_shows_no_query_header_or_body() {
        let request =
            Request::post("/users/7?token=secret", "secret").with_header("Cookie", "secret");
        assert_eq!(format!("{request:?}"), "POST /users/7");
        assert_eq!(request.header("COOKIE"), Some("secret"));
    }
}
