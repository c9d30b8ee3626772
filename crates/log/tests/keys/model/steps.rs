//! The steps of a history.

use std::time::Duration;

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_log::{KEYED_CLOCK, LogError, StreamConfig};
use millstream_record::{Compression, EndMarker, Producer, TransactionEnd};

use super::partition::{Batch, Marker, ModelPartition, ModelRecord, Verdict};
use super::{PARTITIONS_MAX, PRODUCERS, TRANSACTIONAL, World, add};
use crate::{Record, tagged_chunk_of, while_not_keyed};

/// Key and value.
type OwnedRecord = (Option<Vec<u8>>, Option<Vec<u8>>);

impl World<'_> {
    pub fn step(&mut self) -> Result<(), LogError> {
        let n = self.rng.usize(..self.partitions.len());
        let step = self.rng.u8(..100);
        self.note(format!("step {step} of partition {n}"));
        match step {
            0..=35 => self.append(n)?,
            36 => self.make_hold()?,
            37..=38 => self.check_holds()?,
            39 => self.end_hold()?,
            40 => self.check_tags(n)?,
            41 => self.change_indexes()?,
            42..=48 => self.change(n)?,
            49..=60 => self.end_transaction(n)?,
            61..=66 => self.rest(),
            67..=70 => {
                self.log().persist();
                self.log().evict();
                self.rest();
            }
            71..=73 => self.delete(n)?,
            74..=76 => add(&self.seen.removed_groups, self.log().apply_retention()?),
            77..=79 => self.check_some(n)?,
            80 => self.check_tags(n)?,
            81 => self.check_versions(n)?,
            82..=85 => self.compact()?,
            86 => self.compact_due_lanes()?,
            87 => self.check_log(n)?,
            88 => self.grow()?,
            89 => self.check()?,
            90 => self.damage_key_files(),
            91 => self.be_not_keyed_for_a_moment()?,
            92..=94 => self.pass_time()?,
            95 => self.fill_disk(),
            96 => self.make_room(),
            97 => self.reopen(),
            98 => self.crash(),
            _ => self.crash_at(300),
        }
        self.note_durable()
    }

    /// Lets time pass on the wall clock, and on the stream's own clock some time later.
    fn pass_time(&mut self) -> Result<(), LogError> {
        let time = Duration::from_millis(self.rng.u64(..5_000));
        self.machine.clock.advance(time);
        let Some(before) = self.keyed_clock else {
            return Ok(());
        };
        let clock = self.rng.i64(before..=self.now_ms().max(before));
        self.maybe_keyed_clocks.push(clock);
        let setting = (KEYED_CLOCK.to_owned(), clock.to_string());
        let alter = |config: &mut StreamConfig| config.settings.extend([setting]);
        self.log().alter_stream("s", alter)?;
        self.keyed_clock = Some(clock);
        self.maybe_keyed_clocks.clear();
        Ok(())
    }

    fn append(&mut self, n: usize) -> Result<(), LogError> {
        let id = self.rng.i64(0..=PRODUCERS);
        // Some chunks have records without a key, and are refused.
        let may_lack_keys = self.rng.u8(..30) == 0;
        let partition = self.partition(n)?;
        let batch = self.draw_batch(n, id);
        let records: Vec<OwnedRecord> = (0..batch.count)
            .map(|_| {
                let key = self.rng.choice(&self.keys).cloned();
                let key = key.filter(|_| !may_lack_keys || self.rng.u8(..8) > 0);
                let bytes = match self.rng.u8(..10) {
                    0 => 0,
                    1..=4 => self.rng.usize(..3_000),
                    _ => self.rng.usize(..60),
                };
                let mut value = vec![0; bytes];
                self.rng.fill(&mut value);
                let value = (self.rng.u8(..4) > 0).then_some(value);
                (key, value)
            })
            .collect();
        let compression = [
            Compression::None,
            Compression::Gzip,
            Compression::Snappy,
            Compression::Lz4,
            Compression::Zstd,
        ][self.rng.usize(..5)];
        let borrowed: Vec<Record<'_>> = records
            .iter()
            .map(|(key, value)| (key.as_deref(), value.as_deref()))
            .collect();
        let producer = (id > 0).then_some(Producer {
            id: ProducerId(id),
            epoch: ProducerEpoch(batch.epoch),
            sequence: Sequence(batch.sequence),
        });
        let timestamp = self.now_ms() - self.rng.i64(0..1_000);
        let expires = (self.rng.u8(..3) == 0).then(|| self.now_ms() + self.rng.i64(-500..8_000));
        let tags = self.draw_tags(records.len());
        let chunk = tagged_chunk_of(
            &borrowed,
            &tags,
            compression,
            (producer, batch.is_transactional),
            Timestamp(timestamp),
            expires,
        );
        let has_all_keys = records.iter().all(|(key, _)| key.is_some());
        let answer = match partition.append(&chunk) {
            Err(LogError::NoKey { .. }) if !has_all_keys => return Ok(()),
            Err(LogError::ProducerFenced { .. }) => Verdict::Fenced,
            Err(LogError::OutOfOrderSequence { .. }) => Verdict::OutOfOrder,
            Err(error) => return Err(error),
            Ok(appended) if appended.duplicate => Verdict::Duplicate(appended.base_offset.0),
            Ok(appended) => {
                assert_eq!(appended.base_offset.0, self.partitions[n].next);
                Verdict::Append
            }
        };
        self.check_answer(&self.partitions[n], &batch, answer);
        self.note(format!("{batch:?}: {answer:?}"));
        if answer != Verdict::Append {
            return Ok(());
        }
        assert!(has_all_keys);
        let model = &mut self.partitions[n];
        let offsets = batch.base..;
        let stored =
            offsets
                .zip(records.into_iter().zip(tags))
                .map(|(offset, ((key, value), tags))| ModelRecord {
                    offset,
                    key: key.expect("all have one"),
                    value,
                    tags,
                    producer: batch.is_transactional.then_some(id),
                    timestamp,
                    expires,
                });
        model.records.extend(stored);
        model.next += batch.count;
        model.batches.push(batch);
        Ok(())
    }

    /// Draws a producer's next chunk, or one that is repeated, out of order or of an old epoch.
    fn draw_batch(&mut self, n: usize, id: i64) -> Batch {
        let model = &self.partitions[n];
        let (epoch, sequence) = model.next_of(id);
        let next = Batch {
            producer: id,
            epoch,
            sequence,
            base: model.next,
            count: self.rng.u64(1..20),
            is_transactional: TRANSACTIONAL.contains(&id),
        };
        let is_first = (epoch, sequence) == (0, 0);
        match self.rng.u8(..20) {
            _ if id == 0 || is_first => next,
            0..=2 => {
                let remembered: Vec<&Batch> = model.remembered(id).collect();
                let repeated = self.rng.choice(remembered);
                repeated.map_or(next, |known| Batch {
                    base: next.base,
                    ..*known
                })
            }
            // The first chunk of an epoch may have any sequence.
            3 if sequence > 0 => Batch {
                sequence: sequence + 3,
                ..next
            },
            4 if epoch > 0 => Batch {
                epoch: epoch - 1,
                ..next
            },
            _ => next,
        }
    }

    /// Duplicates are found, and old producers are fenced, whatever was compacted.
    fn check_answer(&self, model: &ModelPartition, batch: &Batch, answer: Verdict) {
        match answer {
            Verdict::Duplicate(_) => add(&self.seen.duplicates, 1),
            Verdict::Fenced | Verdict::OutOfOrder => add(&self.seen.refused_chunks, 1),
            Verdict::Append => {}
        }
        if batch.producer == 0 {
            return assert_eq!(answer, Verdict::Append);
        }
        let right = model.verdict(batch);
        assert!(
            answer == right,
            "{answer:?} to {batch:?} in place of {right:?}"
        );
    }

    fn end_transaction(&mut self, n: usize) -> Result<(), LogError> {
        let id = self.rng.i64(TRANSACTIONAL);
        let is_abort = self.rng.bool();
        let fences = self.rng.u8(..5) == 0;
        self.append_marker(n, id, is_abort, fences)
    }

    pub fn append_marker(
        &mut self,
        n: usize,
        id: i64,
        is_abort: bool,
        fences: bool,
    ) -> Result<(), LogError> {
        let partition = self.partition(n)?;
        let epoch = self.partitions[n].next_of(id).0 + i16::from(fences);
        let marker = EndMarker {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(epoch),
            end: match is_abort {
                true => TransactionEnd::Abort,
                false => TransactionEnd::Commit,
            },
            coordinator_epoch: 0,
        };
        let appended = partition.append_marker(&marker)?;
        self.note(format!("at {}: {marker:?}", appended.base_offset));
        let model = &mut self.partitions[n];
        assert_eq!(appended.base_offset.0, model.next);
        model.markers.push(Marker {
            offset: model.next,
            producer: id,
            epoch,
            is_abort,
        });
        model.next += 1;
        // The transaction is open until its marker is durable.
        self.rest();
        Ok(())
    }

    /// Makes a pass over each partition. Some meet a crash or a full disk.
    fn compact(&mut self) -> Result<(), LogError> {
        self.rest();
        let is_calm = !self.is_disk_full && !self.will_crash;
        match self.rng.u8(..6) {
            0 if is_calm => self.crash_at(50),
            1 if is_calm => {
                let room = self.rng.u64(..20_000);
                self.machine
                    .disk
                    .set_capacity(self.machine.disk.used_bytes() + room);
                self.is_disk_full = true;
            }
            _ => {}
        }
        let before: Vec<_> = (0..self.partitions.len())
            .map(|n| self.expected(n))
            .collect::<Result<_, _>>()?;
        self.note_pass();
        let compacted = self.log().compact();
        self.note(format!("compacted {compacted:?}"));
        self.note_pass();
        let is_filled = is_calm && self.is_disk_full;
        if is_filled {
            add(
                &self.seen.full_disks_in_passes,
                u64::from(compacted.is_err()),
            );
        }
        if let Ok(report) = &compacted {
            add(&self.seen.compacted_groups, report.groups_before);
            assert!(report.groups_after <= report.groups_before);
        }
        if self.machine.disk.has_crashed() {
            add(&self.seen.crashes_in_passes, 1);
        }
        self.survive(compacted.map(drop));
        if is_filled {
            self.make_room();
        }
        for (n, before) in before.into_iter().enumerate() {
            let after = self.expected(n)?;
            assert!(
                self.has_restarted(n) || after == before,
                "a pass changes no value"
            );
            self.check_log(n)?;
        }
        self.check_holds()
    }

    fn has_restarted(&self, n: usize) -> bool {
        self.partitions[n].has_restarted
    }

    /// Lets compaction compact the lanes that it finds due.
    fn compact_due_lanes(&mut self) -> Result<(), LogError> {
        for _ in 0..self.rng.usize(1..30) {
            self.log().compact_step();
            self.log().step();
        }
        self.note_pass();
        (0..self.partitions.len()).try_for_each(|n| self.check_log(n))
    }

    /// Takes note that a pass begins, or has ended.
    pub fn note_pass(&mut self) {
        for n in 0..self.partitions.len() {
            // After a crash, a start finds no more records than these.
            let model = &mut self.partitions[n];
            model.passed_to = model.passed_to.max(model.next);
        }
        let retention = self.delete_retention.as_millis() as i64;
        let may_go_at = self.now_ms() + retention;
        self.partitions
            .iter_mut()
            .for_each(|model| model.note_pass(may_go_at));
    }

    fn delete(&mut self, n: usize) -> Result<(), LogError> {
        self.rest();
        let partition = self.partition(n)?;
        let (earliest, end) = (partition.earliest_offset().0, partition.durable_offset().0);
        let to = self.rng.u64(earliest..=end.min(earliest + 200));
        self.note(format!("delete before {to} of {earliest}..{end}"));
        let deleted = self.log().delete_before(&[(partition, Offset(to))]);
        let model = &mut self.partitions[n];
        model.maybe_deleted_to = model.maybe_deleted_to.max(to);
        assert_eq!(deleted[0].clone()?, Offset(to));
        model.deleted_to = to;
        Ok(())
    }

    /// Adds a partition while the stream is not keyed: keys get other owners.
    fn grow(&mut self) -> Result<(), LogError> {
        let partitions = self.partitions.len() as u32 + 1;
        if partitions <= PARTITIONS_MAX && !self.is_disk_full && !self.will_crash {
            let log = self.log();
            while_not_keyed(log, || log.grow_stream("s", 1, partitions))?;
            self.partitions.push(ModelPartition::default());
        }
        Ok(())
    }

    /// Makes a stream that was compacted a plain one, which no pass touches, and back.
    fn be_not_keyed_for_a_moment(&mut self) -> Result<(), LogError> {
        if self.is_disk_full || self.will_crash {
            return Ok(());
        }
        let n = self.rng.usize(..self.partitions.len());
        let (log, partition) = (self.log(), self.partition(n)?);
        while_not_keyed(log, || {
            let before = log.stats().compaction.passes;
            let reported = log.compact().unwrap();
            (0..20).for_each(|_| _ = log.compact_step());
            assert_eq!(
                (reported.groups_before, log.stats().compaction.passes),
                (0, before)
            );
            assert!(matches!(
                partition.get(b"k"),
                Err(LogError::NotKeyed { .. })
            ));
        });
        self.check_some(n)
    }

    /// Removes some key files, and changes some bits of others.
    pub fn damage_key_files(&mut self) {
        let endings = ["keys", "by-tag", "by-other"];
        let paths = endings.map(|ending| self.machine.files(ending)).concat();
        for path in paths {
            let len = self
                .machine
                .disk
                .read_file(&path)
                .map_or(0, |bytes| bytes.len());
            let disk = &self.machine.disk;
            match self.rng.u8(..12) {
                0 => disk.remove(&path),
                1 => disk.truncate(&path, self.rng.usize(..=len)),
                2 if len > 0 => disk.flip_bit(&path, self.rng.u64(..len as u64 * 8)),
                _ => Ok(()),
            }
            .expect("it is there");
        }
    }
}
