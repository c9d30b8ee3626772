//! The server: listeners, requests, consumer groups, security.
//!
//! A [`Server`] accepts connections and gives each a task, which reads requests and writes answers
//! in their order. A request makes its changes as soon as it is read, so the requests of a
//! connection take effect in their order, too; only waits, for disks and for other clients, run
//! concurrently.
//!
//! A topic of Kafka is a stream, and a partition of the topic a [`StreamPartition`](millstream_log::StreamPartition) of it.

mod access;
mod answer_memory;
mod broker;
mod buckets;
mod client;
mod config;
mod configs;
mod connection;
mod copied;
mod counters;
mod error;
mod fetch;
pub mod groups;
mod key_reads;
mod key_transactions;
mod ledger;
mod listener;
mod local;
mod memory;
mod native;
mod objectives;
mod pace;
mod partitions;
mod pattern;
mod peer;
mod pins;
mod push;
mod reply;
mod requests;
pub mod security;
mod server;
mod shares;
mod status;
mod telemetry;
mod topic_names;
pub mod transactions;
mod user_streams;
mod visitor;

pub use broker::Broker;
pub use config::BrokerConfig;
pub use configs::{LogLevel, LogLevels, ROOT};
pub use counters::RequestStatus;
pub use error::response_error;
pub use key_reads::{KeyReads, OLDER_READ_BYTES_MAX, Thread, Threads};
pub use key_transactions::{ChangeOutcome, KeyTransactions, OwnedChange, TogetherError};
pub use listener::{ListenerConfig, Protocol};
pub use local::LocalNetwork;
pub use requests::started_documentation;
pub use security::service::{SecurityError, set_password};
pub use security::{FetchError, KeySource, KeysUrl, SecurityConfig, TokenConfig, TokenKeysError};
pub use server::{Listening, Server, StartError};
pub use status::{GroupStatus, GroupTopic, Status};
pub use visitor::{Admission, Visitor, Wanted};

pub use millstream_pool::Objective;
