//! Compares older versions of keys with the model.

use std::collections::BTreeMap;

use millstream_base::{Offset, partition_of_key};
use millstream_log::{HistoryVersion, LogError};

use super::partition::ModelRecord;
use super::{World, add};

/// The committed records of a key in a partition, by their offsets.
type Versions<'a> = BTreeMap<u64, &'a ModelRecord>;

impl World<'_> {
    /// Looks up the values of some keys at some offsets, and reads the histories of some.
    pub fn check_versions(&mut self, n: usize) -> Result<(), LogError> {
        let stable = self.partition(n)?.last_stable_offset().0;
        for _ in 0..10 {
            let key = self.rng.choice(&self.keys).unwrap().clone();
            let at = match self.rng.u8(..8) {
                0 => u64::MAX,
                1..=3 => self.rng.u64(..=stable),
                _ => self.rng.u64(stable.saturating_sub(150)..=stable),
            };
            self.check_version_at(n, &key, at)?;
            let limit = self.rng.usize(1..6);
            let bytes_max = self.rng.usize(..5_000);
            let read_bytes_max = self.rng.u64(..200_000);
            let before = [u64::MAX, at][self.rng.usize(..2)];
            let history = self.history(n, &key, before, (limit, bytes_max, read_bytes_max))?;
            self.check_history(n, &key, before.min(stable), history)?;
        }
        Ok(())
    }

    fn versions(&self, n: usize, key: &[u8], before: u64) -> Result<Versions<'_>, LogError> {
        let earliest = self.partition(n)?.earliest_offset().0;
        let is_owned = partition_of_key(key, self.partitions.len()) == n;
        let committed = self.partitions[n].committed(before);
        let of_key = committed.filter(|record| is_owned && record.key == key);
        let stored = of_key.filter(|record| record.offset >= earliest);
        Ok(stored.map(|record| (record.offset, record)).collect())
    }

    fn check_version_at(&self, n: usize, key: &[u8], at: u64) -> Result<(), LogError> {
        let partition = self.partition(n)?;
        let stable = partition.last_stable_offset().0;
        let versions = self.versions(n, key, stable)?;
        let right = versions.range(..=at).next_back().map(|(_, record)| *record);
        let is_newest = at.saturating_add(1) >= stable;
        let is_removed = partition.earliest_offset().0 > 0;
        let context = format!("key {key:?} at {at} of {stable}: {right:?}");
        let is_owned = partition_of_key(key, self.partitions.len()) == n;
        match partition.get_at(key, Offset(at)) {
            Ok(Some(found)) => {
                let right = right.expect("it has a version");
                let value = right.value.as_deref();
                assert_eq!(found.offset.0, right.offset, "{context}");
                assert_eq!(Some(&found.value[..]), value, "{context}");
                assert!(!right.has_ended(self.ttl, self.keyed_now_ms()), "{context}");
                add(&self.seen.versions_at, u64::from(!is_newest));
            }
            Ok(None) => {
                let has_value = |record: &ModelRecord| {
                    record.value.is_some() && !record.has_ended(self.ttl, self.keyed_now_ms())
                };
                assert!(!right.is_some_and(has_value), "{context}");
                let holds = self.stream()?.holds();
                let mut ends = holds.iter().map(|found| found.hold.end_of(n as u32).0);
                let is_held = ends.any(|end| end == at.saturating_add(1));
                let is_known = right.is_some() || is_newest || !is_removed || !is_owned;
                assert!(is_known || is_held, "{context}");
            }
            Err(error @ LogError::VersionNotKept { oldest, .. }) => {
                assert!(!is_newest, "{context}: {error}");
                let has_version =
                    |oldest: Offset| oldest.0 > at && versions.contains_key(&oldest.0);
                assert!(oldest.is_none_or(has_version), "{context}: {error}");
                // Records that no pass has compacted are there.
                let is_passed = at + 1 < self.partitions[n].passed_to;
                let is_excused = is_passed || (right.is_none() && is_removed);
                assert!(is_excused, "{context}: {error}");
                add(&self.seen.versions_not_kept, 1);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads a history in pages. Returns whether older versions may be missing, too.
    fn history(
        &self,
        n: usize,
        key: &[u8],
        mut before: u64,
        (limit, bytes_max, read_bytes_max): (usize, usize, u64),
    ) -> Result<(Vec<HistoryVersion>, bool), LogError> {
        let partition = self.partition(n)?;
        let mut found = Vec::new();
        loop {
            let before_page = Offset(before);
            let page = partition.key_history(key, before_page, limit, bytes_max, read_bytes_max)?;
            assert!(page.versions.len() <= limit);
            let bytes = page.versions.iter().map(|found| found.version.value.len());
            let is_small = bytes.sum::<usize>() <= bytes_max;
            assert!(is_small || page.versions.len() == 1);
            found.extend(page.versions);
            match page.next {
                Some(next) => {
                    assert!(next.0 < before, "it goes on");
                    before = next.0;
                }
                None => return Ok((found, page.lacks_older)),
            }
        }
    }

    fn check_history(
        &self,
        n: usize,
        key: &[u8],
        before: u64,
        (found, lacks_older): (Vec<HistoryVersion>, bool),
    ) -> Result<(), LogError> {
        let versions = self.versions(n, key, before)?;
        let offsets: Vec<u64> = found.iter().map(|found| found.version.offset.0).collect();
        let context = format!("key {key:?} before {before}: {offsets:?}");
        assert!(offsets.is_sorted_by(|a, b| a > b), "{context}");
        for HistoryVersion {
            version,
            is_deletion,
        } in &found
        {
            let right = versions[&version.offset.0];
            match is_deletion {
                true => assert!(
                    right.value.is_none() || self.may_lose_value(right),
                    "{context}"
                ),
                false => {
                    assert_eq!(
                        Some(&version.value[..]),
                        right.value.as_deref(),
                        "{context}"
                    );
                    let end = right.expires.or(self.ttl.map(|ttl| right.timestamp + ttl));
                    let found = version.expires_at.map(|end| end.0);
                    assert_eq!(found, end, "{context}");
                }
            }
        }
        let model = &self.partitions[n];
        let passed_to = model.passed_to;
        let recent: Vec<u64> = versions
            .range(passed_to..)
            .map(|(offset, _)| *offset)
            .collect();
        let is_recent = |offset: &&u64| **offset >= passed_to;
        let found_recent: Vec<u64> = offsets.iter().rev().filter(is_recent).copied().collect();
        assert_eq!(found_recent, recent, "{context}");
        let is_owned = partition_of_key(key, self.partitions.len()) == n;
        let is_whole = offsets.len() == versions.len();
        assert!(is_whole || lacks_older, "{context} of {versions:?}");
        match lacks_older {
            true => add(&self.seen.histories_with_gaps, u64::from(!is_whole)),
            false => {
                let earliest = self.partition(n)?.earliest_offset().0;
                assert_eq!(earliest, 0, "{context}");
                add(
                    &self.seen.whole_histories,
                    u64::from(is_owned && offsets.len() > 1),
                );
            }
        }
        Ok(())
    }
}
