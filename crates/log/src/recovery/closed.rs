//! Groups that recovery has closed, and the runs of the journal that the replay has put into memory.

use std::sync::Arc;

use millstream_base::Position;
use millstream_base::disk::Access;
use uuid::Uuid;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::end::GroupEnd;
use crate::ids::{Generation, GroupName};
use crate::index::entry::IndexEntry;
use crate::index::sparse::SparseIndex;
use crate::memory::buffer::{Buffer, BufferWriter};
use crate::recovery::scan::open;

pub struct ClosedGroup {
    pub name: GroupName,
    pub end: GroupEnd,
    pub index_len: u64,
    /// Index entries that are not in the index yet: entries of a group that the replay closed.
    pub entries: Vec<IndexEntry>,
    /// Segment starts; empty when they are not loaded.
    pub segments: Vec<Position>,
    /// Its index in memory; `None` when it is not loaded.
    pub sparse_index: Option<SparseIndex>,
    pub replayed: Replayed,
    pub damage: Option<LogError>,
    /// The identity of the stream that the file's head names, if it has one.
    pub identity: Option<Uuid>,
}

impl ClosedGroup {
    pub fn stored(name: GroupName, end: GroupEnd, identity: Option<Uuid>) -> ClosedGroup {
        ClosedGroup {
            name,
            end,
            identity,
            // Nothing is added to its index any more.
            index_len: 0,
            entries: Vec::new(),
            segments: Vec::new(),
            sparse_index: None,
            replayed: Replayed {
                from: end.position,
                segments: Vec::new(),
                writer: None,
                has_file: true,
            },
            damage: None,
        }
    }
}

/// The part of a group in memory, behind the end of its file.
pub struct Replayed {
    /// The end of the file, where the segments start.
    pub from: Position,
    /// They are the last ones of the group.
    pub segments: Vec<Arc<Buffer>>,
    /// The writer of the last one. The others have none: the pool counts the lanes by their writers.
    pub writer: Option<BufferWriter>,
    /// Whether there is a file. Its name survives a crash.
    pub has_file: bool,
}

impl Replayed {
    /// Begins the replay of a group without a file.
    pub fn begin() -> Replayed {
        Replayed {
            from: Position(0),
            segments: Vec::new(),
            writer: None,
            has_file: false,
        }
    }

    pub fn bytes(&self) -> u64 {
        let segments = self.segments.iter();
        segments.map(|segment| segment.filled() as u64).sum()
    }

    /// Moves the segments into the file. A new one has no head: the stream's identity is not known before the catalog is
    /// open.
    pub fn write_out(&mut self, dir: &DataDir, name: &mut GroupName) -> Result<()> {
        if self.segments.is_empty() {
            return Ok(());
        }
        dir.create_stream_dir(name.lane.stream)?;
        if !self.has_file {
            name.generation = Generation::FORMAT_2;
        }
        let path = dir.group_path(name);
        let access = match self.has_file {
            true => Access::Write,
            false => Access::Create,
        };
        let file = open(dir, name, access)?;
        self.has_file = true;
        self.writer = None;
        for segment in self.segments.drain(..) {
            let bytes = segment.slice(0..segment.filled());
            file.write_at(&bytes, self.from.0)
                .map_err(|error| LogError::io("write", &path, error))?;
            self.from = self.from.plus(bytes.len() as u64);
        }
        Ok(())
    }

    pub fn into_buffers(self) -> Vec<Arc<Buffer>> {
        self.segments
    }
}
