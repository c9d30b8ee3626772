//! Appending a chunk: its header is checked, the stream's settings change it, and the lane takes it as soon as there is memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use event_listener::Listener as _;
use millstream_base::{ByteSize, ProducerId};
use millstream_record::{Chunk, ChunkError, ChunkHeader, Compression, Records};

use crate::core::Core;
use crate::error::{KEY_BYTES_MAX, LogError, NAMED_RECORDS_MAX, Result};
use crate::lane::LaneState;
use crate::lane::append::{AppendStep, Appended};
use crate::lane::persist_signal::TICK;
use crate::memory::pool::Arena;
use crate::settings::config::Background;
use crate::settings::intake::TakenIn;

/// Appends a chunk to a lane whose header and checksum were checked, waiting for memory where that is short.
pub(crate) fn append_to_lane(
    core: &Core,
    lane: &Arc<LaneState>,
    header: &ChunkHeader,
    chunk: &[u8],
) -> Result<Appended> {
    check_sent(header)?;
    check_size(lane, chunk)?;
    check_keys(core, lane, chunk)?;
    let Some(taken) = take_in(core, lane, header, chunk)? else {
        return append_when_room(core, || lane.append(&core.appends, header, chunk));
    };
    let appended = append_when_room(core, || {
        lane.append(&core.appends, &taken.header, &taken.chunk)
    })?;
    Ok(Appended {
        append_time: taken.append_time.filter(|_| !appended.duplicate),
        ..appended
    })
}

/// Makes the chunk to be stored of one that was checked; `None` if that is the same.
pub(crate) fn take_in<'a>(
    core: &Core,
    lane: &LaneState,
    header: &ChunkHeader,
    chunk: &'a [u8],
) -> Result<Option<TakenIn<'a>>> {
    let Some(intake) = lane.stream.limits.intake() else {
        return Ok(None);
    };
    let taken = intake.take_in(
        &core.reads.decompression,
        core.config.append_wait_max,
        core.clock.now(),
        header,
        chunk,
    )?;
    // Compressed otherwise, it may be larger.
    check_size(lane, &taken.chunk)?;
    Ok(Some(taken))
}

pub(crate) fn check_size(lane: &LaneState, chunk: &[u8]) -> Result<()> {
    let bytes_max = lane.stream.limits.chunk_bytes_max();
    match chunk.len() > bytes_max {
        true => Err(LogError::ChunkTooLarge {
            bytes: ByteSize(chunk.len() as u64),
            bytes_max: ByteSize(bytes_max as u64),
        }),
        false => Ok(()),
    }
}

/// Checks that each record has a key where the stream keeps the last record of each. This reads all records, also those
/// of compressed chunks.
fn check_keys(core: &Core, lane: &LaneState, chunk: &[u8]) -> Result<()> {
    if !lane.stream.limits.needs_keys() {
        return Ok(());
    }
    let wait_max = core.config.append_wait_max;
    let chunk = Chunk::trusted(chunk)?;
    let decompression = &core.reads.decompression;
    let records = decompression.with_records(&chunk, wait_max, not_found_by_key)??;
    match records.is_empty() {
        true => Ok(()),
        false => Err(LogError::NoKey {
            stream: lane.stream.name.clone(),
            records,
        }),
    }
}

/// Whether a record with this key can be found by it.
pub fn is_found_by(key: Option<&[u8]>) -> bool {
    key.is_some_and(|key| key.len() <= KEY_BYTES_MAX)
}

/// Returns the numbers of the first records that cannot be found by key. Reads all records.
fn not_found_by_key(records: Records<'_>) -> Result<Vec<u32>, ChunkError> {
    let mut found = Vec::new();
    for (number, record) in (0..).zip(records) {
        if !is_found_by(record?.key) && found.len() < NAMED_RECORDS_MAX {
            found.push(number);
        }
    }
    Ok(found)
}

/// Checks that a producer may send a chunk with this header.
fn check_sent(header: &ChunkHeader) -> Result<()> {
    if header.record_count == 0 {
        return Err(LogError::EmptyChunk);
    }
    if header.attributes.is_control() {
        return Err(LogError::ControlChunk);
    }
    header.check_gapless()?;
    if header.producer_id < ProducerId::NONE {
        return Err(LogError::BadProducer {
            producer: header.producer_id,
            why: "ids are -1 for no producer, and else not negative",
        });
    }
    Ok(())
}

/// Checks a chunk that another program made, down to its records: a checksum proves only that they are those that the
/// program sent, and a record that contradicts the header would end every reader of the lane.
pub(crate) fn check_foreign(core: &Core, chunk: &[u8]) -> Result<ChunkHeader> {
    let chunk = Chunk::parse(chunk)?;
    let header = *chunk.header();
    check_sent(&header)?;
    if header.attributes.compression() == Compression::None || core.config.check_compressed {
        let wait_max = core.config.append_wait_max;
        let check = |records: Records<'_>| records.check();
        core.reads
            .decompression
            .with_records(&chunk, wait_max, check)??;
    }
    Ok(header)
}

/// Appends as soon as there is memory.
#[inline]
pub(crate) fn append_when_room(
    core: &Core,
    append: impl Fn() -> Result<AppendStep>,
) -> Result<Appended> {
    let mut started = None;
    loop {
        match append()? {
            AppendStep::Done(appended) => return Ok(appended),
            AppendStep::NeedsBuffer => {
                core.wait_for_buffer(*started.get_or_insert_with(Instant::now))?;
            }
        }
    }
}

impl Core {
    /// Waits until a buffer may be free.
    ///
    /// # Errors
    /// When none came free by `deadline`.
    pub fn wait_for_buffer(&self, started: Instant) -> Result<()> {
        let exhausted = || LogError::PoolExhausted {
            pool: ByteSize(self.pool.size_bytes(Arena::Segments) as u64),
            waited_ms: started.elapsed().as_millis() as u64,
        };
        if self.config.background == Background::Manual {
            let step = || self.sync_step() | self.persist_step();
            let starved = || {
                self.starved.store(true, Ordering::Relaxed);
                step()
            };
            return if step() || starved() {
                Ok(())
            } else {
                Err(exhausted())
            };
        }
        let freed = self.pool.freed().listen();
        if started.elapsed() > TICK {
            self.starved.store(true, Ordering::Relaxed);
        }
        self.appends.persister.notify();
        let left = self
            .config
            .append_wait_max
            .checked_sub(started.elapsed())
            .ok_or_else(exhausted)?;
        freed.wait_timeout(left.min(TICK));
        Ok(())
    }
}
