//! HTTP access to a node: a live page, the state and metrics of its flows, an overview, and metrics of the
//! program.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the live page |
//! | `/healthz` | `ok` as long as the node answers |
//! | `/readyz` | `ok`, or 503 with the reason while the node does not serve: [`Content::readiness`] |
//! | `/metrics` | [`Content::metrics`] and all metrics of the flows, in the text format of Prometheus |
//! | `/api/v1/overview` | [`Content::overview`] |
//! | `/api/v1/streams` | [`Content::streams`] |
//! | `/api/v1/groups` | [`Content::groups`] |
//! | `/api/v1/pool` | the slots of the process, their members, the objectives, and the changes of the level: a [`PoolView`](millstream_flow::PoolView) |
//! | `/api/v1/flows` | the names of the flows |
//! | `/api/v1/flows/<flow>/metrics?rank=<n>` | all metrics of one flow on a rank, else on the first one here, see below |
//! | `/state` | the flows with the names of their state elements: `[{"flow": …, "elements": […]}, …]` |
//! | `/state/<flow>` | the same of one flow: `{"flow": …, "elements": […]}` |
//! | `/state/<flow>/<element>/<key>` | the value of one key of a state element, see below |
//! | `/state/<flow>/<element>?keys=<key>&keys=<key>` | those of up to 1,000 keys that have a value: `[{"key": …, "value": …}, …]` |
//! | `/state/<flow>/<element>?prefix=<text>&limit=<n>` | up to `n` entries (100, at most 10,000), in the order of their keys |
//! | `/state/<flow>/<element>?from=<key>&to=<key>&limit=<n>` | the same from one key on and before another |
//! | `/state/<flow>/<element>/<key>?watch`, `/state/<flow>/<element>?prefix=<text>&watch`, `…?from=<key>&to=<key>&watch` | the committed changes of one key or of some as they come, as server-sent events, see below |
//! | `/state/<flow>/<element>?top=<n>&of=<field>` | the `n` entries with the greatest numbers, see below |
//! | `/state/<flow>/<element>?by=<element>&keys=<key>` | the entries whose keys are values of another element, see below |
//! | `/kv/<stream>/<key>` | the newest value of a key of a keyed stream, as it is stored: [`Content::keyed`]. PUT stores the body as the new value, DELETE removes the value, and PATCH adds the number in the body |
//! | `/kv/<stream>/<key>?watch`, `/kv/<stream>?prefix=<text>&from=<key>&to=<key>&watch` | the changes of the key or of the range as they are committed, as server-sent events, see below |
//! | `/q/<flow>/…` | the response of a serving flow to any request but CONNECT and TRACE: [`Content::requests`], see below |
//! | `/kv/<stream>?prefix=<text>&from=<key>&to=<key>&limit=<n>` | up to `n` keys (100, at most 10,000) that begin with the prefix, from `from` on and before `to`, see below |
//!
//! The metrics of a flow are an object with `flow`, `rank`, `ranks` (those that this process has), `is_finished`, `workers`, `workers_replaced`, `lost_wakeups`,
//! `stages` (a [`StageMetrics`](millstream_flow::StageMetrics) each, in the order of the graph),
//! `latency` (a [`Latency`](millstream_flow::Latency)), `lag_records` and `positions` (its progress in the streams
//! that it reads: a [`Position`](millstream_flow::Position) per partition), `late_events` (by state element, a
//! [`LateEvents`](millstream_flow::LateEvents) each), `late_sources` (those of them whose source is known: a
//! [`LateSource`](millstream_flow::LateSource) each), `waits` (which sources hold back event time, and why: a
//! [`Wait`](millstream_flow::Wait) each), `checkpoints` (a [`CheckpointCounts`](millstream_flow::CheckpointCounts),
//! or null if the flow takes none), `elements` (a [`StateElement`](millstream_flow::StateElement) each),
//! `watched_seconds` (how long this server has sampled the flow) and `throughput`: for every second of the last five
//! minutes `seconds`, when it ended on the scale of `watched_seconds`, and `items_per_second`, the items that each stage
//! read in it.
//!
//! `/state` reads all ranks of a flow, those in other processes, too; `rank=<n>` names one of them. If one does not answer
//! within 5 seconds, the answer is 503. The entries of an element with a
//! value for each key are in the order of the [canonical bytes](millstream_base::key) of the keys: numbers by size, texts by
//! their bytes. Prefixes are for keys that are strings. Other elements take `limit` and `keys` alone, and sort the entries of an answer by
//! the text of the key.
//!
//! `top` compares the numbers at `of`, a field of the values or the path to one (`total/price`), by default the values themselves;
//! of windows the `value`, and of [`Tops`](millstream_flow::Tops) the highest score. `n` is at most 10,000, and `prefix`, `from` and `to` may
//! bound the keys. Entries without a number there are left out; if no entry has one, the answer is 400.
//!
//! With `by=<element>`, `keys` or a range are of that element, and its values are keys, or lists of keys, of the element in the path, whose
//! entries are the answer: `[{"by": <secondary key>, "key": …, "value": …}, …]`.
//!
//! `at-least=<stream>/<partition>=<offset>,…`, on a page of one key, too, waits until the flow has all records before these offsets: with
//! `committed` in a complete checkpoint, else in the snapshot for a checkpoint, complete or not. The text is that of `Millstream-Position`. After 10 s the answer is
//! 504. It is 400 for partitions that the flow does not read, 409 for a flow without checkpoints, and 503 if the flow ends before, or 256 reads wait.
//!
//! Each answer has headers:
//!
//! | header | content |
//! |---|---|
//! | `Millstream-Committed` | `true` if all values of the answer are those of the last complete checkpoint, and else `false`, as always for elements without a value for each key |
//! | `Millstream-Position` | the next offsets of the flow's sources: `<stream>/<partition>=<offset>, …`, up to 100 partitions. Without `committed`, the last of the records before them may not be in the values yet |
//! | `Millstream-Watermark` | the flow's least watermark, in milliseconds since 1970; absent without event time |
//! | `Millstream-Checkpoint-Age` | the time since the last complete checkpoint was taken, in seconds; absent before the first one of the run |
//! | `Millstream-Next` | if there are more entries, beyond `limit` or about 2 MiB of each rank: the last key of the answer, percent-encoded. `from=` with it continues there |
//!
//! With `committed`, `/state` reads the last complete checkpoint, and the headers are as of that, too.
//!
//! `/kv/<stream>/<key>` has the type `application/json` if the value is JSON, `text/plain` if it is other UTF-8, and else
//! `application/octet-stream`; `ETag` is `"<partition>-<version>"`, and `Last-Modified` the record's time. With that `ETag` in `If-None-Match`, the answer is 304 without the value. `/kv/<stream>` is
//! an object: `entries`, each with `key`, `partition`, `version`, `timestamp` in milliseconds since 1970, and `value`, which
//! is JSON if the stored value is, or else a text; and `next`, the key to continue from, or null at the end. Bytes that are not
//! UTF-8 are in base64, in `key_base64`, `value_base64` or `next_base64`. Keys in these paths and queries may be any bytes.
//!
//! A write is answered when it is as durable as the stream's setting requires: with 204, with 201 after a PUT with
//! `If-None-Match: *`, and after PATCH with 200 and the new value. PUT and PATCH also get the `ETag` of the new
//! version. `If-Match` with tags or `*`, and `If-None-Match: *`, are conditions that the server checks together with
//! the write; if one does not hold, the answer is 412 with the `ETag` of the present version. An `ETag` does not contain the
//! id of the stream: it may match another value after the stream is deleted and created again. PATCH takes values that
//! are whole numbers of 64 bits as decimal text; an absent key counts as 0. A write that is not yet durable after 30 s
//! is answered with 503, and may still take effect.
//!
//! With `watch` the answer is a stream of [events](https://html.spec.whatwg.org/multipage/server-sent-events.html), as
//! `EventSource` of browsers reads them. The event `change` has the fields of an entry, and `deleted` in place of a value if
//! the key was deleted. `watch=snapshot` begins with the event `snapshot`, the keys that have a value, each as a `change`, and
//! the event `current`. The id of an event is a position: a client that comes back with it in `Last-Event-ID`, or in
//! `after`, misses no change. Where the node no longer has all changes, the event `reset` says why, and a snapshot follows.
//! The event `end` says why a watch ends: after 10 minutes in any case. A node has a bound of watches, and disconnects clients
//! that take no event for 30 s.
//!
//! Under `/state`, `watch` does the same with the changelog of the element: keys and values are as `/state` has them, and an entry of a window
//! is named by `entry`. The event `progress` says how far the flow was at a checkpoint whose changes were all sent: an object with `checkpoint`,
//! and with `position` and `watermark` as the headers have them. An element without a changelog gets 409.
//!
//! `/q/<flow>/<path>?<query>` hands a request to a serving flow: its method, path below `/q/<flow>`, query, headers without
//! `Authorization`, and body. The response is the flow's; the server sets the headers of the connection, and those that
//! forbid caches to store it. A body may have 1 MiB, and the response begins within 10 s, unless
//! [the flow's settings](millstream_flow::serving::RequestSettings) say otherwise. An answer without a response of the flow:
//!
//! | status | reason |
//! |---|---|
//! | 403 | a page of a web site makes the request that the flow's `origins` do not name |
//! | 404 | there is no such serving flow; the error names those that there are |
//! | 408 | the body does not arrive in time |
//! | 413 | the body is too large; if `Content-Length` says so, it is not read |
//! | 500 | the flow has dropped the request: an operator left it out, or failed for it |
//! | 503 | as many requests wait as the flow takes, or the request would miss the flow's objective (both with `Retry-After`); or the flow has not begun, has ended, or has failed. Requests that wait then get this answer, too |
//! | 504 | the flow has not answered in time. It does not get the request any more, if it still waits |
//!
//! A streamed response may take 10 minutes, with pauses of up to 30 s. If the flow ends it before it is whole, the connection breaks.
//! Pages of the sites in the flow's `origins` may read responses, and the server permits their methods and headers when
//! browsers ask (CORS); browsers send no stored logins with these requests.
//!
//! Names and keys in a path are percent-encoded UTF-8. An error is `{"error": "…"}`, which describes
//! the fault and the remedy. Paths other than those of keys and of serving flows answer only GET and HEAD.
//!
//! A [`Gate`] encrypts connections and decides which visitors may read which pages, write to which streams, and send requests to which flows; `/healthz` and `/readyz` answer every client.
//! Without a gate, clients do not log in, and the server refuses an address that other machines reach.
//!
//! So that no web site can read answers or write through a browser (DNS rebinding, forged requests), the server answers only
//! requests whose `Host` is an IP address, `localhost` or one of the [names](Options::hosts) that it was given, and whose `Origin`, if
//! there is one, is the server itself or, below `/q`, one that the flow allows; others get 403. So do writes whose `Sec-Fetch-Site` names another site.
//!
//! A client has bounds, each with a name in `server.rs`: connections in all and of one address, the size of a request,
//! the time for TLS, for a request and for a connection. All unsent answers share one bound, and so do all bodies of requests
//! (`body.rs`); beyond it, requests get 503.

