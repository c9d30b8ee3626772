//! The checkpoint that a run resumes from: found, read and checked.

use std::sync::atomic::Ordering;

use super::Shards;
use crate::checkpoint::completeness::newest_complete;
use crate::checkpoint::record::{self, Record, ShardDigest};
use crate::checkpoint::shard::{Head, OtherVersion, decode};
use crate::checkpoint::snapshot::first_logged;
use crate::checkpoint::store::{CheckpointRecords, Resume, ShardKey};
use crate::error::BoxError;
use crate::stage::saved::Saved;

/// Advice about a shard or a record that this program cannot read.
const OTHER_VERSION: &str = "let the version of the program that wrote it finish the flow, or ";
const ANEW: &str = "remove all checkpoints of the flow and start it anew, without resuming";

/// The checkpoint that a run resumes from, as this rank sees it.
pub struct ResumePoint {
    /// The number of the last complete checkpoint, 0 for none.
    pub number: u64,
    /// The run that stored it.
    pub run: u64,
    pub saved: Saved,
}

/// The last checkpoint of a store with records, seen while another run may go on.
pub struct Seen {
    record: Vec<u8>,
    point: ResumePoint,
}

impl Seen {
    pub fn saved(&self) -> &Saved {
        &self.point.saved
    }
}

/// How often a run looks for the last checkpoint while another one replaces it.
const LOOKS_MAX: usize = 10;

impl Shards {
    /// Returns the last checkpoint at this moment, if the store has records and there is any. Nothing is locked: another
    /// run may go on, and remove the shard that its record has named. If that happens each time, nothing is seen.
    pub fn look(&self, resume: Resume) -> Result<Option<Seen>, BoxError> {
        let Some(records) = self.checkpoints.records() else {
            return Ok(None);
        };
        let mut last = records.last()?;
        for _ in 0..LOOKS_MAX {
            let Some(record) = last else {
                break;
            };
            let point = self.resume_from(&record, records, resume);
            last = records.last()?;
            match point {
                Err(_) if last.as_ref() != Some(&record) => {}
                point => return point.map(|point| Some(Seen { record, point })),
            }
        }
        Ok(None)
    }

    /// Returns the checkpoint to resume from, if there is one, as this rank sees it. Rank 0 has [locked](Self::lock) the
    /// store. It does not read shards again that the rank has seen before.
    pub fn resume_point(
        &self,
        resume: Resume,
        seen: Option<Seen>,
    ) -> Result<Option<ResumePoint>, BoxError> {
        if let Some(records) = self.checkpoints.records()
            && let Some(record) = records.last()?
        {
            return match seen {
                Some(seen) if seen.record == record => Ok(Some(seen.point)),
                _ => self.resume_from(&record, records, resume).map(Some),
            };
        }
        let mut shards = self.checkpoints.list()?;
        // Others are of runs that have stored no record: they never counted.
        shards.retain(|key| key.run == 0);
        let newest = match resume {
            Resume::Never => return self.check_empty(&shards).map(|()| None),
            Resume::IfAny | Resume::Always => newest_complete(&shards, self.ranks),
        };
        match newest {
            Some(number) => self.read(number, &shards).map(Some),
            None if resume == Resume::IfAny => self.check_unfinished(&shards).map(|()| None),
            None => Err(self.none_complete(&shards)),
        }
    }

    /// Reads this rank's shard of the checkpoint that a record names.
    fn resume_from(
        &self,
        bytes: &[u8],
        records: &dyn CheckpointRecords,
        resume: Resume,
    ) -> Result<ResumePoint, BoxError> {
        let place = records.describe();
        let record = record::decode(bytes).map_err(|error| {
            let advice = match error.is::<OtherVersion>() {
                true => format!("{OTHER_VERSION}{ANEW}"),
                false => ANEW.to_owned(),
            };
            format!("the record of the last checkpoint, {place}, cannot be read: {error}; {advice}")
        })?;
        let Record {
            head, checkpoint, ..
        } = &record;
        if resume == Resume::Never {
            return Err(format!(
                "there is a checkpoint, number {checkpoint}, of an earlier run: {place}; resume from it, or remove it first"
            )
            .into());
        }
        self.check_head(*checkpoint, head)?;
        let key = ShardKey {
            checkpoint: *checkpoint,
            rank: self.rank,
            run: head.run,
        };
        let shard = self.checkpoints.get(key).and_then(|shard| {
            let (found, named) = (ShardDigest::of(&shard), record.shards[self.rank as usize]);
            match found == named {
                true => Ok(decode(&shard)?.1),
                false => Err(format!(
                    "it has {} bytes and the checksum {:08x}, and the record names {} bytes and {:08x}",
                    found.bytes, found.crc32c, named.bytes, named.crc32c
                )
                .into()),
            }
        });
        let saved = shard.map_err(|error| {
            let advice = match error.is::<OtherVersion>() {
                true => format!("{OTHER_VERSION}{ANEW}"),
                false => format!("bring back a copy of that shard, or {ANEW}"),
            };
            let shard = self.checkpoints.describe(key);
            format!("the checkpoint {checkpoint} cannot be read: {shard}: {error}; {advice}")
        })?;
        self.resumed_run.store(head.run, Ordering::Relaxed);
        Ok(ResumePoint {
            number: *checkpoint,
            run: head.run,
            saved,
        })
    }

