//! The Rust client of Millstream, and of any broker that speaks Kafka's protocol.
//!
//! A [`Client`] knows the servers of a cluster. A [`Producer`] sends records to them, a [`Consumer`] reads them; the
//! methods of the client administer streams, objects, groups, users and access rules. The client administers streams by
//! native requests, or by Kafka's if a broker does not know these; only Millstream has objects.
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use millstream_client::{
//!     Client, ClientConfig, Consumer, ConsumerConfig, Producer, ProducerConfig, ProducerRecord, Decompressor,
//!     Start, TopicPartition,
//! };
//!
//! # use std::sync::Arc;
//! # use millstream_base::{ByteSize, SystemRandom, TcpNetwork};
//! # use millstream_broker::{BrokerConfig, Server};
//! # use millstream_log::{Log, LogConfig};
//! # let dir = tempfile::tempdir()?;
//! # let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20)))?;
//! # let config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
//! # let server = Server::start(&TcpNetwork, config, log.clone(), Arc::clone(log.clock()), Arc::new(SystemRandom))?;
//! # let address = server.local_address().to_string();
//! # log.create_stream("greetings", Default::default())?;
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let client = Client::new(ClientConfig::new(address));
//! let producer = Producer::new(&client, ProducerConfig::default());
//! for value in ["hello", "world"] {
//!     let record = ProducerRecord {
//!         topic: "greetings",
//!         value: Some(value.as_bytes()),
//!         ..ProducerRecord::default()
//!     };
//!     producer.send(record).await?;
//! }
//! producer.flush().await?;
//!
//! let place = TopicPartition { topic: "greetings".into(), partition: 0 };
//! let places = [(place, Start::Earliest)];
//! let mut consumer = Consumer::assigned(&client, ConsumerConfig::default(), &places).await?;
//! let mut values = Vec::new();
//! while values.len() < 2 {
//!     consumer.next().await?.each(&mut Decompressor::default(), |record| {
//!         values.push(record.value.unwrap_or_default().to_vec());
//!         ControlFlow::Continue(())
//!     })?;
//! }
//! assert_eq!(values, [b"hello", b"world"]);
//! # Ok::<(), millstream_client::ClientError>(())
//! # })?;
//! # drop(server);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admin;
mod client;
mod config;
mod connection;
mod consumer;
mod error;
mod handshake;
mod keyed;
mod local;
mod offsets;
mod partitioner;
mod producer;
mod push;
mod reason;
mod tls;
mod transaction;

pub use admin::{
    Acl, AclFilter, AclOperation, Disk, GroupDescription, GroupMember, GroupOffsets, ListedGroup,
    ObjectUpload, PatternType, Permission, Quota, QuotaEntity, QuotaKind, ResourceType, Setting,
    SettingsOwner, ShareProgress, TransactionDescription, User, UserCredential,
};
pub use client::{Client, Topic};
pub use config::{ClientConfig, Login, TokenSource};
pub use connection::{Connection, Pending};
pub use consumer::{
    Consumer, ConsumerConfig, DeliveryMode, DeliveryPath, Fetched, OnDamage, Reset, SkippedRecords,
};
pub use error::ClientError;
pub use keyed::{
    ChangedKey, Expected, FoundKey, Hold, KeyChange, KeyEntry, KeyHistory, KeyRecord, KeyScan,
    KeyVersion, KeyWatch, KeyedStream, NewValue, PastVersion, SecondaryScan, StoredVersion,
    WatchEvent, WatchFrom, WatchedChange,
};
pub use offsets::{Isolation, Start, TopicPartition};
pub use partitioner::Turn;
pub use producer::{
    Delivery, Producer, ProducerConfig, ProducerRecord, Stored, TransactionConfig,
    TransactionalProducer,
};
pub use push::{LocalConfig, LocalSource, LocalSubscriber, Pushed};
pub use tls::Tls;

pub use millstream_base::{
    KeyRange, NoWatchPositions, WatchPosition, WatchPositions, partition_of_key,
};
pub use millstream_record::{Compression, Decompressor, Filter, FilterError, Header, Record};
pub use millstream_wire::native;
pub use millstream_wire::sasl::{Hash, Mechanism, UnknownMechanism};
pub use millstream_wire::{ResponseError, StrBytes};
pub use transaction::TransactionIdentity;
