//! The parts of a log that reads need.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::Clock;
use millstream_base::machine::memory_bytes;

use crate::files::DataDir;
use crate::lane::compaction_marks::CompactionMarks;
use crate::memory::decompression::Decompression;
use crate::memory::pool::Pool;
use crate::read::catch_up::CatchUp;
use crate::read::damage_reports::DamageReports;
use crate::read::index_cache::IndexCache;
use crate::read::keys::files::KeyFiles;
use crate::read::keys::hot::HotKeys;
use crate::settings::config::LogConfig;
use crate::settings::memory::Memory;

/// The parts of the log that reads need. They reach no others.
pub struct ReadContext {
    pub dir: Arc<DataDir>,
    pub memory: Memory,
    pub clock: Arc<dyn Clock>,
    pub catch_up: CatchUp,
    pub indexes: Arc<IndexCache>,
    pub key_files: KeyFiles,
    pub hot_keys: HotKeys,
    /// The lanes that may be due for compaction: those that have got key files.
    pub compaction_marks: Arc<CompactionMarks>,
    pub damage: DamageReports,
    pub decompression: Arc<Decompression>,
    /// The longest wait of a search for memory to decompress in.
    pub decompression_wait_max: Duration,
}

impl ReadContext {
    pub fn new(
        config: &LogConfig,
        dir: Arc<DataDir>,
        clock: Arc<dyn Clock>,
        pool: Arc<Pool>,
        compaction_marks: Arc<CompactionMarks>,
    ) -> ReadContext {
        let memory = Memory::of(memory_bytes());
        let indexes = Arc::new(IndexCache::new(Arc::clone(&dir), memory.index_points));
        ReadContext {
            catch_up: CatchUp::new(
                Arc::clone(&dir),
                Arc::clone(&clock),
                Arc::clone(&indexes),
                pool,
                config.background,
            ),
            key_files: KeyFiles::new(Arc::clone(&dir), memory.key_files),
            hot_keys: HotKeys::new(config.hot_keys),
            compaction_marks,
            dir,
            memory,
            clock,
            indexes,
            damage: DamageReports::default(),
            decompression: Decompression::new(config.decompression),
            decompression_wait_max: config.append_wait_max,
        }
    }
}
