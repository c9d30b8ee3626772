//! Consumes a stream by a shared group, and checks that each chunk is consumed once.

use millstream_base::{Cursor, GroupId, StreamletIndex};
use millstream_log::{Durability, LogError};

use super::{World, reads::compare};

impl World {
    pub fn hand_out(&mut self, name: &str, streamlet: u32, consumer: &str, groups_max: usize) {
        let application = self.log().shared_group(name, "app").expect("it exists");
        let cursors = application
            .next_groups(StreamletIndex(streamlet), consumer, groups_max)
            .expect("it exists");
        let model = self.model.streams.get_mut(name).expect("the caller's");
        for cursor in cursors {
            let given = (consumer.to_owned(), cursor);
            let key = (streamlet, cursor.group);
            let other = model.consumed.given.insert(key, given);
            assert!(other.is_none(), "group {} is with {other:?}", cursor.group);
        }
    }

    /// Lets a consumer read further in all of its groups, and commit.
    pub fn consume(&mut self, name: &str, consumer: &str) {
        let application = self.log().shared_group(name, "app").expect("it exists");
        let mine: Vec<((u32, GroupId), Cursor)> = self.model.streams[name]
            .consumed
            .given
            .iter()
            .filter(|(_, (holder, _))| holder == consumer)
            .map(|(key, (_, cursor))| (*key, *cursor))
            .collect();
        for (key, cursor) in mine {
            let bytes_max = 1 << self.rng.u32(6..20);
            let read = match self.log().read(&cursor, bytes_max) {
                Ok(read) => read,
                Err(LogError::CursorRemoved { .. } | LogError::BadCursor { .. }) => {
                    let model = &self.model.streams[name];
                    let removed = model.lanes.values().any(|lane| lane.earliest > 0)
                        || model.config.durability == Durability::Memory;
                    assert!(removed, "{name}: {cursor} is gone");
                    let _ = application.commit(consumer, &cursor);
                    let model = self.model.streams.get_mut(name).expect("the caller's");
                    model.consumed.given.remove(&key);
                    continue;
                }
                Err(error) => {
                    self.excuse(&error);
                    continue;
                }
            };
            let model = self.model.streams.get_mut(name).expect("the caller's");
            let mut next = cursor;
            let mut chunks = Vec::new();
            if let Some(read) = read {
                let lane_key = (key.0, read.lane.0);
                let lane = model
                    .lanes
                    .get_mut(&lane_key)
                    .expect("the model has all lanes");
                for chunk in read.chunks() {
                    let chunk = chunk.expect("checked when it came in");
                    let base = chunk.header().base_offset.0;
                    compare(lane, base, chunk.bytes(), name);
                    lane.acknowledged = lane.acknowledged.max(chunk.header().next_offset().0);
                    let id = (lane_key.0, lane_key.1, base);
                    assert!(
                        !model.consumed.done.contains(&id),
                        "{name}: {id:?} came twice"
                    );
                    chunks.push(id);
                }
                next = read.next;
            }
            let committed = application.commit(consumer, &next);
            let note = format!("{consumer} commits {next} of {name}: {committed:?}, {chunks:?}");
            self.notes.add(&self.disk, note);
            let is_over = matches!(committed, Err(LogError::NotHandedOut { .. }));
            if let Err(error) = &committed
                && !is_over
            {
                self.excuse(error);
            }
            let model = self.model.streams.get_mut(name).expect("the caller's");
            if is_over {
                assert!(chunks.is_empty(), "{name}: {key:?} was done too early");
                model.consumed.given.remove(&key);
                continue;
            }
            match committed {
                Ok(()) => model.consumed.done.extend(chunks),
                Err(_) => model.consumed.maybe.extend(chunks),
            }
            model
                .consumed
                .given
                .insert(key, (consumer.to_owned(), next));
        }
    }

    pub fn release(&mut self, name: &str, consumer: &str) {
        let application = self.log().shared_group(name, "app").expect("it exists");
        application.release(consumer);
        let model = self.model.streams.get_mut(name).expect("the caller's");
        model
            .consumed
            .given
            .retain(|_, (holder, _)| holder != consumer);
    }
}
