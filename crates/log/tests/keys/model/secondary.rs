//! Look-ups by secondary keys, beside the model.

use millstream_base::KeyRange;
use millstream_log::{LogError, SECONDARY};

use super::{World, add};
use crate::{Tag, try_find};

/// The indexes that a stream has, one after another.
const SETTINGS: [&str; 4] = ["tag", "tag,other", "other", ""];

/// Secondary keys that many records have.
const TAGS: [&[u8]; 7] = [b"", b"\0", b"\0\x01", b"a", b"a\0", b"ab", b"\xff"];

impl World<'_> {
    /// Draws the secondary keys of some records.
    pub fn draw_tags(&mut self, records: usize) -> Vec<Vec<Tag>> {
        let mut draw = || {
            let count = match self.rng.u8(..40) {
                0 => self.rng.usize(60..100),
                n => usize::from(n % 4),
            };
            let tags = (0..count).map(|n| {
                let name = ["tag", "other"][self.rng.usize(..2)];
                match count > 4 {
                    true => (name, format!("{n}").into_bytes()),
                    false => (name, TAGS[self.rng.usize(..TAGS.len())].to_vec()),
                }
            });
            tags.collect()
        };
        (0..records).map(|_| draw()).collect()
    }

    /// Gives the stream other indexes of secondary keys.
    pub fn change_indexes(&mut self) -> Result<(), LogError> {
        let names = SETTINGS[self.rng.usize(..SETTINGS.len())];
        self.note(format!("indexes {names:?}"));
        let alter = |config: &mut millstream_log::StreamConfig| {
            config
                .settings
                .insert(SECONDARY.to_owned(), names.to_owned());
        };
        self.log().alter_stream("s", alter).map(drop)
    }

    /// Looks for the secondary keys of a range.
    pub fn check_tags(&mut self, n: usize) -> Result<(), LogError> {
        let range = match self.rng.u8(..4) {
            0 => KeyRange::all(),
            1 => KeyRange::key(TAGS[self.rng.usize(..TAGS.len())]),
            2 => KeyRange::prefix(TAGS[self.rng.usize(..TAGS.len())]),
            _ => {
                let mut tag = || TAGS[self.rng.usize(..TAGS.len())].to_vec();
                KeyRange::new(tag(), Some(tag()))
            }
        };
        let (limit, bytes_max) = (self.rng.usize(1..40), self.rng.usize(..5_000));
        self.check_tags_of(n, &range, limit, bytes_max)
    }

    pub fn check_all_tags(&mut self, n: usize) -> Result<(), LogError> {
        self.check_tags_of(n, &KeyRange::all(), 1_000, 1 << 20)
    }

    fn check_tags_of(
        &mut self,
        n: usize,
        range: &KeyRange,
        limit: usize,
        bytes_max: usize,
    ) -> Result<(), LogError> {
        self.expected(n)?;
        let (stream, partition) = (self.stream()?, self.partition(n)?);
        let earliest = partition.earliest_offset().0;
        let stable = partition.last_stable_offset().0;
        let settings = stream.config().settings;
        let names = settings.get(SECONDARY).map_or("", |names| names);
        for name in ["tag", "other"] {
            let found = try_find(&partition, name, range, limit, bytes_max);
            if !names.split(',').any(|known| known == name) {
                let is_refused = matches!(found, Err(LogError::NoSecondaryIndex { .. }));
                assert!(is_refused, "{names:?} has no {name}");
                continue;
            }
            let found = found?;
            let now = (self.ttl, self.keyed_now_ms());
            let partitions = self.partitions.len();
            let tagged = self.partitions[n].tagged(name, earliest..stable, n, partitions, now);
            let tagged = tagged
                .into_iter()
                .filter(|((tag, _), _)| range.contains(tag));
            let expected: Vec<_> = tagged
                .filter(|_| !range.is_empty())
                .map(|((tag, key), (offset, value))| (tag, key, offset, value))
                .collect();
            assert_eq!(
                found, expected,
                "{name} {range:?}, {limit} records, {bytes_max} bytes"
            );
            add(&self.seen.tags, found.len() as u64);
        }
        Ok(())
    }
}
