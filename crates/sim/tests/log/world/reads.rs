//! Reads by cursor, by offset and by fetch, and compares with the model.

use std::collections::BTreeMap;

use millstream_base::{Offset, Timestamp};
use millstream_log::{AtLeast, Durability, LogError};
use millstream_record::Chunks;

use super::{ModelLane, World, lane_of};

impl World {
    /// Reads a lane from its beginning, and compares it with the model.
    pub fn check_lane(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let durable = lane.durable_offset().0;
        let model = self.model.streams.get_mut(name).expect("the caller's");
        let may_shrink = model.config.durability == Durability::Memory;
        let is_written = model.config.durability == Durability::Written;
        let model = model.lanes.get_mut(&key).expect("the caller's");
        let at = format!("{name} {key:?}");
        assert!(
            model.acknowledged <= durable,
            "{at}: {} > {durable}",
            model.acknowledged
        );
        assert!(
            durable <= model.next(),
            "{at}: the model has no chunks up to {durable}"
        );
        model.acknowledged = durable;
        let readable = lane.high_watermark().0;
        assert!(
            model.written <= readable.max(durable),
            "{at}: {} > {readable}",
            model.written
        );
        if is_written {
            model.written = readable;
        }

        let mut reader = lane.reader(lane.earliest());
        let earliest = lane.info().earliest.0;
        if !may_shrink {
            assert_eq!(earliest, model.earliest, "{at}");
        }
        // The first chunk is whole.
        let mut chunks = model.chunks.iter();
        let first = chunks.find(|chunk| chunk.end() > earliest);
        let mut expected = first.map_or(earliest, |chunk| chunk.base);
        let bytes_max = 1 << self.rng.u32(6..20);
        loop {
            match reader.read(bytes_max) {
                Ok(Some(read)) => {
                    for chunk in read.chunks() {
                        let chunk = chunk.expect("checked when it came in");
                        let header = chunk.header();
                        assert_eq!(header.base_offset.0, expected, "{at}");
                        compare(model, header.base_offset.0, chunk.bytes(), &at);
                        expected = header.next_offset().0;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(self.disk.has_crashed(), "{at}: {error}");
                    return;
                }
            }
        }
        assert_eq!(expected, durable, "{at}: reading ends early");
    }

    pub fn check_seek(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let durable = lane.durable_offset().0;
        let readable = lane.high_watermark().0;
        let earliest = lane.info().earliest.0;
        let model = &self.model.streams[name].lanes[&key];
        let offset = self.rng.u64(0..=model.next() + 2);
        match lane.seek_offset(Offset(offset)) {
            Ok(cursor) => {
                assert!((earliest..=durable).contains(&offset));
                let read = self.log().read(&cursor, 1);
                match read {
                    Ok(Some(read)) => {
                        let first = read.chunks().next().expect("not empty").expect("whole");
                        let header = first.header();
                        assert!(header.base_offset.0 <= offset && offset <= header.last_offset().0);
                        compare(model, header.base_offset.0, first.bytes(), name);
                    }
                    // A lane without any group has no chunk to read.
                    Ok(None) | Err(LogError::BadCursor { .. }) => assert_eq!(offset, durable),
                    Err(error) => self.excuse(&error),
                }
            }
            Err(LogError::OffsetOutOfRange { .. }) => {
                assert!(offset < earliest || offset > durable);
            }
            Err(error) => self.excuse(&error),
        }

        let stored = || {
            let chunks = model.chunks.iter();
            chunks.filter(|chunk| earliest < chunk.end() && chunk.base < readable)
        };
        let newest = stored().map(|chunk| chunk.timestamp).max().unwrap_or(0);
        let timestamp = match stored().nth(self.rng.usize(0..=stored().count())) {
            Some(chunk) => chunk.timestamp + self.rng.i64(-1..=1),
            None => newest + 1,
        };
        let expected = stored().find(|chunk| chunk.timestamp >= timestamp);
        match lane.seek_timestamp(Timestamp(timestamp)) {
            Ok(found) => assert_eq!(
                found.map(|(_, offset)| offset.0),
                expected.map(|chunk| chunk.base),
                "{name} {key:?} at {timestamp}"
            ),
            Err(error) => self.excuse(&error),
        }
        match lane.record_at(Timestamp(timestamp)) {
            Ok(found) => assert_eq!(
                found.map(|(offset, timestamp)| (offset.0, timestamp.0)),
                expected.map(|chunk| (chunk.base.max(earliest), chunk.timestamp)),
                "{name} {key:?} at {timestamp}"
            ),
            Err(error) => self.excuse(&error),
        }
        let end = self.rng.u64(0..=readable + 1);
        let before = stored().filter(|chunk| chunk.base < end);
        let expected = before.rev().max_by_key(|chunk| chunk.timestamp);
        match lane.newest_record(Offset(end)) {
            // The search may also find deleted records of a group that is still stored.
            Ok(found) if model.is_trimmed => {
                let found = found.map(|(_, timestamp)| timestamp.0);
                assert!(
                    found >= expected.map(|chunk| chunk.timestamp),
                    "{name} {key:?}"
                );
            }
            Ok(found) => assert_eq!(
                found.map(|(offset, timestamp)| (offset.0, timestamp.0)),
                expected.map(|chunk| (chunk.base, chunk.timestamp)),
                "{name} {key:?} before {end}"
            ),
            Err(error) => self.excuse(&error),
        }
    }

    /// Fetches from a random offset, then continues at the end of each fetch.
    pub fn check_fetch(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let readable = lane.high_watermark().0;
        let mut from = self.rng.u64(0..=readable + 2);
        for _ in 0..3 {
            let earliest = lane.info().earliest.0;
            let model = &self.model.streams[name].lanes[&key];
            let end = from + self.rng.u64(..20);
            // The memory for reads from disk is small, and must have room for all pieces.
            let bytes_max = 1 << self.rng.u32(6..17);
            let at_least = match self.rng.bool() {
                true => AtLeast::OneChunk,
                false => AtLeast::Nothing,
            };
            let at =
                format!("{name} {key:?} from {from} to {end}, {bytes_max} bytes, {at_least:?}");
            let fetched = match lane.fetch(Offset(from), Offset(end), bytes_max, at_least) {
                Ok(fetched) => fetched,
                Err(LogError::OffsetOutOfRange { .. }) => {
                    assert!(from < earliest || from > readable, "{at}");
                    return;
                }
                Err(error) => return self.excuse(&error),
            };
            assert!((earliest..=readable).contains(&from), "{at}");
            let mut left = bytes_max;
            let mut expected = model
                .chunks
                .iter()
                .skip_while(|chunk| chunk.end() <= from)
                .take_while(|chunk| from < end && chunk.base < end.min(readable))
                .enumerate()
                .take_while(|(n, chunk)| {
                    let bytes = chunk.bytes.len();
                    let fits = bytes <= left || *n == 0 && at_least == AtLeast::OneChunk;
                    left = left.saturating_sub(bytes);
                    fits
                })
                .map(|(_, chunk)| chunk);
            let mut next = from;
            for piece in &fetched.pieces {
                for chunk in Chunks::new(piece) {
                    let chunk = chunk.expect("whole chunks");
                    let expected = expected.next().unwrap_or_else(|| panic!("{at}: too much"));
                    assert_eq!(chunk.header().base_offset.0, expected.base, "{at}");
                    compare(model, expected.base, chunk.bytes(), &at);
                    next = expected.end();
                }
            }
            assert!(expected.next().is_none(), "{at}: too little");
            assert_eq!(fetched.next.0, next, "{at}");
            let bytes: usize = fetched.pieces.iter().map(|piece| piece.len()).sum();
            assert_eq!(fetched.bytes, bytes, "{at}");
            from = next;
        }
    }

    /// Compares a lane's transactions with the markers in the model's chunks.
    pub fn check_transactions(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let readable = lane.high_watermark().0;
        let earliest = lane.info().earliest.0;
        let model = &self.model.streams[name].lanes[&key];
        let at = format!("{name} {key:?} from {earliest} to {readable}");
        let expected = model.transactions(readable);

        // After a start, the log may have forgotten chunks that retention had removed. Then a transaction
        // seems to begin later, or does not show at all.
        let stable = lane.last_stable_offset().0;
        let known = expected.open.values().filter(|first| **first >= earliest);
        let latest = known.fold(readable, |least, first| least.min(*first));
        let is_clear = expected.open.values().all(|first| *first >= earliest);
        assert!(
            stable <= latest,
            "{at}: stable up to {stable}, not {latest}"
        );
        let is_exact = is_clear && stable == latest;
        let is_clamped = !is_clear && stable >= earliest.min(readable);
        assert!(is_exact || is_clamped, "{at}: stable only up to {stable}");
        if !is_clear && !model.restarted {
            assert_eq!(stable, earliest.min(readable), "{at}: forgotten");
        }

        let from = self.rng.u64(earliest..=readable.max(earliest));
        let to = self.rng.u64(0..=stable);
        let found = match lane.aborted_transactions(Offset(from), Offset(to)) {
            Ok(found) => found,
            Err(error) => return self.excuse(&error),
        };
        let found: Vec<(i64, u64, u64)> = found
            .iter()
            .map(|aborted| {
                let (first, last) = (aborted.first_offset.0, aborted.last_offset.0);
                (aborted.producer.0, first, last)
            })
            .collect();
        let in_range = |aborted: &&(i64, u64, u64)| aborted.2 >= from && aborted.1 < to;
        let expected: Vec<(i64, u64, u64)> =
            expected.aborted.iter().filter(in_range).copied().collect();
        if earliest == 0 || !model.restarted {
            assert_eq!(found, expected, "{at}: {from} to {to}");
        }
        let is_sure = |aborted: &&(i64, u64, u64)| aborted.1 >= earliest;
        for aborted in expected.iter().filter(is_sure) {
            assert!(
                found.contains(aborted),
                "{at}: {aborted:?} of {from} to {to}"
            );
        }
        for (producer, first, last) in &found {
            let is_known = |aborted: &(i64, u64, u64)| {
                aborted.0 == *producer && aborted.1 <= *first && aborted.2 == *last
            };
            let all = model.transactions(u64::MAX).aborted;
            assert!(all.iter().any(is_known), "{at}: {producer} {first} {last}");
        }

        if earliest == 0 || !model.restarted {
            let open: BTreeMap<i64, u64> = lane
                .producers()
                .iter()
                .filter_map(|info| Some((info.producer.0, info.transaction?.first_offset.0)))
                .collect();
            assert_eq!(open, model.transactions(u64::MAX).open, "{at}");
            for info in lane.producers() {
                let (epoch, next) = model.next_of(info.producer.0);
                assert_eq!(info.epoch.0, epoch, "{at}: {info:?}");
                let expected = info.last_sequence.map_or(0, |last| last.0 + 1);
                assert_eq!(expected, next, "{at}: {info:?}");
            }
        }
    }
}

/// Checks that a stored chunk equals the sent one, apart from the base offset.
pub(super) fn compare(lane: &ModelLane, base: u64, stored: &[u8], at: &str) {
    let n = lane.chunks.partition_point(|chunk| chunk.base < base);
    let chunk = lane.chunks.get(n).filter(|chunk| chunk.base == base);
    let chunk = chunk.unwrap_or_else(|| panic!("{at}: the model has no chunk at {base}"));
    // The log sets the offset and the leader epoch.
    assert_eq!(stored[..8], base.to_be_bytes(), "{at}");
    let epoch = chunk.leader_epoch.to_be_bytes();
    assert_eq!(stored[12..16], epoch, "{at}");
    assert!(
        stored[8..12] == chunk.bytes[8..12] && stored[16..] == chunk.bytes[16..],
        "{at}: other bytes at {base}"
    );
}
