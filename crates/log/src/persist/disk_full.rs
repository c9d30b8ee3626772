//! A full disk: appends are refused until a probe finds room again.

use std::path::Path;
use std::time::Duration;

use millstream_base::disk::Access;

use crate::core::Core;
use crate::error::LogError;
use crate::journal::format::PROBE;
use crate::lane::persist_signal::TICK;
use crate::settings::config::Background;

/// Room that must be free before a disk no longer counts as full.
const PROBE_BYTES: u64 = 1 << 20;

impl Core {
    pub fn set_disk_full(&self, error: &LogError) {
        if !self.appends.disk.set_full() {
            tracing::warn!(%error, "disk is full: writes are refused until there is room");
            // Fails the appends of every lane that wait to become durable.
            for lane in self.made_lanes() {
                lane.durable_moved.notify(usize::MAX);
            }
        }
        self.appends.persister.notify();
    }

    /// Checks whether a full disk has room again.
    pub fn probe_disk(&self, now: Duration) {
        let mut probed_at = self.probed_at.lock();
        let is_early =
            self.config.background == Background::Threads && now.saturating_sub(*probed_at) < TICK;
        if is_early || !self.appends.disk.is_full() {
            return;
        }
        *probed_at = now;
        let path = self.dir.journal_dir().join(PROBE);
        let probe = |path: &Path| {
            let file = self.dir.disk.open(path, Access::Create)?;
            file.write_at(&vec![0; PROBE_BYTES as usize], 0)
        };
        let result = probe(&path);
        let removed = self.dir.disk.remove_file(&path);
        if result.and(removed).is_ok() {
            tracing::info!("disk has room again: writes are accepted");
            self.appends.disk.clear_full();
        }
    }

    pub fn release_stalled(&self) {
        for log in std::mem::take(&mut *self.stalled.lock()) {
            self.appends.queue.add(log);
        }
    }
}
