//! Older versions of keys.
//!
//! Compaction drops a record only because of a newer one of its key, or since it is a deletion and old. The lane's
//! *versions_from* is an offset behind all of these newer records, and its *deletions_from* one behind all of these deletions.
//! Where no such newer record is behind an offset, the newest stored version up to there is the true one. So these answers are
//! exact, for a version *r* that is the newest stored one up to an offset, or for none:
//!
//! 1. Any answer for an offset from versions_from on: the newer records are before it.
//! 2. *r*, if no version behind the offset is stored before versions_from. The newest version before versions_from is stored,
//!    unless it was a deletion: that one goes after all older versions, so *r* would be gone.
//! 3. None, as 2., if deletions_from is not behind the offset: then a deletion that was dropped is no newer than the offset.
//!
//! 4. Any answer for an offset at which a hold is in force (`compact/stretches.rs`): of each key the newest version before it stays,
//!    unless it was a deletion that went after all older versions. A pass that drops others has begun after the hold's release.
//!
//! Of records before the lane's earliest offset nothing is known, so "none" is no answer where records were removed there,
//! unless the newest version is asked for.

use millstream_base::{Offset, partition_of_key};

use crate::error::{LogError, Result};
use crate::handle::key_watch::{DELETIONS_DROPPED, RECORDS_REMOVED};
use crate::handle::partition::StreamPartition;
use crate::handle::stream::Stream;
use crate::read::keys::history::{Older, OlderBounds, StoredVersion, older_versions};
use crate::read::keys::version::KeyVersion;

const OLDER_DROPPED: &str = "compaction may have dropped it, since a newer one exists";

/// The most versions of one page.
pub const HISTORY_VERSIONS_MAX: usize = 10_000;

/// The bytes of chunks that one step of a lookup reads, about: between two steps the caller may stop it.
const STEP_BYTES: u64 = 16 << 20;

/// The versions behind the offset that are examined for an error to find the oldest one.
const OLDEST_VERSIONS_MAX: usize = 1_000;

/// Only the newest version up to an offset.
const ONE: OlderBounds = OlderBounds {
    versions: 1,
    bytes: 0,
    read_bytes: STEP_BYTES,
};

/// The stored versions of a key, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHistory {
    /// The versions of this page.
    pub versions: Vec<HistoryVersion>,
    /// The next page has the versions before this offset; `None` on the last page. A page may be empty and not be the last.
    pub next: Option<Offset>,
    /// Whether there may have been older versions that are no longer stored. Only the last page knows it; on other pages it is
    /// `false`.
    pub lacks_older: bool,
}

/// A version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryVersion {
    /// Its record. A deletion has an empty value. An expired version keeps its time of expiry.
    pub version: KeyVersion,
    /// Whether the record has no value.
    pub is_deletion: bool,
}

impl Stream {
    /// Returns the version that a key had at an offset, from the partition that owns it: see [`StreamPartition::get_at`].
    ///
    /// # Errors
    /// As [`StreamPartition::get_at`].
    pub fn get_at(&self, key: &[u8], at: Offset) -> Result<Option<KeyVersion>> {
        let partition = partition_of_key(key, self.partition_count() as usize);
        self.partition(partition as u32)?.get_at(key, at)
    }
}

impl StreamPartition {
    /// Returns the newest committed version of a key whose offset is not behind `at`; `None` if there is none, or it has no value
    /// or one that has ended by now, or another partition owns the key. An offset behind the last stable one asks for the newest
    /// version.
    ///
    /// ```
    /// use millstream_base::Offset;
    /// use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, StreamConfig};
    /// use millstream_log::{KeyChange, KeyCondition, NewValue};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let log = Log::open(LogConfig::new(dir.path()))?;
    /// let settings = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into();
    /// let config = StreamConfig { settings, ..StreamConfig::default() };
    /// let partition = log.create_stream("users", config)?.partition(0)?;
    ///
    /// let put = |value| KeyChange {
    ///     key: b"ada",
    ///     condition: KeyCondition::Any,
    ///     value: NewValue::Put(value),
    ///     ttl: None,
    ///     secondary: &[],
    /// };
    /// let changed = partition.change(&[put(b"1815"), put(b"1852")])?;
    /// while partition.last_stable_offset() < changed.answer_at {
    ///     std::thread::yield_now();
    /// }
    ///
    /// let first = partition.get_at(b"ada", Offset(0))?.expect("compaction has not dropped it");
    /// assert_eq!(&first.value[..], b"1815");
    /// let history = partition.key_history(b"ada", Offset(u64::MAX), 10, 1 << 20, 1 << 20)?;
    /// assert_eq!((history.versions.len(), history.next, history.lacks_older), (2, None, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the version may be one that is not stored any more ([`LogError::VersionNotKept`]), and as [`StreamPartition::get`].
    pub fn get_at(&self, key: &[u8], at: Offset) -> Result<Option<KeyVersion>> {
        let found = self.stored_at(key, at)?;
        let found = found.filter(|found| !found.is_deletion);
        Ok(found.and_then(|found| self.alive(found.version)))
    }