mod addresses;
mod body;
mod bounds;
mod connection;
mod connection_time;
mod error;
mod gate;
mod guard;
mod history;
mod keyed;
mod kv;
mod memory;
mod others_first;
mod page;
mod pool;
mod prometheus;
mod query;
mod routes;
mod server;
mod shown;
mod state;
mod watch;
mod watches;

use std::sync::Arc;

use millstream_flow::Running;
use millstream_flow::serving::Requests;

pub use gate::{Admission, Gate, Visited, Visitor};
pub use keyed::{
    FoundPage, FoundPlace, KEY_READERS_MAX, KEY_WATCHERS_MAX, KEY_WRITERS_MAX, KeyChange,
    KeyChanged, KeyCondition, KeyEvent, KeyPage, KeyWatch, KeyWrite, KeyedError, KeyedFuture,
    KeyedHistory, KeyedStreams, KeyedValue, KeyedVersion, PastVersion, SecondaryKeys, WatchFrom,
};
pub use prometheus::{Metric, MetricKind, Sample, Value as MetricValue};
pub use server::{Options, Server, WATCHES_DEFAULT};

/// The content of a server. Its methods may block, since they run on separate threads, unless they say otherwise.
pub trait Content: Send + Sync + 'static {
    /// Returns the flows with their state elements. Flows of one name are the ranks of one flow, and `/state` reads all of
    /// them; of two on the same rank, the first one counts. Called on the network's thread, so it must return at once.
    fn flows(&self) -> Vec<Arc<Running>>;

    /// Returns the node's current state for the live page: an object with any of `name`, `flow`, `uptime_s`,
    /// `input_bytes`, `bytes`, `bytes_per_second`, `words`, `count`, `ingested_records`, `ingested_bytes`,
    /// `durable_records`, `records_per_second`, `last_records_per_second` (one for each of the last 60 seconds at most, the
    /// oldest first), `lag_records`, `events`, `counted`, `windows`, `stored_bytes`, `streams`, `partitions`, `groups` and
    /// `connections`. A server counts offsets in place of records: markers of transactions have some, too.
    fn overview(&self) -> serde_json::Value;

    /// Returns the metrics that belong to no flow.
    fn metrics(&self) -> Vec<Metric>;

    /// Returns the streams of the node; `None` if it has no page for them.
    fn streams(&self) -> Option<serde_json::Value> {
        None
    }

    /// Returns the groups of consumers; `None` if it has no page for them.
    fn groups(&self) -> Option<serde_json::Value> {
        None
    }

    /// Returns the keyed streams, to read and to write; `None` if it has no pages for them.
    fn keyed(&self) -> Option<Arc<dyn KeyedStreams>> {
        None
    }

    /// Returns the queues of the flows that take requests, for `/q`. Called on the network's thread, so it must return at once.
    fn requests(&self) -> Vec<Requests> {
        Vec::new()
    }

    /// Updates figures that need a history; the server calls it once a second.
    fn tick(&self) {}

    /// Checks whether the node serves now.
    ///
    /// # Errors
    /// The reason why it does not.
    fn readiness(&self) -> Result<(), String> {
        Ok(())
    }
}
