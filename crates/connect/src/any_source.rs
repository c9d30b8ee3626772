//! A stream as the source of a flow: in the process or on a server.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use millstream_flow::{
    BoxError, Origin, Output, PartitionId, Parts, Positions, Source, SourcePartitions, SourceStatus,
};
use millstream_record::Record;

use crate::letter::show_record;
use crate::server::{ServerRecords, ServerSource};
use crate::source::{StoredChunks, StreamSource};

/// Reads a stream of a log in the process, or of a server: one type for flows that run in both places.
pub struct AnySource {
    reading: Reading,
}

enum Reading {
    Log {
        source: StreamSource,
        given: Output<StoredChunks>,
    },
    Server {
        source: Box<ServerSource>,
        given: Output<ServerRecords>,
    },
}

/// Records of one partition: the items of an [`AnySource`].
#[derive(Debug)]
pub enum AnyRecords {
    /// Chunks of a log in the process.
    Stored(StoredChunks),
    /// Records of a server.
    Server(ServerRecords),
}

impl From<StreamSource> for AnySource {
    fn from(source: StreamSource) -> AnySource {
        let given = Output::default();
        AnySource {
            reading: Reading::Log { source, given },
        }
    }
}

impl From<ServerSource> for AnySource {
    fn from(source: ServerSource) -> AnySource {
        let (source, given) = (Box::new(source), Output::default());
        AnySource {
            reading: Reading::Server { source, given },
        }
    }
}

impl fmt::Debug for AnySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.reading {
            Reading::Log { .. } => "log",
            Reading::Server { .. } => "server",
        };
        f.debug_tuple("AnySource").field(&place).finish()
    }
}

impl AnyRecords {
    /// Returns the number of their partition.
    pub(crate) fn partition(&self) -> u32 {
        match self {
            AnyRecords::Stored(chunks) => chunks.partition(),
            // Partitions count from zero.
            AnyRecords::Server(records) => records.partition().unsigned_abs(),
        }
    }
}

/// Calls a method of the source of either kind.
macro_rules! each {
    ($any:expr, $source:ident => $call:expr) => {
        match $any {
            Reading::Log {
                source: $source, ..
            } => $call,
            Reading::Server {
                source: $source, ..
            } => $call,
        }
    };
}

impl Source for AnySource {
    type Item = AnyRecords;

    fn poll(
        &mut self,
        out: &mut Output<AnyRecords>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        match &mut self.reading {
            Reading::Log { source, given } => {
                let status = source.poll(given, budget, waker)?;
                out.extend(given.drain().map(AnyRecords::Stored));
                Ok(status)
            }
            Reading::Server { source, given } => {
                let status = source.poll(given, budget, waker)?;
                out.extend(given.drain().map(AnyRecords::Server));
                Ok(status)
            }
        }
    }

    fn partitions(&self) -> SourcePartitions<'_, AnyRecords> {
        let partitions = match &self.reading {
            Reading::Log { source, .. } => source.known_partitions(),
            Reading::Server { source, .. } => source.known_partitions(),
        };
        SourcePartitions::Many {
            partition_of: |records| PartitionId(records.partition().into()),
            partitions,
        }
    }

    fn records_of(&self, item: &AnyRecords) -> u64 {
        match (&self.reading, item) {
            (Reading::Log { source, .. }, AnyRecords::Stored(chunks)) => source.records_of(chunks),
            (Reading::Server { source, .. }, AnyRecords::Server(records)) => {
                source.records_of(records)
            }
            // An item of another source.
            _ => 0,
        }
    }

    fn positions(&self) -> Option<Arc<dyn Positions>> {
        each!(&self.reading, source => source.positions())
    }

    fn wants_commits(&self) -> bool {
        each!(&self.reading, source => source.wants_commits())
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        each!(&mut self.reading, source => source.save())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        each!(&mut self.reading, source => source.restore(saved))
    }

    fn shares_position(&self) -> bool {
        each!(&self.reading, source => source.shares_position())
    }

    fn close(&mut self) {
        each!(&mut self.reading, source => source.close());
    }

    fn commit(&mut self) -> Result<(), BoxError> {
        each!(&mut self.reading, source => source.commit())
    }
}

impl Parts for AnyRecords {
    type Part<'a> = Record<'a>;

    #[inline]
    fn for_each_part(&self, visit: impl FnMut(&Record<'_>)) {
        match self {
            AnyRecords::Stored(chunks) => chunks.for_each_part(visit),
            AnyRecords::Server(records) => records.for_each_part(visit),
        }
    }

    fn origin(&self, record: &Record<'_>) -> Option<Origin> {
        match self {
            AnyRecords::Stored(chunks) => chunks.origin(record),
            AnyRecords::Server(records) => records.origin(record),
        }
    }

    fn show(record: &Record<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_record(record, f)
    }

    fn fault(&self) -> Option<BoxError> {
        match self {
            AnyRecords::Stored(chunks) => chunks.fault(),
            AnyRecords::Server(records) => records.fault(),
        }
    }
}
