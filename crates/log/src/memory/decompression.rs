//! One budget for all memory that the node decompresses and rebuilds chunks in.
//!
//! Each piece of work takes a [`Lease`] first and gives it back when it is done, so nothing that was decompressed
//! outlasts the look at it. Subscriptions that get none are [busy](crate::Next::Busy) until one is given back;
//! producers and searches by time wait, for a bounded time. Half of the budget is for work that needs little, so chunks
//! that decompress to many bytes delay only each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use event_listener::{Event, Listener as _};
use millstream_base::ByteSize;
use millstream_record::{Chunk, ChunkError, Compression, Decompressor, Records};
use parking_lot::Mutex;

use crate::error::{LogError, Result};

/// The least budget: its share for large work is enough for chunks that decompress to 6 MiB.
pub const BYTES_MIN: u64 = 64 << 20;

/// The most that the records of a chunk may take when they are decompressed on the server.
const RECORDS_BYTES_MAX: usize = 32 << 20;

/// The same in work that needs little.
const SMALL_RECORDS_BYTES: usize = 1 << 20;

/// The bytes that a filter rebuilds before it hands them out, beside one chunk.
pub const REBUILT_BYTES: usize = 1 << 20;

/// LZ4's largest blocks.
const CODEC_BYTES_MAX: usize = 16 << 20;

/// The memory of small work: records, these rebuilt with others, and three blocks of LZ4.
const SMALL_BYTES: usize =
    3 * SMALL_RECORDS_BYTES + SMALL_RECORDS_BYTES + SMALL_RECORDS_BYTES + REBUILT_BYTES;

/// The buffers that wait for the next piece of small work.
const IDLE_MAX: usize = 4;

/// The memory of an idle buffer and its codecs.
const IDLE_BYTES: usize = SMALL_RECORDS_BYTES + (256 << 10);

/// The memory that a piece of work needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Chunks that are, and decompress to, at most [`SMALL_RECORDS_BYTES`].
    Small,
    /// Memory for one uncompressed chunk of this many bytes.
    Copy(usize),
    /// Memory for one chunk that decompresses to the largest allowed size.
    Large,
}

impl Need {
    /// The least that may be enough for a chunk.
    pub fn of(chunk: &Chunk<'_>) -> Need {
        match (chunk.header().attributes.compression(), chunk.bytes().len()) {
            (Compression::None, bytes) if bytes > SMALL_RECORDS_BYTES => Need::Copy(bytes),
            _ => Need::Small,
        }
    }
}

/// The budget.
#[derive(Debug)]
pub struct Decompression {
    bytes_max: usize,
    /// The halves of the budget: for small work, and for other work.
    halves: [Half; 2],
    used: Mutex<Used>,
}

#[derive(Debug)]
struct Half {
    bytes_max: usize,
    /// Notified when a lease of this half ends.
    freed: Event,
}

#[derive(Debug, Default)]
struct Used {
    /// The bytes of each half.
    bytes: [usize; 2],
    /// The most that was ever in use.
    peak: usize,
    /// For small work.
    idle: Vec<Decompressor>,
}

/// Memory for a piece of work, given back when it is dropped.
#[derive(Debug)]
pub struct Lease {
    of: Arc<Decompression>,
    half: usize,
    bytes: usize,
    decompressor: Option<Decompressor>,
}

impl Decompression {
    pub fn new(bytes_max: ByteSize) -> Arc<Decompression> {
        let bytes_max = bytes_max.as_usize();
        let half = || Half {
            bytes_max: (bytes_max - IDLE_MAX * IDLE_BYTES) / 2,
            freed: Event::new(),
        };
        Arc::new(Decompression {
            bytes_max,
            halves: [half(), half()],
            used: Mutex::default(),
        })
    }

