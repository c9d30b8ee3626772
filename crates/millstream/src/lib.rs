//! Millstream: ingests streams of records, stores them, runs dataflows next to the data, and serves the results.
//!
//! An embedding program runs log and flows in its own process:
//!
//! ```
//! use millstream::base::{ProducerId, Timestamp};
//! use millstream::connect::{StreamProducer, StreamSource};
//! use millstream::flow::{Emit, Flow};
//! use millstream::log::{Log, LogConfig, StreamConfig};
//!
//! let dir = tempfile::tempdir()?;
//! let log = Log::open(LogConfig::new(dir.path()))?;
//! let lines = log.create_stream("lines", StreamConfig::default())?;
//! let mut producer = StreamProducer::new(&lines, ProducerId::NONE)?;
//! for line in ["one", "two", "three"] {
//!     producer.push(Timestamp(0), None, Some(line.as_bytes()), &[])?;
//! }
//! producer.flush()?;
//!
//! let flow = Flow::new("sizes");
//! let bytes = flow.partial::<u64>("bytes");
//! flow.source("lines", StreamSource::bounded(&lines))
//!     .each(|record, emit: &mut Emit<u64>| {
//!         emit(&(record.value.map_or(0, <[u8]>::len) as u64));
//!         Ok(())
//!     })
//!     .fold_local(&bytes, |bytes, value_bytes| *bytes += value_bytes);
//! flow.run()?.join()?;
//! assert_eq!(bytes.merged(), 11);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use millstream_base as base;
pub use millstream_connect as connect;
pub use millstream_flow as flow;
pub use millstream_log as log;
pub use millstream_record as record;
