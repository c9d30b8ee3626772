//! The reasons to refuse a request.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use millstream_flow::serving::{CallError, whole_seconds};
use millstream_flow::{AskError, NotWatched, SearchError, VALUES_BYTES_MAX};
use serde_json::json;

use crate::bounds::{ENTRIES_MAX, KEYS_MAX};
use crate::gate::Visited;
use crate::keyed::KeyedError;
use crate::kv::tag_of;

/// The header that asks for a login with a password.
const BASIC: (HeaderName, &str) = (
    header::WWW_AUTHENTICATE,
    "Basic realm=\"millstream\", charset=\"UTF-8\"",
);

/// The header that asks for a login with a token.
const BEARER: (HeaderName, &str) = (header::WWW_AUTHENTICATE, "Bearer realm=\"millstream\"");

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(
        "there is no page at {0:?}: try /, /healthz, /readyz, /metrics, /api/v1/overview, \
         /api/v1/streams, /api/v1/groups, /api/v1/flows, \
         /api/v1/flows/<flow>/metrics, /state, /state/<flow>, /state/<flow>/<element>, /state/<flow>/<element>/<key>, \
         /kv/<stream>, /kv/<stream>/<key> or /q/<flow>"
    )]
    UnknownPath(String),
    #[error("unknown flow {0:?}: /api/v1/flows lists those that run")]
    UnknownFlow(String),
    #[error(
        "unknown element {element:?}: the flow {flow:?} has no state element of this name; /state/<flow> lists its elements"
    )]
    UnknownElement { flow: String, element: String },
    #[error(
        "unknown key {key:?}: the element {element:?} of the flow {flow:?} has no value for it at the moment; \
         /state/<flow>/<element> lists its keys"
    )]
    UnknownKey {
        flow: String,
        element: String,
        key: String,
    },
    #[error(
        "unknown key {key:?}: the stream {stream:?} has no value for it at the moment; /kv/<stream> lists its keys{}",
        passed_over(.misplaced)
    )]
    AbsentKey {
        stream: String,
        key: String,
        /// The records that look-ups have passed over, since another partition owns their keys.
        misplaced: u64,
    },
    #[error("the path {0:?} is malformed: the name of a stream must be percent-encoded UTF-8")]
    StreamName(String),
    #[error(
        "the query {0:?} is refused: it may be any of prefix=<text>, from=<key>, to=<key> and limit=<n>, a number from 1 \
         to {ENTRIES_MAX}, each once and percent-encoded"
    )]
    KeysQuery(String),
    #[error(
        "the query {0:?} is refused: beside by=<name> it may be key=<secondary key>, up to {KEYS_MAX} times, or any of prefix=<text>, \
         from=<secondary key> and to=<secondary key>, and limit=<n>, a number from 1 to {ENTRIES_MAX}, and page=<next of an earlier \
         answer>; each but key once, and percent-encoded"
    )]
    FindQuery(String),
    #[error(
        "the query {0:?} is refused: for a key it may be version=<n>, hold=<name>, or history with before=<n> and limit=<n>, a number from 1 to \
         {ENTRIES_MAX}, each once"
    )]
    KeyQuery(String),
    #[error(
        "the query {0:?} is refused: a watch may have watch or watch=snapshot, after=<position> beside watch, and without a key in \
         the path prefix=<text>, from=<key> and to=<key>, each once and percent-encoded"
    )]
    WatchQuery(String),
    #[error(
        "the position is refused: Last-Event-ID, or after in the query, must be the id of an event of an earlier watch, unchanged"
    )]
    WatchPosition,
    #[error("{0} watches are open, which is the most: try again later")]
    TooManyWatches(usize),
    #[error("too many watches begin at once, so this one had no turn: try again later")]
    BusyWatches,
    #[error(
        "a watch over HTTP may have at most {0} partitions: watch a key, or use the native protocol"
    )]
    WatchedPartitions(usize),
    #[error(transparent)]
    Keyed(#[from] KeyedError),
    #[error("the path is malformed: {0}; names and keys must be percent-encoded UTF-8")]
    Path(#[from] PathRejection),
    #[error(
        "the query {0:?} is refused: it may be keys=<key>, up to {KEYS_MAX} times, or prefix=<text>, or from=<key> and to=<key>, \
         with limit=<n>, a number from 1 to {ENTRIES_MAX}; with these by=<element>; in place of keys, limit and by top=<n>, a number \
         as for limit, with of=<field>; and committed, rank=<n> and at-least=<stream>/<partition>=<offset>,…; each but keys once, and \
         percent-encoded UTF-8"
    )]
    StateQuery(String),
    #[error(
        "the query {0:?} is refused: for one key it may be committed, rank=<n> and \
         at-least=<stream>/<partition>=<offset>,…, each once and percent-encoded UTF-8"
    )]
    StateKeyQuery(String),
    #[error(
        "the query {0:?} is refused: a watch of state may have watch or watch=snapshot, after=<position> beside watch, and without a \
         key in the path prefix=<text>, or from=<key> and to=<key>, each once and percent-encoded UTF-8; it has committed changes of \
         all ranks"
    )]
    StateWatchQuery(String),
    #[error("the element {element:?} of the flow {flow:?} cannot be watched: {}", not_watched(*.why))]
    NotWatched {
        flow: String,
        element: String,
        why: NotWatched,
    },
    #[error("the query {0:?} is refused: it may be rank=<n>")]
    RankQuery(String),
    #[error(
        "unknown rank {rank}: the flow {flow:?} does not run on it, or its metrics are at another process"
    )]
    UnknownRank { flow: String, rank: u32 },
    #[error(
        "the flow {flow:?} takes no checkpoints, so it has no committed state: leave out committed to read the present one"
    )]
    NoCheckpoints { flow: String },
    #[error(
        "the element {element:?} is readable only as it is now: only elements with a value for each key can be read as of the \
         last checkpoint; leave out committed"
    )]
    LiveOnly { element: String },
    #[error(
        "the keys of the element {element:?} have no order: only elements with a value for each key have ranges; use limit=<n> \
         or keys=<key>"
    )]
    Unordered { element: String },
    #[error("the key {key:?} does not fit the type of the keys of the element {element:?}")]
    KeyType { element: String, key: String },
    #[error(
        "the keys of the element {element:?} are not strings, so they have no prefixes; use from=<key> and to=<key>"
    )]
    Prefix { element: String },
    #[error(
        "several ranks have a share of the key {key:?} of the element {element:?}: add rank=<n> to read the share of one"
    )]
    Shares { element: String, key: String },
    #[error(
        "each rank may have a share of every key of the element {element:?}, so the greatest of all are unknown: add rank=<n> to \
         search the shares of one"
    )]
    SharesTop { element: String },
    #[error(
        "no value of the element {element:?} has a number there, which top compares: {misfit}; name a field that is a number by \
         of=<field>, or of=<field>/<field> within another"
    )]
    Numbers { element: String, misfit: String },
    #[error(
        "the values of these keys of the element {element:?} take more than {} MiB: ask for fewer", VALUES_BYTES_MAX >> 20
    )]
    Large { element: String },
    #[error("the element {element:?} has no answer to top: {error}")]
    Search { element: String, error: SearchError },
    #[error("unknown element {element:?} in by: the flow {flow:?} has the elements {}", .known.join(", "))]
    UnknownBy {
        flow: String,
        element: String,
        known: Vec<String>,
    },
    #[error(
        "the values of the element {by:?} are no keys of the element {element:?}: the value of {key:?} is {value}; they must be keys, or \
         lists of keys"
    )]
    KeysBy {
        by: String,
        element: String,
        key: String,
        value: String,
    },
    #[error(
        "the values of the element {by:?} name more than {ENTRIES_MAX} keys: ask for fewer of them by keys or limit"
    )]
    ManyKeysBy { by: String },
    #[error(
        "the flow {flow:?} takes no checkpoints, so it does not know which records have arrived in its state: leave out at-least"
    )]
    NoPositions { flow: String },
    #[error(
        "the flow does not read {wanted}, or its sources know no positions there; its last checkpoint is at {}", position(.known)
    )]
    UnknownPartitions { wanted: String, known: String },
    #[error(
        "the flow has not reached {wanted} within {} s: its last checkpoint is at {}; try again later", .waited.as_secs(), position(.reached)
    )]
    Behind {
        wanted: String,
        reached: String,
        waited: Duration,
    },
    #[error("the flow {flow:?} has ended before {wanted}: run it again")]
    EndedBefore { flow: String, wanted: String },
    #[error("{0} reads wait for positions of flows, which is the most: try again later")]
    ManyWaiting(usize),
    #[error("other reads of state have held all threads for {} s: try again later", .0.as_secs())]
    BusyReaders(Duration),
    #[error("{0}: try again later")]
    Rank(#[from] AskError),
    #[error("the ranks of the flow complete checkpoints faster than they can be read: try again")]
    Checkpoints,
    #[error("{method} is not allowed here: use one of {allowed}")]
    Method {
        method: String,
        allowed: &'static str,
    },
    #[error("the query {query:?} is refused: {}", may_be(*.may_live))]
    WriteQuery { query: String, may_live: bool },
    #[error(
        "the header {0} is refused: the server does not support it for writes, so leave it out"
    )]
    WriteHeader(HeaderName),
    #[error(
        "the header {0} is refused: it may be a list of tags in quotes as ETag has them, or *; with a write, If-None-Match may only be *, \
         and not beside If-Match"
    )]
    Tags(HeaderName),
    #[error(
        "the body must be a JSON array of changes, such as [{{\"key\": \"a\", \"value\": 1}}]: {0}"
    )]
    Changes(String),
    #[error("the body is too large: all changes may have {} together", millstream_base::ByteSize(*.0 as u64))]
    LargeChanges(usize),
    #[error("the body of a PATCH must be a whole number, such as 1 or -5, from -2^63 to 2^63-1")]
    Increment,
    #[error("the body of the request did not arrive within {} s, so nothing was stored", .0.as_secs())]
    SlowBody(Duration),
    #[error("the body of the request ended before its announced size, so nothing was stored")]
    TornBody,
    #[error("too many bytes of requests are under way: try again later")]
    BusyBodies,
    #[error(
        "the write was not durable within {} s, and may take effect all the same: read the key to learn whether it has", .0.as_secs()
    )]
    SlowWrite(Duration),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("unknown serving flow {flow:?}: {}", known_flows(.known))]
    UnknownServingFlow {
        flow: String,
        /// The serving flows that there are.
        known: Vec<String>,
    },
    #[error("the path or the query is malformed: both must be percent-encoded UTF-8")]
    QueryText,
    #[error(
        "the flow {flow:?} answers with a status or a header that HTTP does not have: see the log of the node"
    )]
    Response { flow: String },
    #[error(
        "the Host header of this request has an unknown name: this server accepts an IP address, localhost and the names of \
         --http-hosts; open it by its address, such as http://127.0.0.1:8080/"
    )]
    Host,
    #[error(
        "another site makes this request, by its header Origin or Sec-Fetch-Site: this server answers only its own pages"
    )]
    Origin,
    #[error(
        "log in with the name and the password of a user, by HTTP's scheme Basic{}, or with a certificate",
        or_token(.takes_tokens)
    )]
    LogIn { takes_tokens: bool },
    #[error("this user may not {}: an access rule must allow {}", act(.0), right(.0))]
    Denied(Visited),
    #[error("the node is not ready: {0}")]
    NotReady(String),
    #[error("too many bytes of answers wait to be sent: try again later")]
    Busy,
    /// The sign to a reader that does not wait that it has to read on another thread. No client gets it.
    #[error("the answer has to wait")]
    WouldWait,
    #[error("reading the content failed: see the log of the node, and report it as a bug")]
    Panicked,
}

