//! The bodies of requests and responses.

use crate::api::ApiKey;
use crate::body::Body;
use crate::error::{EncodeError, Malformed};
use crate::input::Input;
use crate::pieces::Output;

/// The body of a request, which names the type of its response.
pub trait Question: Into<Request> {
    /// The body of its response.
    type Answer: Into<Response> + Send + 'static;
    /// Returns the kind of the request.
    const API: ApiKey;

    /// Returns the body of a response; `None` if it answers another request.
    fn answer(response: Response) -> Option<Self::Answer>;

    /// Returns the body of a response; `None` if it answers another request.
    fn answer_mut(response: &mut Response) -> Option<&mut Self::Answer>;
}

macro_rules! bodies {
    ($($name:ident = $key:literal, $request:ty, $response:ty, $min:literal..=$max:literal, $flexible:expr;)*) => {
        /// A request, without its header.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Request {
            $(#[doc = concat!("See [`ApiKey::", stringify!($name), "`].")] $name($request),)*
        }

        impl Request {
            /// Returns the kind of the request.
            pub fn api(&self) -> ApiKey {
                match self {
                    $(Request::$name(_) => ApiKey::$name,)*
                }
            }

            pub(crate) fn decode(
                api: ApiKey,
                version: i16,
                input: &mut Input,
            ) -> Result<Request, Malformed> {
                match api {
                    $(ApiKey::$name => Body::decode(input, version).map(Request::$name),)*
                }
            }

            pub(crate) fn encode(&self, version: i16, output: &mut Output) -> Result<(), EncodeError> {
                match self {
                    $(Request::$name(body) => encode_body(body, ApiKey::$name, version, output),)*
                }
            }
        }

        /// A response, without its header.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Response {
            $(#[doc = concat!("Answers [`Request::", stringify!($name), "`].")] $name($response),)*
        }

        impl Response {
            /// Returns the kind of the request that it answers.
            pub fn api(&self) -> ApiKey {
                match self {
                    $(Response::$name(_) => ApiKey::$name,)*
                }
            }

            pub(crate) fn decode(
                api: ApiKey,
                version: i16,
                input: &mut Input,
            ) -> Result<Response, Malformed> {
                match api {
                    $(ApiKey::$name => Body::decode(input, version).map(Response::$name),)*
                }
            }

            pub(crate) fn encode(&self, version: i16, output: &mut Output) -> Result<(), EncodeError> {
                match self {
                    $(Response::$name(body) => encode_body(body, ApiKey::$name, version, output),)*
                }
            }
        }

        /// Random messages.
        #[cfg(any(test, feature = "forge"))]
        pub(crate) mod forged {
            use super::*;
            use crate::forge::{Forge, Forged};

            pub(crate) fn request(api: ApiKey, version: i16, forge: &mut Forge) -> Option<Request> {
                match api {
                    $(ApiKey::$name => Forged::forge(forge, version).map(Request::$name),)*
                }
            }

            pub(crate) fn response(api: ApiKey, version: i16, forge: &mut Forge) -> Option<Response> {
                match api {
                    $(ApiKey::$name => Forged::forge(forge, version).map(Response::$name),)*
                }
            }
        }

        $(
            impl From<$request> for Request {
                fn from(body: $request) -> Request {
                    Request::$name(body)
                }
            }

            impl From<$response> for Response {
                fn from(body: $response) -> Response {
                    Response::$name(body)
                }
            }

            impl Question for $request {
                type Answer = $response;
                const API: ApiKey = ApiKey::$name;

                fn answer(response: Response) -> Option<$response> {
                    match response {
                        Response::$name(body) => Some(body),
                        _ => None,
                    }
                }

                fn answer_mut(response: &mut Response) -> Option<&mut $response> {
                    match response {
                        Response::$name(body) => Some(body),
                        _ => None,
                    }
                }
            }
        )*
    };
}

crate::apis!(bodies);

fn encode_body(
    body: &impl Body,
    api: ApiKey,
    version: i16,
    output: &mut Output,
) -> Result<(), EncodeError> {
    body.encode(output, version)
        .map_err(|what| EncodeError::Field { api, version, what })
}
