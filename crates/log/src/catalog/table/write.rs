//! Changes of a table that wait for memory, and its compaction.

use millstream_base::Offset;
use millstream_record::{ChunkBuilder, Compression, check};
use serde::Serialize;

use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::Result;
use crate::memory::pool::BLOCK_BYTES_MIN;
use crate::produce::append::append_to_lane;
use crate::produce::wait::wait_durable;

/// A table is not written anew before it has grown by this much.
const COMPACT_BYTES_MIN: u64 = 1 << 20;

/// … and by this many times its size.
const COMPACT_FACTOR: u64 = 4;

impl Table {
    /// Changes an entry; `None` removes it. The change is durable when the lane's durable offset
    /// has reached the returned one.
    ///
    /// # Errors
    /// When the append is refused; then nothing has changed.
    pub fn put<T: Serialize>(&self, core: &Core, key: &str, value: Option<&T>) -> Result<Offset> {
        let mut state = self.state.lock();
        state.put(core.clock.now(), key, value, |header, chunk| {
            append_to_lane(core, &self.lane, header, chunk)
        })
    }

    /// Whether most of the stream is outdated.
    fn is_bloated(&self) -> bool {
        let state = self.state.lock();
        state.stored_bytes > COMPACT_BYTES_MIN.max(state.live_bytes * COMPACT_FACTOR)
    }

    /// Writes the table anew where most of its stream is outdated. All of the old groups stay until
    /// all of the new one is durable.
    ///
    /// The change that made it due is durable, whatever becomes of this.
    pub fn compact(&self, core: &Core) {
        if let Err(error) = self.write_anew(core) {
            tracing::warn!(table = %self.lane.stream.name, %error,
                "table not written anew; the next change tries again");
        }
    }

    fn write_anew(&self, core: &Core) -> Result<()> {
        if !self.is_bloated() {
            return Ok(());
        }
        let mut state = self.state.lock();
        let Some(fresh) = self.lane.roll() else {
            return Ok(());
        };
        let mut stored_bytes = 0;
        let mut builder = ChunkBuilder::new(Compression::None);
        let mut end = self.lane.next_offset();
        let mut entries = state.entries.iter().peekable();
        while let Some((key, value)) = entries.next() {
            builder.push(core.clock.now(), Some(key.as_bytes()), Some(value), &[])?;
            if builder.len() > BLOCK_BYTES_MIN / 2 || entries.peek().is_none() {
                let chunk = builder.finish(None)?;
                end = append_to_lane(core, &self.lane, &check(chunk)?, chunk)?.next_offset;
                stored_bytes += chunk.len() as u64;
                builder.clear();
            }
        }
        wait_durable(core, &self.lane, end)?;
        state.stored_bytes = stored_bytes;
        core.remove_groups_before(&self.lane, &fresh)
    }
}
