//! Records of a keyed stream, by their keys.

use millstream_base::{KeyRange, Offset, partition_of_key};

use crate::change::{
    ChangeTransaction, KeyChange, KeyChanges, Older, Place, change_keys, change_keys_together,
    changes_bytes_max,
};
use crate::error::{LogError, Result};
use crate::handle::partition::StreamPartition;
use crate::handle::stream::Stream;
use crate::keys::table::KeyStats;
use crate::keys::tail::Content;
use crate::produce::append::is_found_by;
use crate::read::keys::find::find_key;
use crate::read::keys::scan::scan_index;
use crate::read::keys::update::current_index;
use crate::read::keys::version::KeyVersion;
use crate::read::keys::versions::{Wanted, read_versions};

/// The most keys that one scan returns.
pub const SCAN_KEYS_MAX: usize = 10_000;

/// The most continuations of a scan that has found only expired values.
const SCAN_STEPS_MAX: usize = 100;

/// Keys of a partition in the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyScan {
    /// The keys and their newest versions.
    pub entries: Vec<KeyEntry>,
    /// The first key that did not fit: a scan from it goes on. `None` at the end of the range.
    pub next: Option<Vec<u8>>,
}

/// A key that has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// The key.
    pub key: Vec<u8>,
    /// Its newest committed version.
    pub version: KeyVersion,
}

impl Stream {
    /// Returns whether records are found by key: the setting [`cleanup.policy`](crate::CLEANUP_POLICY) contains
    /// [`compact`](crate::COMPACT).
    pub fn is_keyed(&self) -> bool {
        self.core.is_keyed(&self.stream.shared)
    }

    /// Checks that the stream may get more partitions. Internal streams may.
    ///
    /// # Errors
    /// When it is keyed ([`LogError::KeyedNotGrown`]): the number of partitions decides which one owns a key, so its
    /// earlier records would not be found any more.
    pub fn check_growth(&self) -> Result<()> {
        match self.is_keyed() && !self.is_internal() {
            false => Ok(()),
            true => Err(LogError::KeyedNotGrown {
                stream: self.name().to_owned(),
            }),
        }
    }

    /// Returns the newest committed version of a key, from the partition that owns it: see [`StreamPartition::get`].
    ///
    /// ```
    /// use millstream_base::{StreamletIndex, Timestamp};
    /// use millstream_log::{CLEANUP_POLICY, COMPACT, KeyRange, Log, LogConfig, StreamConfig};
    /// use millstream_record::{ChunkBuilder, Compression};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let log = Log::open(LogConfig::new(dir.path()))?;
    /// let settings = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into();
    /// let config = StreamConfig { settings, ..StreamConfig::default() };
    /// let stream = log.create_stream("users", config)?;
    ///
    /// let mut builder = ChunkBuilder::new(Compression::None);
    /// builder.push(Timestamp(0), Some(b"ada"), Some(b"1815"), &[])?;
    /// builder.push(Timestamp(0), Some(b"alan"), Some(b"1912"), &[])?;
    /// builder.push(Timestamp(0), Some(b"alan"), None, &[])?;
    /// let (partition, appended) = stream.append(StreamletIndex(0), builder.finish(None)?)?;
    /// partition.acknowledge(&appended)?;
    ///
    /// assert_eq!(&stream.get(b"ada")?.expect("just put").value[..], b"1815");
    /// assert_eq!(stream.get(b"alan")?, None);
    /// let scan = partition.scan(&KeyRange::prefix("a"), 10, 1 << 20)?;
    /// assert_eq!((scan.entries.len(), scan.next), (1, None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`StreamPartition::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<KeyVersion>> {
        let partition = partition_of_key(key, self.partition_count() as usize);
        self.partition(partition as u32)?.get(key)
    }

    /// Returns the newest committed version of a key, if memory has it: see [`StreamPartition::get_hot`].
    ///
    /// # Errors
    /// As [`StreamPartition::get_hot`].
    pub fn get_hot(&self, key: &[u8]) -> Result<Option<Option<KeyVersion>>> {
        let partition = partition_of_key(key, self.partition_count() as usize);
        self.partition(partition as u32)?.get_hot(key)
    }

    /// Returns how many records lookups have passed over since the log was opened, since another partition owns their keys.
    pub fn misplaced(&self) -> u64 {
        let partitions = (0..self.partition_count()).filter_map(|index| self.partition(index).ok());
        let stats = partitions.filter_map(|partition| partition.lane.key_stats());
        stats.map(|stats| stats.misplaced).sum()
    }
}

