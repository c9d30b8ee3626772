//! Checkpoints: consistent snapshots of a flow over all its ranks, from which a later run resumes.
//!
//! - A snapshot is taken when all that the sources gave has arrived and no stage has anything left to emit.
//! - Each rank stores its own shard. In a store with records, a checkpoint is complete when rank 0 has stored the record
//!   that names the shards of all ranks; in another one, when these are stored. A run resumes only from a complete one.
//! - Sinks commit the results of a checkpoint after it is complete, and not before.
//!
//! This folder does not know the computation of stages: it holds them, asks whether they are at rest, and saves them.

pub mod changelog;
pub mod completeness;
pub mod coordinator;
pub mod counts;
pub mod decision_signal;
pub mod decisions;
pub mod ending;
pub mod logged_element;
pub mod pace;
pub mod participants;
pub mod passed_time;
pub mod record;
pub mod record_writer;
pub mod shard;
pub mod shard_writer;
pub mod shards;
pub mod snapshot;
pub mod store;
pub mod trail;
pub mod write_error;
pub mod writer_bell;