    /// Returns the version of a key at an offset, which may be a deletion.
    fn stored_at(&self, key: &[u8], at: Offset) -> Result<Option<StoredVersion>> {
        self.check_keyed()?;
        let stable = self.lane.last_stable_offset();
        let before = Offset(at.0.saturating_add(1)).min(stable);
        loop {
            let found = self.newest_before(key, before)?;
            // Loaded behind the read: a group that lacks a record is shown after this was raised.
            let versions_from = self.lane.versions_from();
            let newest = match before >= versions_from {
                true => found.clone(),
                false => self.newest_before(key, versions_from)?,
            };
            if self.lane.versions_from() != versions_from {
                continue;
            }
            let is_newest = offset_of(&newest) == offset_of(&found);
            let doubt = self.doubt(&found, is_newest, before, stable);
            // Checked after the reads, too: a group without the held records becomes visible only after the hold's release.
            let is_held = || self.is_held(before, found.is_some());
            return match doubt.filter(|_| !is_held()) {
                None => Ok(found),
                Some(why) => Err(self.not_kept(key, at, versions_from, why)),
            };
        }
    }

    /// Returns why the newest stored version before an offset may not be the true one, if that is so. `is_newest` says that no
    /// version behind it can have made compaction drop others.
    fn doubt(
        &self,
        found: &Option<StoredVersion>,
        is_newest: bool,
        before: Offset,
        stable: Offset,
    ) -> Option<&'static str> {
        if !is_newest {
            return Some(OLDER_DROPPED);
        }
        if found.is_some() || before >= stable {
            return None;
        }
        if self.earliest_offset() > Offset(0) {
            return Some(RECORDS_REMOVED);
        }
        (before < self.lane.deletions_from()).then_some(DELETIONS_DROPPED)
    }

    /// Whether a hold keeps the newest versions before an offset, so that the version found is the true one. If retention has
    /// removed records since the hold was made, the absence of a version proves nothing.
    fn is_held(&self, before: Offset, is_found: bool) -> bool {
        let first = self.lane.holds.first_of(before);
        first.is_some_and(|first| is_found || self.earliest_offset() <= first)
    }

    fn not_kept(&self, key: &[u8], at: Offset, until: Offset, why: &'static str) -> LogError {
        LogError::VersionNotKept {
            stream: self.lane.stream.name.clone(),
            partition: self.lane.partition,
            at,
            oldest: self.oldest_behind(key, at, until),
            why,
        }
    }

    /// Returns the oldest stored version of a key behind an offset, and before `until` if there is one.
    fn oldest_behind(&self, key: &[u8], at: Offset, until: Offset) -> Option<Offset> {
        let bounds = OlderBounds {
            versions: OLDEST_VERSIONS_MAX,
            bytes: usize::MAX,
            read_bytes: STEP_BYTES,
        };
        let behind = |until| {
            let older = self.older(key, until, &bounds).ok()?;
            let versions = older.versions.iter().map(|found| found.version.offset);
            versions.take_while(|offset| *offset > at).last()
        };
        behind(until).or_else(|| behind(Offset(u64::MAX)))
    }

    /// Returns the newest stored version of a key before an offset.
    fn newest_before(&self, key: &[u8], before: Offset) -> Result<Option<StoredVersion>> {
        let mut before = before;
        loop {
            let older = self.older(key, before, &ONE)?;
            match (older.versions.into_iter().next(), older.next) {
                (Some(found), _) => return Ok(Some(found)),
                (None, Some(next)) => before = next,
                (None, None) => return Ok(None),
            }
        }
    }

    fn older(&self, key: &[u8], before: Offset, bounds: &OlderBounds) -> Result<Older> {
        let (reads, lane) = (&self.core.reads, &self.lane);
        older_versions(reads, lane, || self.partitions(), key, before, bounds)
    }

    /// Returns the stored, committed versions of a key before an offset, newest first, with its deletions: at most `limit` and at
    /// most [`HISTORY_VERSIONS_MAX`], and at most `bytes_max` bytes of values and headers, but at least one. It reads about
    /// `read_bytes_max` bytes of the partition, and the next page goes on from there.
    ///
    /// # Errors
    /// As [`StreamPartition::get`].
    pub fn key_history(
        &self,
        key: &[u8],
        before: Offset,
        limit: usize,
        bytes_max: usize,
        read_bytes_max: u64,
    ) -> Result<KeyHistory> {
        self.check_keyed()?;
        let bounds = OlderBounds {
            versions: limit.clamp(1, HISTORY_VERSIONS_MAX),
            bytes: bytes_max,
            read_bytes: read_bytes_max.max(1),
        };
        let older = self.older(key, before, &bounds)?;
        let oldest = older.versions.last();
        let oldest = oldest.map_or(before, |oldest| oldest.version.offset);
        // Looked at behind the read, as in `stored_at`.
        let lacks_older = self.earliest_offset() > Offset(0)
            || self.lane.deletions_from() > Offset(0)
            || oldest < self.lane.versions_from();
        let with_end = |found: StoredVersion| HistoryVersion {
            is_deletion: found.is_deletion,
            version: match found.is_deletion {
                true => found.version,
                false => KeyVersion {
                    expires_at: found.version.life().end(self.ttl()),
                    ..found.version
                },
            },
        };
        Ok(KeyHistory {
            versions: older.versions.into_iter().map(with_end).collect(),
            lacks_older: lacks_older && older.next.is_none(),
            next: older.next,
        })
    }
}

fn offset_of(found: &Option<StoredVersion>) -> Option<Offset> {
    found.as_ref().map(|found| found.version.offset)
}