impl StreamPartition {
    /// Returns the newest committed version of a key; `None` if it has none, or the last one has no value or one that has
    /// ended, or retention has removed it, or another partition owns the key.
    ///
    /// It sees every record before the last stable offset, so a producer finds its acknowledged records, unless a
    /// transaction that began before them is open. The first lookup after a start reads the records behind the key files,
    /// and makes key files that are missing, which may take long; later lookups read only the records appended since.
    ///
    /// # Errors
    /// When the stream is not keyed ([`LogError::NotKeyed`]) or was deleted; when no memory for reading comes free
    /// ([`LogError::ReadBudget`], [`LogError::DecompressionBusy`]); when chunks are damaged or cannot be read
    /// ([`LogError::KeysUnreadable`]).
    pub fn get(&self, key: &[u8]) -> Result<Option<KeyVersion>> {
        Ok(self.newest(key)?.and_then(|version| self.alive(version)))
    }

    /// Returns the newest committed versions of keys, in their order, as [`get`](Self::get) does for each of them. It reads the
    /// records in the order of the log, so each chunk once, and leaves no copies of them in memory for later look-ups.
    ///
    /// # Errors
    /// As [`get`](Self::get); no versions are returned then.
    pub fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<KeyVersion>>> {
        self.check_keyed()?;
        let newest = self.look(|| self.find_and_read_many(keys))?.into_iter();
        let alive = newest.map(|newest| newest.and_then(|version| self.alive(version)));
        Ok(alive.collect())
    }

    fn find_and_read_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<KeyVersion>>> {
        let mut versions = vec![None; keys.len()];
        let mut found = Vec::with_capacity(keys.len());
        for (n, key) in keys.iter().enumerate() {
            if let Some(known) = self.newest_hot(key)? {
                versions[n] = known;
                continue;
            }
            let place = find_key(&self.core.reads, &self.lane, || self.partitions(), key)?;
            found.extend(place.map(|place| (n, place)));
        }
        found.sort_unstable_by_key(|(_, place)| place.offset);
        // Equal keys are read once.
        let mut wanted: Vec<Wanted<'_>> = found
            .iter()
            .map(|(n, place)| Wanted {
                key: keys[*n],
                place,
            })
            .collect();
        wanted.dedup_by_key(|wanted| wanted.place.offset);
        let read = read_versions(&self.core.reads, &self.lane, &wanted)?;
        for (n, place) in &found {
            let at = wanted.partition_point(|wanted| wanted.place.offset < place.offset);
            versions[*n].clone_from(&read[at]);
        }
        Ok(versions)
    }

    /// Returns the newest committed version of a key, also if its value has ended.
    fn newest(&self, key: &[u8]) -> Result<Option<KeyVersion>> {
        match self.newest_hot(key)? {
            Some(version) => Ok(version),
            None => self.look(|| self.find_and_read(key)),
        }
    }

    /// Returns a version with its end, unless its value has ended.
    pub(crate) fn alive(&self, version: KeyVersion) -> Option<KeyVersion> {
        let expires_at = version.life().end(self.ttl());
        let is_over = expires_at.is_some_and(|end| end <= self.keyed_now());
        (!is_over).then_some(KeyVersion {
            expires_at,
            ..version
        })
    }

    /// Repeats a lookup whose records were compacted away between the index and the read: then there are newer
    /// ones.
    pub(crate) fn look<R>(&self, look: impl Fn() -> Result<R>) -> Result<R> {
        loop {
            let swaps = self.lane.swaps();
            match look() {
                Err(LogError::KeysChanged { .. }) if self.lane.swaps() != swaps => {}
                seen => return seen,
            }
        }
    }

    /// Returns the newest committed version of a key, as [`get`](Self::get) does, if memory has it; else `None`. Waits for
    /// nothing.
    ///
    /// # Errors
    /// When the stream is not keyed ([`LogError::NotKeyed`]).
    pub fn get_hot(&self, key: &[u8]) -> Result<Option<Option<KeyVersion>>> {
        let known = self.newest_hot(key)?;
        Ok(known.map(|newest| newest.and_then(|version| self.alive(version))))
    }

