//! The Rust client of Millstream, and of any broker that speaks Kafka's protocol.

mod admin;
mod client;
mod config;
mod connection;
mod consumer;
mod error;
mod handshake;
mod offsets;
mod partitioner;
mod producer;
mod tls;

pub use admin::{
    Acl, AclFilter, AclOperation, GroupDescription, GroupMember, ListedGroup, ObjectUpload,
    PatternType, Permission, ResourceType, User, UserCredential,
};
pub use client::{Client, Topic};
pub use config::{ClientConfig, Login};
pub use connection::{Connection, Pending};
pub use consumer::{Consumer, ConsumerConfig, Fetched, Reset};
pub use error::ClientError;
pub use offsets::{Isolation, Start, TopicPartition};
pub use producer::{Delivery, Producer, ProducerConfig, ProducerRecord, Stored};
pub use tls::Tls;

pub use millstream_record::{Compression, Header, Record, Scratch};
pub use millstream_wire::ResponseError;
pub use millstream_wire::native;
pub use millstream_wire::sasl::{Hash, Mechanism, UnknownMechanism};
