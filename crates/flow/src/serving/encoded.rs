//! Requests and responses as they go from one rank to another.

use serde::{Deserialize, Serialize, Serializer};

use crate::error::BoxError;
use crate::serving::request::Request;
use crate::serving::response::{Body, Response};

/// A request on its way to another rank.
#[derive(Debug, Serialize, Deserialize)]
pub struct EncodedRequest<'a> {
    method: &'a str,
    path: &'a str,
    query: &'a str,
    #[serde(borrow)]
    headers: Vec<(&'a str, &'a [u8])>,
    #[serde(serialize_with = "at_once")]
    body: &'a [u8],
}

impl<'a> EncodedRequest<'a> {
    pub fn of(request: &'a Request) -> Self {
        EncodedRequest {
            method: request.method(),
            path: request.path(),
            query: request.raw_query(),
            headers: request.headers().collect(),
            body: request.body(),
        }
    }

    pub fn decode(&self) -> Request {
        let target = format!("{}?{}", self.path, self.query);
        let request = Request::new(self.method, &target).with_body(self.body.to_vec());
        let headers = self.headers.iter();
        headers.fold(request, |request, (name, value)| {
            request.with_header(name, value.to_vec())
        })
    }
}

/// A response on its way to the caller's rank.
#[derive(Serialize, Deserialize)]
struct EncodedResponse<'a> {
    status: u16,
    #[serde(borrow)]
    headers: Vec<(&'a str, &'a str)>,
    #[serde(serialize_with = "at_once")]
    body: &'a [u8],
}

/// Writes all bytes at once, in the same form as one by one.
fn at_once<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Encodes a response. One that is sent piece by piece becomes an error: the pieces are made on this rank.
pub fn encode_response(response: &Response) -> Vec<u8> {
    let body = match response.body() {
        Body::Whole(bytes) => bytes,
        Body::Chunks(_) => {
            tracing::warn!("a streamed response cannot be sent to the rank of the caller");
            let refused = "the flow streams its response on another rank than that of the caller";
            return encode_response(&Response::error(500, refused));
        }
    };
    let encoded = EncodedResponse {
        status: response.status_code(),
        headers: response.headers().collect(),
        body,
    };
    postcard::to_stdvec(&encoded).expect("texts, bytes and numbers can be written")
}

/// Decodes a response.
///
/// # Errors
/// If it is not one.
pub fn decode_response(message: &[u8]) -> Result<Response, BoxError> {
    let EncodedResponse {
        status,
        headers,
        body,
    } = postcard::from_bytes(message)?;
    let response = Response::new(status).body_of(body.to_vec());
    let headers = headers.into_iter();
    Ok(headers.fold(response, |response, (name, value)| {
        response.header(name, value)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reencoded(request: &Request) -> Request {
        let bytes = postcard::to_stdvec(&EncodedRequest::of(request)).unwrap();
        let decoded: EncodedRequest<'_> = postcard::from_bytes(&bytes).unwrap();
        decoded.decode()
    }

    #[test]
    fn requests_and_responses_are_the_same_on_another_rank() {
        for request in [
            Request::get(""),
            Request::get("/a%2Fb/c?n=1&q=a?b"),
            Request::post("/?", vec![0, 255])
                .with_header("X-Bytes", vec![200])
                .with_header("x-bytes", ""),
        ] {
            assert_eq!(reencoded(&request), request);
        }
        let response = Response::text("grüße").status(203).header("X-Flow", "a");
        let decoded = decode_response(&encode_response(&response)).unwrap();
        assert_eq!(decoded.status_code(), 203);
        assert_eq!(decoded.body_text(), Some("grüße"));
        let headers: Vec<_> = decoded.headers().collect();
        assert_eq!(headers, response.headers().collect::<Vec<_>>());
        assert!(decode_response(&[255]).is_err());
    }

    #[test]
    fn a_streamed_response_becomes_an_error() {
        let (chunks, response) = Response::streamed("text/plain");
        let decoded = decode_response(&encode_response(&response)).unwrap();
        assert_eq!(decoded.status_code(), 500);
        drop(response);
        assert!(chunks.send("a").is_err());
    }
}