    /// Takes memory for a piece of work; `None` while others have it.
    pub fn try_take(self: &Arc<Self>, need: Need) -> Option<Lease> {
        let (half, bytes) = (half_of(need), self.bytes_of(need));
        let mut used = self.used.lock();
        if used.bytes[half] + bytes > self.halves[half].bytes_max {
            return None;
        }
        used.bytes[half] += bytes;
        let sum = used.bytes.iter().sum::<usize>() + IDLE_MAX * IDLE_BYTES;
        used.peak = used.peak.max(sum);
        let decompressor = match need {
            Need::Small => used.idle.pop(),
            Need::Copy(_) | Need::Large => None,
        };
        drop(used);
        let records_bytes_max = match need {
            Need::Small => SMALL_RECORDS_BYTES,
            Need::Copy(_) => 0,
            Need::Large => self.records_bytes_max(),
        };
        Some(Lease {
            of: Arc::clone(self),
            half,
            bytes,
            decompressor: Some(
                decompressor.unwrap_or_else(|| Decompressor::with_bytes_max(records_bytes_max)),
            ),
        })
    }

    /// Takes memory for a piece of work, when there is some.
    ///
    /// # Errors
    /// When others have it for longer than `wait_max`.
    fn take(self: &Arc<Self>, need: Need, wait_max: Duration) -> Result<Lease> {
        let started = Instant::now();
        loop {
            if let Some(lease) = self.try_take(need) {
                return Ok(lease);
            }
            let freed = self.freed(need).listen();
            if let Some(lease) = self.try_take(need) {
                return Ok(lease);
            }
            let waited = started.elapsed();
            let Some(left) = wait_max.checked_sub(waited) else {
                return Err(LogError::DecompressionBusy {
                    budget: ByteSize(self.bytes_max as u64),
                    waited_ms: waited.as_millis() as u64,
                });
            };
            freed.wait_timeout(left);
        }
    }

    /// Gives the records of a chunk to `look`.
    ///
    /// # Errors
    /// When there is no memory for `wait_max`, or the records cannot be decompressed.
    pub fn with_records<R>(
        self: &Arc<Self>,
        chunk: &Chunk<'_>,
        wait_max: Duration,
        look: impl FnOnce(Records<'_>) -> R,
    ) -> Result<R> {
        if chunk.header().attributes.compression() == Compression::None {
            return Ok(look(chunk.records(&mut Decompressor::default())?));
        }
        let mut lease = self.take(Need::Small, wait_max)?;
        match chunk.records(lease.decompressor()) {
            Err(ChunkError::DecompressedSize { .. }) => {}
            records => return Ok(look(records?)),
        }
        drop(lease);
        let mut lease = self.take(Need::Large, wait_max)?;
        Ok(look(chunk.records(lease.decompressor())?))
    }

    /// Notified when there may be memory for work with this need.
    pub fn freed(&self, need: Need) -> &Event {
        &self.halves[half_of(need)].freed
    }

    /// Returns the bytes in use, and the most that ever were.
    pub fn used(&self) -> (usize, usize) {
        let used = self.used.lock();
        (used.bytes.iter().sum(), used.peak)
    }

    fn records_bytes_max(&self) -> usize {
        let left = self.halves[1].bytes_max - CODEC_BYTES_MAX - REBUILT_BYTES;
        RECORDS_BYTES_MAX.min(left / 2)
    }

    fn bytes_of(&self, need: Need) -> usize {
        match need {
            Need::Small => SMALL_BYTES,
            Need::Copy(bytes) => bytes + REBUILT_BYTES,
            Need::Large => 2 * self.records_bytes_max() + CODEC_BYTES_MAX + REBUILT_BYTES,
        }
    }
}

fn half_of(need: Need) -> usize {
    match need {
        Need::Small => 0,
        Need::Copy(_) | Need::Large => 1,
    }
}

impl Lease {
    pub fn decompressor(&mut self) -> &mut Decompressor {
        self.decompressor.get_or_insert_default()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut used = self.of.used.lock();
        used.bytes[self.half] -= self.bytes;
        if self.half == 0 && used.idle.len() < IDLE_MAX {
            used.idle.extend(self.decompressor.take());
        }
        drop(used);
        self.of.halves[self.half].freed.notify(usize::MAX);
    }
}
