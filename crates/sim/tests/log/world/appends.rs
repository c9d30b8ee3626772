//! Appends chunks and markers, and checks the answers.

use std::sync::Arc;

use millstream_base::{ProducerEpoch, ProducerId, Sequence, StreamletIndex};
use millstream_log::{Appended, Durability, LogError, StreamPartition};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Producer};

use super::keys::key_of;
use super::{ModelChunk, Verdict, World};

impl World {
    pub fn make_chunk(
        &mut self,
        count: u64,
        bytes: usize,
        producer: Option<(i64, i16, i32)>,
    ) -> ModelChunk {
        self.make_chunk_of(count, bytes, producer, false)
    }

    pub fn make_chunk_of(
        &mut self,
        count: u64,
        bytes: usize,
        producer: Option<(i64, i16, i32)>,
        is_transactional: bool,
    ) -> ModelChunk {
        self.chunks_made += 1;
        let timestamp = millstream_base::Clock::now(&self.clock);
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(is_transactional);
        let padding = vec![self.chunks_made as u8; (bytes / count as usize).saturating_sub(32)];
        for n in 0..count {
            let mut value = format!("{} {n} ", self.chunks_made).into_bytes();
            value.extend_from_slice(&padding);
            // Some small records delete their key.
            let is_deletion = value.len() < 200 && (self.chunks_made + n).is_multiple_of(4);
            let value = (!is_deletion).then_some(&value[..]);
            let key = key_of(self.chunks_made, n);
            let pushed = builder.push(timestamp, Some(&key), value, &[]);
            pushed.expect("far below the format's bound");
        }
        let producer_fields = producer.map(|(id, epoch, sequence)| Producer {
            id: ProducerId(id),
            epoch: ProducerEpoch(epoch),
            sequence: Sequence(sequence),
        });
        let bytes = builder.finish(producer_fields).expect("it has records");
        ModelChunk {
            base: 0,
            count,
            bytes: Arc::new(bytes.to_vec()),
            timestamp: timestamp.0,
            producer,
            is_transactional,
            marker: None,
            leader_epoch: 0,
        }
    }

    /// Ends a transaction in the lane where its producer appends, and checks the answer.
    pub fn append_marker(
        &mut self,
        name: &str,
        streamlet: u32,
        marker: EndMarker,
    ) -> Option<(StreamPartition, Appended)> {
        self.note(format!("end in {name} {streamlet}: {marker:?}"));
        let stream = self.stream(name);
        let lane = stream
            .partition_for(StreamletIndex(streamlet), marker.producer_id)
            .expect("it exists");
        let timestamp = millstream_base::Clock::now(&self.clock);
        let appended = match lane.append_marker(&marker) {
            Ok(appended) => appended,
            Err(error) => {
                self.excuse(&error);
                return None;
            }
        };
        let key = (streamlet, lane.id().lane.0);
        let model = self.model.streams.get_mut(name).expect("the caller's");
        let is_in_memory = model.config.durability == Durability::Memory;
        let model = model.lanes.get_mut(&key).expect("the model has all lanes");
        assert_eq!(appended.base_offset.0, model.next());
        assert_eq!(appended.next_offset.0, model.next() + 1);
        let bytes = marker.to_chunk(timestamp).expect("it fits");
        model.chunks.push(ModelChunk {
            base: appended.base_offset.0,
            count: 1,
            bytes: Arc::new(bytes),
            timestamp: timestamp.0,
            producer: None,
            is_transactional: true,
            marker: Some(marker),
            leader_epoch: lane.leader_epoch(),
        });
        if is_in_memory {
            model.acknowledged = model.next();
        }
        Some((lane, appended))
    }

