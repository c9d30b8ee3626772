//! The coordinator of transactions: it decides which producer may write under a producer id and epoch, which
//! partitions and groups take part in a transaction, and how the transaction ends in all of them.
//!
//! A state machine without I/O, clock, threads and randomness: the caller passes events and times to
//! [`Coordinator::handle`], [`Coordinator::report`] and [`Coordinator::tick`], and they return [`Action`]s: records to
//! append to the log, answers to requests, and markers to write.
//!
//! A transaction ends in two steps. First a record decides the outcome; once it is durable the coordinator answers the
//! producer, and tells partitions and groups. When all of them have reported that they have the outcome, a second
//! record lets the next transaction begin. After a crash between the two the coordinator tells them again, which does
//! no harm.
//!
//! Producers are of two kinds. An older one keeps its epoch until another producer takes its transactional id over,
//! and adds partitions to the transaction before it writes to them. A newer one (KIP-890) gets a new epoch with every
//! transaction, so that a late record of the one before is refused, and each write adds its partition. Each request
//! carries the kind of its producer.
//!
//! Around the state machine, `service` keeps its records in the log, answers connections and writes markers.
//!
//! Transactions behave as Apache Kafka's do, as its clients expect. [`config`] has the bounds that Kafka lacks.
//!
//! ```
//! use std::time::Duration;
//!
//! use millstream_base::{ProducerEpoch, ProducerId, Timestamp};
//! use millstream_broker::groups::{Moment, RequestId};
//! use millstream_broker::transactions::{
//!     Action, Answer, Config, Coordinator, InitProducerId, Producer, Request,
//! };
//!
//! let now = Moment { elapsed: Default::default(), timestamp: Timestamp(0) };
//! let mut coordinator = Coordinator::new(Config::default(), now);
//! let init = Request::InitProducerId(InitProducerId {
//!     transactional_id: Some("payments".into()),
//!     timeout: Duration::from_secs(60),
//!     two_phase: false,
//!     expected: None,
//!     knows_fencing: true,
//! });
//! let actions = coordinator.handle(now, RequestId(1), init);
//! let producer = Producer { id: ProducerId(0), epoch: ProducerEpoch(0) };
//! let answer = Action::Answer(RequestId(1), Answer::InitProducerId(Ok(producer)));
//! assert_eq!(actions.last(), Some(&answer));
//! ```

mod answer;
pub mod config;
mod coordinator;
mod end;
mod error;
mod list;
mod names;
mod open;
mod participants;
mod producer_ids;
mod producers;
mod progress;
mod record;
mod request;
pub(crate) mod service;
mod transaction;
mod turn;

pub use self::answer::*;
pub use self::config::Config;
pub use self::coordinator::Coordinator;
pub use self::error::TransactionError;
pub use self::names::*;
pub use self::request::*;
pub use self::turn::{Action, Ending, Report};
pub use crate::ledger::{Record, RecordError};