fn not_watched(why: NotWatched) -> &'static str {
    match why {
        NotWatched::NoCheckpoints => {
            "the flow takes no checkpoints, so its changes are stored nowhere; give it a store of checkpoints in a data directory or on \
             a server"
        }
        NotWatched::NoStream => {
            "the flow's checkpoints are files in a directory, and watches read changes in a stream; keep the checkpoints in a data \
             directory or on a server"
        }
        NotWatched::SavedWhole => {
            "each checkpoint has it whole, so there is no changelog of it; read it from time to time, or keep the values in an element by \
             key, such as Values"
        }
        NotWatched::Partial => {
            "the instances of an operator have shares of its values, and a change of a share is none of a value; read it from time to \
             time, or merge the shares into an element by key"
        }
    }
}

fn act(visited: &Visited) -> &'static str {
    match visited {
        Visited::Node | Visited::State { .. } | Visited::Read(_) => "read",
        Visited::Write(_) => "write",
        Visited::Query(_) => "send requests to this flow",
    }
}

/// The right to do so.
fn right(visited: &Visited) -> String {
    match visited {
        Visited::Node => "Describe on the cluster".to_owned(),
        Visited::State { flow, element } => {
            right(&Visited::Read(format!("{flow}.state.{element}")))
        }
        Visited::Read(stream) => format!("Read on the stream {stream:?}"),
        Visited::Write(stream) => format!("Write on the stream {stream:?}"),
        Visited::Query(flow) => right(&Visited::Read(format!("{flow}.q"))),
    }
}

