//! Connects storage and dataflow: streams as sources and sinks of flows.
//!
//! ```
//! use millstream_base::text::is_white_space;
//! use millstream_base::{ProducerId, Timestamp};
//! use millstream_connect::{StreamProducer, StreamSource};
//! use millstream_flow::{Counts, Emit, Flow};
//! use millstream_log::{Log, LogConfig, StreamConfig};
//!
//! let dir = tempfile::tempdir()?;
//! let log = Log::open(LogConfig::new(dir.path()))?;
//! let lines = log.create_stream("lines", StreamConfig::default())?;
//!
//! // A flow counts the words of the stream, while a producer appends to it.
//! let source = StreamSource::new(&lines);
//! let ending = source.ending();
//! let flow = Flow::new("words");
//! let counts = flow.partial::<Counts>("counts");
//! flow.sources("lines", source.split(2))
//!     .each(|record, emit: &mut Emit<[u8]>| {
//!         let line = record.value.unwrap_or_default();
//!         line.split(is_white_space).for_each(emit);
//!         Ok(())
//!     })
//!     .fold_local(&counts, |counts, word| counts.add(word, 1));
//! let running = flow.run()?;
//!
//! let mut producer = StreamProducer::new(&lines, ProducerId::NONE)?;
//! producer.push(Timestamp(0), None, Some(b"to be or not to be"), &[])?;
//! producer.flush()?;
//!
//! ending.end_at_durable_head();
//! running.join()?;
//! assert_eq!(counts.merged().top(2), [(b"be".as_slice(), 2), (b"to", 2)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod any_source;
mod checkpoints;
mod dead_letters;
mod flow_group;
mod flow_name;
mod flow_transactions;
mod held_positions;
mod held_records;
mod key_join;
mod keys;
mod letter;
mod network;
mod outage;
mod producer;
mod saved_positions;
mod server;
mod server_streams;
mod sink;
mod source;
mod source_error;

pub use any_source::{AnyRecords, AnySource};
pub use checkpoints::{
    ChangelogError, CheckpointDir, CheckpointDirError, LogCheckpoints, SHARD_BYTES_MAX,
    ServerCheckpoints,
};
pub use dead_letters::DeadLetterStream;
pub use flow_group::FlowGroup;
pub use flow_name::{BadFlowName, check_flow_name};
pub use flow_transactions::FlowTransactionId;
pub use key_join::{JOINED_ROWS_MAX, JoinInput, JoinedRow, KeyJoin, KeyJoinSource};
pub use keys::any::{AnyKeys, KeyPage, Newest};
pub use keys::log::LogKeys;
pub use keys::server::ServerKeys;
pub use letter::{DEAD_LETTERS_SUFFIX, StoredLetter};
pub use network::Network;
pub use producer::{CHUNK_BYTES, IN_FLIGHT_BYTES_MAX, ProducerTotals, StreamProducer};
pub use server::{ServerEnd, ServerRecords, ServerSource};
pub use server_streams::stream_or_create;
pub use sink::{EncodedRecord, RecordSink, ServerSink, ServerSinkError, SinkError, StreamSink};
pub use source::{Ending, StoredChunks, StreamSource};
pub use source_error::{ReadError, SourceError};
