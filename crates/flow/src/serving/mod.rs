//! Serving flows: requests are items of a source, and a sink sends their responses.
//!
//! A [`Requests`] is a bounded queue of requests. Callers in the process, and the HTTP server, put a [`Request`] there with
//! [`Requests::call`], and wait for the [`Response`]. The flow reads it as a [`Call`] from a [`RequestSource`]. The call
//! travels through any operators, since it holds its way back to the caller: [`Call::reply`] makes a [`Reply`] of it, and the
//! sink [`Respond`] sends that.
//!
//! ```
//! use millstream_flow::serving::{Call, Reply, Request, Requests, Respond, Response};
//! use millstream_flow::Flow;
//!
//! let flow = Flow::new("greet");
//! let requests = Requests::new(&flow, Default::default());
//! flow.sources("requests", requests.sources(2))
//!     .map(|call: &Call| match call.segment(0) {
//!         Some(name) => call.reply(Response::text(format!("Hello, {name}"))),
//!         None => call.reply(Response::not_found("there is no name in the path")),
//!     })
//!     .sink("respond", Respond);
//! let running = flow.run()?;
//! requests.begin(&running)?;
//! let response = requests.call(Request::get("/ann")).wait().unwrap();
//! assert_eq!(response.body_text(), Some("Hello, ann"));
//! assert_eq!(requests.call(Request::get("/")).wait().unwrap().status_code(), 404);
//! # Ok::<(), millstream_flow::FlowError>(())
//! ```
//!
//! Each call is answered once: by the first reply; or by an error as soon as the flow has dropped it, its time is over, or
//! the flow has ended.
//!
//! On several ranks, each has a queue. An operator by key sends a call to the rank that owns its key: an encoded form with a
//! reference to the call, which stays in its place on the rank of the caller until that is released.

mod call;
mod chunks;
mod encoded;
mod error;
mod pending;
mod queue;
mod request;
mod response;
mod sink;
mod source;

pub use call::{Call, Reply};
pub use chunks::{Aborted, ChunkReader, ChunkSendError, Chunks};
pub use error::{CallError, whole_seconds};
pub use pending::Pending;
pub use queue::{Admitted, RequestSettings, Requests};
pub use request::Request;
pub use response::{Body, Response};
pub use sink::Respond;
pub use source::RequestSource;