    /// Appends a chunk and checks the answer.
    pub fn append(
        &mut self,
        name: &str,
        streamlet: u32,
        mut chunk: ModelChunk,
    ) -> Option<(StreamPartition, Appended)> {
        let (bytes, producer) = (chunk.bytes.len(), chunk.producer);
        self.note(format!(
            "append {bytes} to {name} {streamlet} by {producer:?}"
        ));
        let stream = self.stream(name);
        let index = StreamletIndex(streamlet);
        let result = match chunk.producer {
            // The model needs the lane even if the log refuses the chunk.
            Some((id, ..)) => stream
                .partition_for(index, ProducerId(id))
                .and_then(|lane| lane.append(&chunk.bytes).map(|appended| (lane, appended))),
            None => stream.append(index, &chunk.bytes),
        };
        let (key, appended) = match (&result, chunk.producer) {
            (Ok((lane, appended)), _) => ((streamlet, lane.id().lane.0), Some(*appended)),
            (Err(_), Some((id, ..))) => {
                let lane = stream
                    .partition_for(index, ProducerId(id))
                    .expect("it exists");
                ((streamlet, lane.id().lane.0), None)
            }
            (Err(error), None) => {
                self.excuse_append(name, &chunk, error);
                return None;
            }
        };
        let is_in_memory = self.model.streams[name].config.durability == Durability::Memory;
        let model = self.model.streams.get_mut(name).expect("the caller's");
        let lane = model.lanes.get_mut(&key).expect("the model has all lanes");
        let verdict = match chunk.producer {
            Some(producer) => lane.verdict(producer, chunk.count, 0),
            None => Verdict::Append,
        };
        let lenient = match chunk.producer {
            Some(producer) if lane.restarted => lane.verdict(producer, chunk.count, lane.earliest),
            _ => Verdict::Append,
        };
        let found = match (&result, appended) {
            (_, Some(appended)) if appended.duplicate => Verdict::Duplicate(appended.base_offset.0),
            (_, Some(_)) => Verdict::Append,
            (Err(LogError::ProducerFenced { .. }), _) => Verdict::Fenced,
            (Err(LogError::OutOfOrderSequence { .. }), _) => Verdict::OutOfOrder,
            (Err(error), _) => {
                let error = error.clone();
                self.excuse_append(name, &chunk, &error);
                return None;
            }
            (Ok(_), None) => unreachable!("an answer names the offset"),
        };
        let excused = lane.restarted && lane.earliest > 0 && found == lenient;
        assert!(
            found == verdict || excused,
            "{found:?} for a chunk of {:?} that is {verdict:?} in {name} {key:?}: {:?}",
            chunk.producer,
            lane.chunks
                .iter()
                .map(|c| (c.base, c.count, c.producer))
                .collect::<Vec<_>>(),
        );
        let (lane_handle, appended) = result.ok()?;
        if found == Verdict::Append {
            assert_eq!(appended.base_offset.0, lane.next(), "offsets have no gaps");
            assert_eq!(appended.next_offset.0, lane.next() + chunk.count);
            chunk.base = appended.base_offset.0;
            chunk.leader_epoch = lane_handle.leader_epoch();
            if is_in_memory {
                lane.acknowledged = chunk.end();
            }
            lane.chunks.push(chunk);
        }
        Some((lane_handle, appended))
    }

    fn excuse_append(&self, name: &str, chunk: &ModelChunk, error: &LogError) {
        match error {
            LogError::ChunkTooLarge { bytes_max, .. } => {
                assert!(chunk.bytes.len() as u64 > bytes_max.0, "{name}: {error}");
            }
            error => self.excuse(error),
        }
    }

    pub fn acknowledge(&mut self, name: &str, lane: &StreamPartition, appended: &Appended) -> bool {
        let key = (lane.id().streamlet.0, lane.id().lane.0);
        match lane.acknowledge(appended) {
            Ok(()) => {
                let model = self.model.streams.get_mut(name).expect("the caller's");
                let lane = model.lanes.get_mut(&key).expect("the caller's");
                match model.config.durability {
                    Durability::Sync => {
                        lane.acknowledged = lane.acknowledged.max(appended.next_offset.0);
                    }
                    Durability::Written => {
                        lane.written = lane.written.max(appended.next_offset.0);
                    }
                    Durability::Async | Durability::Memory => {}
                }
                true
            }
            Err(error) => {
                self.excuse(&error);
                false
            }
        }
    }
}