    fn check_head(&self, number: u64, head: &Head) -> Result<(), BoxError> {
        match (head.flow.as_str(), head.ranks) == (&self.flow, self.ranks) {
            true => Ok(()),
            false => Err(format!(
                "the checkpoint {number} is of flow \"{}\" on {} ranks, and this is \"{}\" on {}",
                head.flow, head.ranks, self.flow, self.ranks
            )
            .into()),
        }
    }

    /// Checks that the store holds no shard that could be mixed with shards of a new run.
    fn check_empty(&self, shards: &[ShardKey]) -> Result<(), BoxError> {
        match shards.iter().max() {
            None => Ok(()),
            Some(key) => Err(format!(
                "there is a checkpoint, number {}, of an earlier run: {}; resume from it, or remove it first",
                key.checkpoint,
                self.checkpoints.describe(*key)
            )
            .into()),
        }
    }

    /// Reads this rank's shard of a checkpoint. `shards` are all shards in the store.
    fn read(&self, number: u64, shards: &[ShardKey]) -> Result<ResumePoint, BoxError> {
        let key = ShardKey {
            checkpoint: number,
            rank: self.rank,
            run: 0,
        };
        let shard = self.checkpoints.get(key).and_then(|shard| decode(&shard));
        let (head, saved) = shard.map_err(|error| self.damaged(key, shards, &error))?;
        self.check_head(number, &head)?;
        Ok(ResumePoint {
            number,
            run: head.run,
            saved,
        })
    }

    /// Returns the error of a damaged shard, with advice. The flow takes no older checkpoint by itself:
    /// results that came after it would come again.
    fn damaged(&self, key: ShardKey, shards: &[ShardKey], error: &BoxError) -> BoxError {
        let ShardKey { checkpoint, .. } = key;
        let shard = self.checkpoints.describe(key);
        let advice = self.advice(key, shards, error);
        format!("the checkpoint {checkpoint} cannot be read: {shard}: {error}; {advice}").into()
    }

    fn advice(&self, key: ShardKey, shards: &[ShardKey], error: &BoxError) -> String {
        if error.is::<OtherVersion>() {
            return format!("{OTHER_VERSION}{ANEW}");
        }
        let older = shards
            .iter()
            .filter(|shard| shard.checkpoint < key.checkpoint);
        let older: Vec<ShardKey> = older.copied().collect();
        let Some(number) = newest_complete(&older, self.ranks) else {
            return format!(
                "no older checkpoint is complete: bring back a copy of that shard, or {ANEW}"
            );
        };
        let older = ShardKey {
            checkpoint: number,
            rank: self.rank,
            run: 0,
        };
        let older = self.checkpoints.get(older).and_then(|shard| decode(&shard));
        // Changelogs have the changes since then already, and would get them twice.
        if !self.checkpoints.changelogs_go_back()
            && let Ok((_, saved)) = &older
            && let Some(state) = first_logged(saved)
        {
            return format!(
                "the older checkpoint {number} does not fit the changelog of state \"{state}\", which has later changes: \
                 bring back a copy of that shard, or {ANEW}"
            );
        }
        format!(
            "remove that shard to go on from checkpoint {number}, the newest one that is complete without it; \
             results that came after checkpoint {number} come again"
        )
    }

    fn none_complete(&self, shards: &[ShardKey]) -> BoxError {
        let Some(newest) = shards.iter().max() else {
            let first = self.first_shard();
            return format!("there is no checkpoint to resume from: {first} is not there").into();
        };
        let of_newest = shards
            .iter()
            .filter(|key| key.checkpoint == newest.checkpoint);
        let ranks: Vec<_> = of_newest.map(|key| key.rank.to_string()).collect();
        format!(
            "there is no checkpoint with the shards of all {} ranks to resume from; the newest, {}, has only the shards of {} ({}), such as {}",
            self.ranks,
            newest.checkpoint,
            match ranks.len() {
                1 => "one rank".to_owned(),
                count => format!("{count} ranks"),
            },
            ranks.join(", "),
            self.checkpoints.describe(*newest)
        )
        .into()
    }

    /// Describes where this rank's shard of a first checkpoint would be.
    fn first_shard(&self) -> String {
        self.checkpoints.describe(ShardKey {
            checkpoint: 1,
            rank: self.rank,
            run: 0,
        })
    }

    /// Checks that shards of which no checkpoint is complete are of this flow's first checkpoint, which a crash left
    /// incomplete. Each rank checks its own ones, which no other rank removes.
    fn check_unfinished(&self, shards: &[ShardKey]) -> Result<(), BoxError> {
        if shards.iter().any(|key| key.rank >= self.ranks) {
            return Err(self.none_complete(shards));
        }
        let own = shards.iter().filter(|key| key.rank == self.rank);
        own.map(|key| key.checkpoint)
            .try_for_each(|number| self.read(number, shards).map(drop))
    }
}