fn known_flows(known: &[String]) -> String {
    match known {
        [] => "no flow of this node takes requests".to_owned(),
        known => format!("those that take requests are {}", known.join(", ")),
    }
}

fn position(offsets: &str) -> &str {
    match offsets {
        "" => "no position",
        offsets => offsets,
    }
}

/// The queries that a write may have.
fn may_be(may_live: bool) -> &'static str {
    match may_live {
        true => {
            "it may be ttl_ms=<n>, how many milliseconds the new value lives, from 1 to 2^63-1, and k.<name>=<secondary key>, \
             percent-encoded"
        }
        false => "a deletion has none",
    }
}

fn passed_over(misplaced: &u64) -> String {
    match misplaced {
        0 => String::new(),
        records => format!(
            "; {records} of its records are in partitions that do not own their keys, so they are not found: producers that use \
             librdkafka must set partitioner=murmur2_random"
        ),
    }
}

fn or_token(takes_tokens: &bool) -> &'static str {
    match takes_tokens {
        true => ", with a token, by the scheme Bearer",
        false => "",
    }
}

impl RequestError {
    fn status(&self) -> StatusCode {
        match self {
            RequestError::UnknownPath(_)
            | RequestError::UnknownFlow(_)
            | RequestError::UnknownServingFlow { .. }
            | RequestError::UnknownElement { .. }
            | RequestError::UnknownBy { .. }
            | RequestError::UnknownKey { .. }
            | RequestError::UnknownRank { .. }
            | RequestError::AbsentKey { .. }
            | RequestError::Keyed(KeyedError::UnknownStream(_) | KeyedError::UnknownHold(_)) => {
                StatusCode::NOT_FOUND
            }
            RequestError::Path(_)
            | RequestError::StateQuery(_)
            | RequestError::StateKeyQuery(_)
            | RequestError::StateWatchQuery(_)
            | RequestError::RankQuery(_)
            | RequestError::KeyType { .. }
            | RequestError::Prefix { .. }
            | RequestError::Numbers { .. }
            | RequestError::KeysBy { .. }
            | RequestError::ManyKeysBy { .. }
            | RequestError::UnknownPartitions { .. }
            | RequestError::StreamName(_)
            | RequestError::KeysQuery(_)
            | RequestError::FindQuery(_)
            | RequestError::Keyed(KeyedError::Secondary(_))
            | RequestError::KeyQuery(_)
            | RequestError::WatchQuery(_)
            | RequestError::WatchPosition
            | RequestError::WatchedPartitions(_)
            | RequestError::WriteQuery { .. }
            | RequestError::Tags(_)
            | RequestError::Increment
            | RequestError::Changes(_)
            | RequestError::QueryText
            | RequestError::Large { .. }
            | RequestError::Search {
                error: SearchError::Large,
                ..
            }
            | RequestError::TornBody => StatusCode::BAD_REQUEST,
            RequestError::NoCheckpoints { .. }
            | RequestError::NoPositions { .. }
            | RequestError::LiveOnly { .. }
            | RequestError::NotWatched { .. }
            | RequestError::Unordered { .. }
            | RequestError::Shares { .. }
            | RequestError::SharesTop { .. }
            | RequestError::Search {
                error: SearchError::ManyKeys,
                ..
            }
            | RequestError::Keyed(KeyedError::NotKeyed(_) | KeyedError::NotChangeable(_)) => {
                StatusCode::CONFLICT
            }
            RequestError::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            RequestError::Keyed(KeyedError::MadeAgain(_) | KeyedError::NotKept(_)) => {
                StatusCode::GONE
            }
            RequestError::Host | RequestError::Origin | RequestError::Denied(_) => {
                StatusCode::FORBIDDEN
            }
            RequestError::LogIn { .. } => StatusCode::UNAUTHORIZED,
            RequestError::NotReady(_)
            | RequestError::Busy
            | RequestError::WouldWait
            | RequestError::TooManyWatches(_)
            | RequestError::BusyWatches
            | RequestError::ManyWaiting(_)
            | RequestError::BusyReaders(_)
            | RequestError::EndedBefore { .. }
            | RequestError::Checkpoints
            | RequestError::Search {
                error: SearchError::Slow | SearchError::Checkpoints,
                ..
            }
            | RequestError::Rank(
                AskError::Busy { .. } | AskError::Silent { .. } | AskError::Ended(_),
            )
            | RequestError::BusyBodies
            | RequestError::SlowWrite(_)
            | RequestError::Call(
                CallError::Full { .. }
                | CallError::Overloaded { .. }
                | CallError::NotBegun { .. }
                | CallError::Ended { .. }
                | CallError::Failed { .. },
            )
            | RequestError::Keyed(KeyedError::Busy(_)) => StatusCode::SERVICE_UNAVAILABLE,
            RequestError::Call(CallError::Late { .. }) | RequestError::Behind { .. } => {
                StatusCode::GATEWAY_TIMEOUT
            }
            RequestError::Panicked
            | RequestError::Response { .. }
            | RequestError::Call(CallError::Dropped { .. })
            | RequestError::Rank(AskError::Failed { .. })
            | RequestError::Keyed(KeyedError::Failed(_)) => StatusCode::INTERNAL_SERVER_ERROR,
            RequestError::SlowBody(_) => StatusCode::REQUEST_TIMEOUT,
            RequestError::Keyed(KeyedError::OtherVersion { .. }) => StatusCode::PRECONDITION_FAILED,
            RequestError::WriteHeader(_) => StatusCode::NOT_IMPLEMENTED,
            RequestError::Keyed(KeyedError::TooLarge { .. } | KeyedError::LongKey { .. })
            | RequestError::Call(CallError::TooLarge { .. })
            | RequestError::LargeChanges(_) => StatusCode::PAYLOAD_TOO_LARGE,
            RequestError::Keyed(KeyedError::NotTogether { why, .. }) => {
                RequestError::Keyed((**why).clone()).status()
            }
            RequestError::Keyed(KeyedError::DiskFull(_)) => StatusCode::INSUFFICIENT_STORAGE,
        }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.to_string() }));
        let mut response = (self.status(), body).into_response();
        let headers = match self {
            RequestError::Method { allowed, .. } => &[(header::ALLOW, allowed)][..],
            RequestError::LogIn { takes_tokens: true } => &[BASIC, BEARER],
            // The rest of the body may still come.
            RequestError::SlowBody(_) => &[(header::CONNECTION, "close")],
            RequestError::LogIn { .. } => &[BASIC],
            RequestError::NotReady(_)
            | RequestError::Busy
            | RequestError::TooManyWatches(_)
            | RequestError::BusyWatches
            | RequestError::ManyWaiting(_)
            | RequestError::BusyReaders(_)
            | RequestError::Behind { .. }
            | RequestError::Checkpoints
            | RequestError::Rank(AskError::Busy { .. } | AskError::Silent { .. })
            | RequestError::BusyBodies
            | RequestError::Call(CallError::Full { .. } | CallError::NotBegun { .. })
            | RequestError::Keyed(KeyedError::Busy(_)) => &[(header::RETRY_AFTER, "1")],
            _ => &[],
        };
        if let RequestError::Call(CallError::Overloaded { retry_after, .. }) = self {
            let seconds = HeaderValue::from(whole_seconds(&retry_after));
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if let RequestError::Keyed(KeyedError::OtherVersion {
            newest: Some(newest),
        }) = self
        {
            let tag = HeaderValue::try_from(tag_of(newest));
            response
                .headers_mut()
                .extend(tag.map(|tag| (header::ETAG, tag)));
        }
        for (name, value) in headers {
            let value = HeaderValue::from_static(value);
            response.headers_mut().append(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_request_says_when_it_may_come_again() {
        let refused = CallError::Overloaded {
            flow: "serve".to_owned(),
            retry_after: Duration::from_millis(1_200),
        };
        let response = RequestError::Call(refused).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
    }
}