    /// As [`newest`](Self::newest), if memory has it.
    fn newest_hot(&self, key: &[u8]) -> Result<Option<Option<KeyVersion>>> {
        self.check_keyed()?;
        let lane = &self.lane;
        let Some(index) = current_index(lane, self.partitions()) else {
            return Ok(None);
        };
        let known = self.core.reads.hot_keys.get(lane.id, key, index.epoch());
        let is_stored = |version: &KeyVersion| version.offset >= lane.earliest_offset();
        Ok(known.map(|version| version.filter(is_stored)))
    }

    /// Finds a key, and keeps a copy of its record in memory.
    fn find_and_read(&self, key: &[u8]) -> Result<Option<KeyVersion>> {
        let hot_keys = &self.core.reads.hot_keys;
        let epoch = self.lane.key_index(self.partitions()).epoch();
        let place = hot_keys.begin(self.lane.id, key, epoch);
        let version = self.find_and_read_stored(key)?;
        if let Some(place) = place {
            hot_keys.fill(place, version.as_ref());
        }
        Ok(version)
    }

    fn find_and_read_stored(&self, key: &[u8]) -> Result<Option<KeyVersion>> {
        let found = find_key(&self.core.reads, &self.lane, || self.partitions(), key)?;
        let Some(place) = &found else {
            return Ok(None);
        };
        let wanted = Wanted { key, place };
        let versions = read_versions(&self.core.reads, &self.lane, &[wanted])?;
        Ok(versions.into_iter().next().flatten())
    }

