//! Removes old records, by retention and on request, and checks the remaining ones.

use millstream_base::Offset;
use millstream_log::{Durability, LogError, StreamPartition};

use super::{ModelChunk, World, lane_of};

impl World {
    pub fn retain(&mut self) {
        self.note("retain".to_owned());
        let result = self.log().apply_retention();
        if let Err(error) = &result {
            self.excuse(error);
        }
        let now = millstream_base::Clock::now(&self.clock).0;
        for (name, key) in self.lanes() {
            let lane = lane_of(&self.stream(&name), key);
            let stream = self.model.streams.get_mut(&name).expect("listed");
            let config = &stream.config;
            let model = stream.lanes.get_mut(&key).expect("listed");
            let earliest = lane.info().earliest.0;
            assert!(
                earliest >= model.earliest,
                "{name}: removed records are back"
            );
            let is_boundary = earliest == model.earliest
                || earliest == model.next()
                || model.chunks.iter().any(|chunk| chunk.base == earliest);
            assert!(is_boundary, "{name}: part of a group is removed");
            if config.durability == Durability::Memory {
                model.earliest = earliest;
                continue;
            }
            let left = lane.info().bytes;
            let too_large = config.retention.is_some_and(|keep| left >= keep.0);
            let is_old = |chunk: &ModelChunk| {
                let keep_ms = config.retention_ms.unwrap_or(u64::MAX);
                chunk.timestamp < now.saturating_sub_unsigned(keep_ms)
            };
            let gone = |chunk: &&ModelChunk| (model.earliest..earliest).contains(&chunk.base);
            let all_old = model.chunks.iter().filter(gone).all(is_old);
            assert!(all_old || too_large, "{name}: removed too much");
            model.earliest = earliest;
            if result.is_ok() && !self.faults.failing {
                model.removed = earliest;
            }
        }
    }

    /// Deletes the records before an offset of one lane, and usually of a second one, too.
    pub fn delete_some(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let mut keys = vec![key];
        let all: Vec<(u32, u32)> = self.model.streams[name].lanes.keys().copied().collect();
        let other = all[self.rng.usize(..all.len())];
        if other != key {
            keys.push(other);
        }
        let to = |key: &(u32, u32)| {
            let durable = lane_of(&stream, *key).durable_offset().0;
            (*key, self.rng.u64(0..=durable + 1))
        };
        let to: Vec<((u32, u32), u64)> = keys.iter().map(to).collect();
        self.delete_before(name, &to);
    }

    /// Deletes the records before offsets of lanes, and checks the answers.
    pub fn delete_before(&mut self, name: &str, to: &[((u32, u32), u64)]) {
        let stream = self.stream(name);
        let lane = |(key, to): &((u32, u32), u64)| (lane_of(&stream, *key), Offset(*to));
        let deletions: Vec<(StreamPartition, Offset)> = to.iter().map(lane).collect();
        let keys: Vec<(u32, u32)> = to.iter().map(|(key, _)| *key).collect();
        self.note(format!("delete of {name}: {to:?}"));
        let lanes = deletions.iter();
        let durable: Vec<Offset> = lanes.map(|(lane, _)| lane.durable_offset()).collect();
        let results = self.log().delete_before(&deletions);
        let deletions = deletions.iter().zip(durable);
        for ((key, ((lane, offset), durable)), result) in keys.iter().zip(deletions).zip(results) {
            let at = format!("{name} {key:?} before {offset}");
            let found = lane.info().earliest.0;
            let is_in_memory = self.model.streams[name].config.durability == Durability::Memory;
            if let Err(error) = &result {
                match error {
                    LogError::OffsetOutOfRange { .. } => assert!(*offset > durable, "{at}"),
                    error => self.excuse(error),
                }
            }
            let model = self.model.streams.get_mut(name).expect("the caller's");
            let model = model.lanes.get_mut(key).expect("the model has all lanes");
            assert!(found >= model.earliest, "{at}: removed records are back");
            match result {
                Ok(earliest) => {
                    assert_eq!(earliest.0, found, "{at}");
                    let is_right = found == offset.0.max(model.earliest);
                    assert!(is_right || is_in_memory, "{at}: begins with {found}");
                    model.is_trimmed |= found > model.earliest;
                    model.removed = found;
                }
                Err(_) => {
                    // The log may have removed whole groups to make room.
                    assert!(
                        found == model.earliest || found <= offset.0,
                        "{at}: {found}"
                    );
                    model.maybe_trimmed = model.maybe_trimmed.max(offset.0);
                }
            }
            model.earliest = found;
        }
    }

    /// All lanes of existing streams.
    pub fn lanes(&self) -> Vec<(String, (u32, u32))> {
        let streams = self.model.streams.iter();
        streams
            .filter(|(_, stream)| !stream.maybe_deleted)
            .flat_map(|(name, stream)| stream.lanes.keys().map(|key| (name.clone(), *key)))
            .collect()
    }
}
