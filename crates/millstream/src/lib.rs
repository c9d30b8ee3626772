//! Millstream: ingests streams of records, stores them, runs dataflows next to the data, and serves the results.
//!
//! An application opens a [`Node`], and runs a [`Flow`] over the node's topics. Flows are the same over a data directory
//! that the process opens itself and over a server:
//!
//! ```
//! use millstream::{Flow, Node, Timestamp, out_of_order, secs, tumbling};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, Clone, Serialize, Deserialize)]
//! struct Order {
//!     user: String,
//!     price: u64,
//!     time: Timestamp,
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! let node = Node::embedded(dir.path())?; // or Node::connect("localhost:9092")?
//! let orders = node.topic("orders").json::<Order>().create()?;
//! let order = |user: &str, price, time| Order { user: user.to_owned(), price, time: Timestamp(time) };
//! orders.send([order("ada", 3, 1_000), order("bob", 5, 2_000), order("ada", 4, 3_000)])?;
//!
//! Flow::new("totals")
//!     .read(orders.until_now()) // without it, the flow waits for further orders
//!     .event_time(|order| order.time, out_of_order(secs(5)))
//!     .key_by(|order| order.user.clone())
//!     .window(tumbling(secs(10)))
//!     .sum(|order| order.price)
//!     .serve_as("totals")
//!     .write(node.topic("totals").json())
//!     .run()?;
//! # Ok::<(), millstream::Error>(())
//! ```
//!
//! The crates below it are the parts: [`flow`] is the engine, [`connect`] joins it with streams, [`log`] is the storage
//! of the process, [`client`] the client of a server, [`broker`] serves Kafka's clients, [`serve`] is HTTP.

mod analytics_end;
mod app;
mod changes;
mod codec;
mod elements;
mod enrichment;
mod error;
mod event;
mod flow_builder;
mod job;
mod joins;
mod keyed;
mod listen;
mod logged_letters;
mod node;
mod other_windows;
mod process;
mod running;
mod serving;
mod stream;
mod time;
mod topic;
mod topic_joins;

pub use app::{App, main, main_with};
pub use changes::rows::KeyedRows;
pub use codec::{Codec, Encode, Json, Postcard, Raw, Text};
pub use error::Error;
pub use event::Event;
pub use flow_builder::Flow;
pub use job::{Job, RunningJob};
pub use joins::{Connected, RowJoin};
pub use keyed::{Aggregated, Keyed, KeyedState, Windowed};
pub use node::Node;
pub use running::RunningFlow;
pub use stream::{Pipeline, Stream};
pub use time::{millis, out_of_order, secs, session, sliding, tumbling};
pub use topic::Topic;

pub use millstream_base::Timestamp;
pub use millstream_flow::changes::{RowChange, Within};
pub use millstream_flow::serving::{Call, Reply, Request, RequestSettings, Response};
pub use millstream_flow::{CountWindow, Objective};

pub use millstream_base as base;
pub use millstream_broker as broker;
pub use millstream_client as client;
pub use millstream_connect as connect;
pub use millstream_flow as flow;
pub use millstream_log as log;
pub use millstream_record as record;
pub use millstream_serve as serve;
