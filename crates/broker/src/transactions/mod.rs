//! The coordinator of transactions: who may write under which producer id and epoch, what takes part in a
//! transaction, and how it ends everywhere.
//!
//! A state machine without I/O, clock, threads and randomness: [`Coordinator::handle`],
//! [`Coordinator::report`] and [`Coordinator::tick`] are told what happens and when, and return [`Action`]s:
//! what to append to the log, whom to answer what, and where to write markers.
//!
//! A transaction ends in two steps. First a record makes the outcome certain; when it is durable the producer
//! is answered, and partitions and groups are told. When all of them have reported that they have it, a second
//! record lets the next transaction begin. After a crash between the two they are told again, which does no harm.
//!
//! Producers are of two kinds. Older ones keep their epoch until somebody takes their transactional id over,
//! and say which partitions take part before they write to them. Newer ones (KIP-890) get a new epoch with
//! every transaction, so that nothing late can come in from the one before, and partitions take part as they
//! are written to. A request says what it is of.
//!
//! Around the state machine, `service` keeps its records in the log, answers connections and writes markers.
//!
//! Transactions behave as Apache Kafka's do, so that its clients find what they expect. Where this module knows a
//! bound that Kafka has not, it is in [`config`].
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
