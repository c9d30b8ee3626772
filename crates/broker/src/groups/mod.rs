//! The coordinator of consumer groups: their members, the partitions that each member reads, and their committed
//! offsets.
//!
//! A state machine without I/O, clock, threads and randomness of its own: the caller passes events and times to
//! [`Coordinator::handle`] and [`Coordinator::tick`], and they return [`Action`]s: records to append to the log, and
//! answers to requests. A request that has to wait for other members to join, or for the leader's assignment, is
//! answered by a later call; the answer carries its [`RequestId`].
//!
//! Around the state machine, `service` keeps its records in the log, answers connections and watches deadlines.
//!
//! Groups behave as Apache Kafka's do, as its clients expect. [`config`] has the bounds that Kafka lacks.
//!
//! ```
//! use millstream_base::Timestamp;
//! use millstream_broker::groups::{
//!     Action, Answer, Config, Coordinator, ListGroups, Moment, Request, RequestId,
//! };
//!
//! let now = Moment { elapsed: Default::default(), timestamp: Timestamp(0) };
//! let mut coordinator = Coordinator::new(Config::default(), now);
//! let list = Request::ListGroups(ListGroups::default());
//! let actions = coordinator.handle(now, RequestId(1), list);
//! assert_eq!(actions, [Action::Answer(RequestId(1), Answer::ListGroups(Vec::new()))]);
//! ```

mod admin;
mod answer;
mod classic;
pub mod config;
mod consumer;
mod coordinator;
mod error;
mod group;
mod group_offsets;
mod names;
mod offsets;
mod record;
mod request;
mod restore;
pub(crate) mod service;
mod share;
mod streams;
mod timers;
mod topics;
mod turn;

pub use self::answer::*;
pub use self::config::{Config, GroupConfig};
pub use self::coordinator::Coordinator;
pub use self::error::GroupError;
pub use self::names::*;
pub use self::request::*;
pub use self::streams::{
    Copartition, Endpoint, EndpointPartitions, InternalTopic, StreamsStatus, Subtopology, Tasks,
    Topology,
};
pub use self::topics::{Sees, Topic, TopicAccess};
pub use self::turn::{Action, Creation, Moment};
pub use crate::ledger::{Record, RecordError};
