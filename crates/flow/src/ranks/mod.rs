//! The exchange between ranks: items, watermarks and barriers that leave this rank or arrive from another one.
//!
//! - Every rank runs the same graph. A key has one owner, which all ranks compute alike.
//! - A barrier lies between the items before a checkpoint and those behind it, on each channel.
//!
//! This folder does not know which operators run, nor how messages travel: that is the crate `millstream-exchange`.

pub mod asking;
pub mod channel;
pub mod exchange;
pub mod keyed_item;
pub mod message;
pub mod outbox;
pub mod outlets;
pub mod owners;
pub mod plain;
pub mod remote;
pub mod remote_input;
pub mod to_owner;
pub mod to_rank;
pub mod to_ranks;