    /// Makes changes of keys, in their order, each if its condition holds: see [`crate::KeyChange`]. It waits as [`get`](Self::get)
    /// does, and not until the changes are durable: see [`KeyChanges::answer_at`].
    ///
    /// ```
    /// use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, StreamConfig};
    /// use millstream_log::{ChangeError, KeyChange, KeyCondition, NewValue};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let log = Log::open(LogConfig::new(dir.path()))?;
    /// let settings = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into();
    /// let config = StreamConfig { settings, ..StreamConfig::default() };
    /// let partition = log.create_stream("counts", config)?.partition(0)?;
    ///
    /// let add = KeyChange { key: b"visits", condition: KeyCondition::Any, value: NewValue::Add(2), ttl: None, secondary: &[] };
    /// let first = KeyChange { condition: KeyCondition::Absent, ..add };
    /// let outcomes = partition.change(&[add, add, first])?.outcomes;
    /// assert_eq!(outcomes[1].as_ref().unwrap().sum, Some(4));
    /// assert!(matches!(outcomes[2], Err(ChangeError::OtherVersion { newest: Some(_) })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the stream is not keyed, a key is too long, or another partition owns it; nothing is changed then. Errors of later
    /// steps are among the outcomes.
    pub fn change(&self, changes: &[KeyChange<'_>]) -> Result<KeyChanges> {
        let place = self.place_of_changes(changes)?;
        Ok(change_keys(place, changes, |change| self.look_up(change)))
    }

    /// Changes keys, all different ones, if the conditions of all hold: either all outcomes are changes, or none. The new
    /// versions are in one chunk, so look-ups see all of them or none. In a transaction, they see them when it is committed; its
    /// changes refuse keys that other open transactions have written, also if they have no condition.
    ///
    /// # Errors
    /// As [`change`](Self::change); when two changes are of the same key, or the changes are too large for one chunk; and with
    /// the errors of an append. Nothing is changed then.
    pub fn change_together(
        &self,
        changes: &[KeyChange<'_>],
        transaction: Option<ChangeTransaction>,
    ) -> Result<KeyChanges> {
        let place = self.place_of_changes(changes)?;
        change_keys_together(place, changes, transaction, |change| self.look_up(change))
    }

    /// Returns the most bytes of a chunk with several changes of keys: small ones, and not more than the stream allows
    /// ([`chunk_bytes_max`](Self::chunk_bytes_max)).
    pub fn changes_bytes_max(&self) -> usize {
        changes_bytes_max(&self.lane)
    }

    /// Returns the place of changes, if this partition may make them.
    fn place_of_changes(&self, changes: &[KeyChange<'_>]) -> Result<Place<'_>> {
        self.check_keyed()?;
        let partitions = self.partitions();
        for (n, change) in (0..).zip(changes) {
            self.check_owned(n, change.key, partitions)?;
        }
        Ok(Place {
            core: &self.core,
            lane: &self.lane,
            index: self.lane.key_index(partitions),
        })
    }

    fn check_owned(&self, number: u32, key: &[u8], partitions: u32) -> Result<()> {
        let stream = || self.lane.stream.name.clone();
        if !is_found_by(Some(key)) {
            return Err(LogError::NoKey {
                stream: stream(),
                records: vec![number],
            });
        }
        match partition_of_key(key, partitions as usize) as u32 {
            owner if owner == self.lane.partition => Ok(()),
            owner => Err(LogError::NotTheOwner {
                stream: stream(),
                partition: self.lane.partition,
                owner,
            }),
        }
    }

    /// Returns the newest version of a change's key.
    fn look_up(&self, change: &KeyChange<'_>) -> Result<Option<Older>> {
        let newest = self.newest(change.key)?;
        Ok(newest.map(|newest| Older {
            offset: newest.offset,
            content: Content::of(Some(&newest.value)),
            life: newest.life(),
        }))
    }

    /// Returns the keys of a range that have a value, in the order of their bytes: at most `limit` and at most
    /// [`SCAN_KEYS_MAX`], and at most `bytes_max` bytes of keys, values and headers, but at least one if `limit` is not 0.
    /// Each version is the newest one at one moment, the same for all. Where it meets very many ended values, it may return
    /// none although keys follow: then it says where to go on.
    ///
    /// # Errors
    /// As [`StreamPartition::get`].
    pub fn scan(&self, range: &KeyRange, limit: usize, bytes_max: usize) -> Result<KeyScan> {
        self.check_keyed()?;
        let limit = limit.min(SCAN_KEYS_MAX);
        let mut range = range.clone();
        for step in 1.. {
            let mut scan = self.look(|| self.scan_and_read(&range, limit, bytes_max))?;
            let found = scan.entries.into_iter();
            let alive = found.filter_map(|KeyEntry { key, version }| {
                let version = self.alive(version)?;
                Some(KeyEntry { key, version })
            });
            scan.entries = alive.collect();
            match &scan.next {
                Some(next) if scan.entries.is_empty() && limit > 0 && step < SCAN_STEPS_MAX => {
                    range.from.clone_from(next);
                }
                _ => return Ok(scan),
            }
        }
        unreachable!("the last step returns")
    }

    fn scan_and_read(&self, range: &KeyRange, limit: usize, bytes_max: usize) -> Result<KeyScan> {
        let found = scan_index(
            &self.core.reads,
            &self.lane,
            self.lane.key_index(self.partitions()),
            || self.partitions(),
            range,
            limit,
            bytes_max,
        )?;
        // In the order of the log, each chunk is read once.
        let mut by_offset: Vec<usize> = (0..found.keys.len()).collect();
        by_offset.sort_unstable_by_key(|n| found.keys[*n].1.offset);
        let wanted: Vec<Wanted<'_>> = by_offset
            .iter()
            .map(|n| Wanted {
                key: &found.keys[*n].0,
                place: &found.keys[*n].1,
            })
            .collect();
        let versions = read_versions(&self.core.reads, &self.lane, &wanted)?;
        let mut versions: Vec<_> = by_offset.into_iter().zip(versions).collect();
        versions.sort_unstable_by_key(|(n, _)| *n);
        let keys = found.keys.into_iter().zip(versions);
        let entries = keys.filter_map(|((key, _), (_, version))| {
            Some(KeyEntry {
                key,
                version: version?,
            })
        });
        Ok(KeyScan {
            entries: entries.collect(),
            next: found.next,
        })
    }

    /// Returns the size of its key index, as the lookups so far have left it.
    pub fn key_stats(&self) -> KeyStats {
        self.lane.key_stats().unwrap_or_default()
    }

    /// Returns the offset before which the key index has all records, as the lookups so far have left it.
    pub fn keys_indexed_to(&self) -> Offset {
        let index = self.lane.made_key_index();
        index.map_or(Offset(0), |index| index.next())
    }

    /// How many partitions the stream has.
    pub(crate) fn partitions(&self) -> u32 {
        self.lane.stream.partition_count()
    }

    pub(crate) fn check_keyed(&self) -> Result<()> {
        match self.core.is_keyed(&self.lane.stream) {
            true => Ok(()),
            false => Err(LogError::NotKeyed {
                stream: self.lane.stream.name.clone(),
            }),
        }
    }
}
