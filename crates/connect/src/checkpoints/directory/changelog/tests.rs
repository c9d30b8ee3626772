//! A directory's changelogs beside plain maps, through crashes, full disks and damage.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use millstream_flow::{Checkpoints, ShardKey};
use millstream_sim::{OperationKind, Rng, SimDisk, SimRandom};

use super::*;
use crate::checkpoints::directory::CheckpointDir;

mod damage;
mod joins;

const DIR: &str = "/flows/shop";

/// The smallest changes that are joined, in these tests.
const JOIN_AT_LEAST: u64 = 1000;

type Table = BTreeMap<Vec<u8>, Vec<u8>>;

/// A rank with one state element, and the element as it should be.
struct Rank {
    changelog: DirChangelog,
    table: Table,
    /// The bytes of all pushed changes.
    pushed: u64,
}

/// The shard of a rank in these tests: the changelog's part, and the element as a restore must find it.
type Shard = (Vec<u8>, Table);

/// The ranks of a run, which store their checkpoints in turn.
struct Run {
    dir: CheckpointDir,
    ranks: Vec<Rank>,
    complete: u64,
    rng: Rng,
}

fn open(disk: &SimDisk, seed: u64) -> Result<CheckpointDir, BoxError> {
    let random = Arc::new(SimRandom::new(seed));
    Ok(CheckpointDir::open_on(Arc::new(disk.clone()), random, DIR)?)
}

fn key(checkpoint: u64, rank: usize) -> ShardKey {
    ShardKey {
        checkpoint,
        rank: rank as u32,
        run: 0,
    }
}

fn start(rank: usize, ranks: usize, prepared: Option<&[u8]>) -> SinkStart<'_> {
    SinkStart {
        flow: "shop",
        sink: "state.users",
        rank: rank as u32,
        ranks: ranks as u32,
        takes_checkpoints: true,
        prepared,
    }
}

fn restored(changelog: &mut DirChangelog, resumed: u64) -> Result<Table, BoxError> {
    let mut table = Table::new();
    changelog.restore(Some(resumed), &mut |key, value| {
        match value {
            Some(value) => drop(table.insert(key.to_vec(), value.to_vec())),
            None => drop(table.remove(key)),
        }
        Ok(())
    })?;
    Ok(table)
}

impl Rank {
    fn begin(dir: &CheckpointDir, start: &SinkStart<'_>, resumed: u64) -> Result<Rank, BoxError> {
        let mut run = [0; 8];
        dir.random.fill(&mut run)?;
        let run = u64::from_le_bytes(run);
        let mut changelog = DirChangelog::new(dir.files.clone(), "users", run);
        changelog.join_at_least = JOIN_AT_LEAST;
        changelog.recover(start)?;
        let table = restored(&mut changelog, resumed)?;
        Ok(Rank {
            changelog,
            table,
            pushed: 0,
        })
    }

    /// Changes some of the keys below `keys`.
    fn change(&mut self, count: usize, keys: u64, rng: &mut Rng) -> Vec<Change> {
        let mut changes = BTreeMap::new();
        for _ in 0..count {
            let key = rng.u64(0..keys).to_be_bytes().to_vec();
            let value = (rng.u64(0..4) > 0).then(|| {
                let len = rng.usize(0..100);
                (0..len).map(|_| rng.u8(0..=u8::MAX)).collect::<Vec<u8>>()
            });
            match &value {
                Some(value) => drop(self.table.insert(key.clone(), value.clone())),
                None => drop(self.table.remove(&key)),
            }
            changes.insert(key, value);
        }
        let changes = changes.into_iter().map(|(key, value)| Change {
            key,
            value,
            checkpoint: 0,
            expires: None,
        });
        changes.collect()
    }

    fn push(&mut self, mut changes: &[Change]) -> Result<bool, BoxError> {
        let waker = Waker::noop();
        while !changes.is_empty() {
            changes = &changes[self.changelog.push(changes, waker)?..];
        }
        self.changelog.flush(waker)
    }

    /// Writes changes and prepares them. Waits for a join that goes on, so that a run is the same each time.
    fn prepare(&mut self, changes: &[Change], checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        let written = self.push(changes);
        if let Err(error) = written {
            self.changelog.give_up();
            return Err(error);
        }
        let bytes = |change: &Change| change.key.len() + change.value.as_ref().map_or(0, Vec::len);
        self.pushed += changes.iter().map(bytes).sum::<usize>() as u64;
        let prepared = self.changelog.prepare(checkpoint)?;
        while let Some((joining, _)) = &self.changelog.join
            && !joining.is_over()
        {
            thread::yield_now();
        }
        Ok(prepared)
    }
}

impl Run {
    /// Begins from the last complete checkpoint, as a flow does.
    fn begin(disk: &SimDisk, ranks: usize, seed: u64) -> Result<Run, BoxError> {
        let dir = open(disk, seed)?;
        dir.lock()?;
        let shards = dir.list()?;
        let is_complete =
            |number: &u64| (0..ranks).all(|rank| shards.contains(&key(*number, rank)));
        let numbers = shards.iter().map(|key| key.checkpoint);
        let complete = numbers.filter(is_complete).max().unwrap_or(0);
        let mut run = Run {
            ranks: Vec::new(),
            complete,
            rng: Rng::with_seed(seed),
            dir,
        };
        for rank in 0..ranks {
            let shard = match complete {
                0 => None,
                _ => Some(run.shard(complete, rank)?),
            };
            let prepared = shard.as_ref().map(|(prepared, _)| &prepared[..]);
            let begun = Rank::begin(&run.dir, &start(rank, ranks, prepared), complete)?;
            let expected = shard.map_or_else(Table::new, |(_, table)| table);
            assert!(
                begun.table == expected,
                "rank {rank}, checkpoint {complete}"
            );
            run.ranks.push(begun);
        }
        for key in shards {
            if key.checkpoint > complete {
                run.dir.remove(key)?;
            }
        }
        Ok(run)
    }

    fn shard(&self, checkpoint: u64, rank: usize) -> Result<Shard, BoxError> {
        Ok(postcard::from_bytes(&self.dir.get(key(checkpoint, rank))?)?)
    }

    /// Takes a checkpoint: `count` changes on each rank.
    fn checkpoint(&mut self, count: usize, keys: u64) -> Result<(), BoxError> {
        let number = self.complete + 1;
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            let changes = rank.change(count, keys, &mut self.rng);
            let prepared = rank.prepare(&changes, number)?;
            let shard = postcard::to_stdvec(&(prepared, &rank.table))?;
            self.dir.put(key(number, index), &shard)?;
        }
        for rank in &mut self.ranks {
            rank.changelog.commit(number, Waker::noop())?;
        }
        for key in self.dir.list()? {
            if key.checkpoint < number {
                self.dir.remove(key)?;
            }
        }
        self.complete = number;
        Ok(())
    }

    /// Checks that the directory has the files of the present chains, and no others that only take up space.
    fn check_files(&self, disk: &SimDisk) {
        for (path, _) in disk.files() {
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_needed = match Entry::of(name).unwrap() {
                Entry::Lock => true,
                Entry::Unfinished(_) => false,
                Entry::Shard(key) => key.checkpoint == self.complete,
                Entry::State(file) => {
                    let changelog = &self.ranks[file.rank as usize].changelog;
                    let joined = changelog.joined.iter().map(|(link, _)| link);
                    let join = changelog.join.iter().map(|(_, link)| link);
                    let chain = changelog.chain();
                    let current = changelog
                        .current
                        .iter()
                        .map(|it| (it.number, changelog.run));
                    let mut named = chain.iter().chain(joined).chain(join);
                    named.any(|link| changelog.file(link) == file)
                        || current.into_iter().any(|it| it == (file.number, file.run))
                }
            };
            assert!(is_needed, "{name}");
        }
    }
}

/// Two lives of five checkpoints each.
fn lives(disk: &SimDisk, ranks: usize) -> Result<u64, BoxError> {
    let mut complete = 0;
    for life in 0..2 {
        let mut run = Run::begin(disk, ranks, life)?;
        for _ in 0..5 {
            run.checkpoint(25, 40)?;
        }
        complete = run.complete;
    }
    Ok(complete)
}

#[test]
fn a_restore_finds_the_last_complete_checkpoint_after_a_crash_at_any_operation() {
    for ranks in [1, 2, 4] {
        let disk = SimDisk::new(0);
        disk.start_trace();
        assert_eq!(lives(&disk, ranks).unwrap(), 10);
        let has_base = |name: &Path| name.to_str().unwrap().contains("/base.");
        let mut trace = disk.trace().into_iter();
        assert!(trace.any(|it| it.kind == OperationKind::RemoveFile && has_base(&it.path)));
        let operations = disk.operations();
        for operation in (1..=operations).step_by(ranks * ranks) {
            for is_crash in [true, false] {
                let disk = SimDisk::new(operation);
                disk.crash_at(operation);
                assert!(lives(&disk, ranks).is_err());
                let left = match is_crash {
                    true => disk.crash(&mut Rng::with_seed(operation)),
                    false => disk.kill(),
                };
                // It checks the restored tables.
                let begun = Run::begin(&left, ranks, 7);
                let mut run = begun.unwrap_or_else(|error| panic!("{operation}: {error}"));
                for _ in 0..3 {
                    run.checkpoint(25, 40).unwrap();
                }
                run.check_files(&left);
                drop(run);
                Run::begin(&left, ranks, 8).unwrap();
            }
        }
    }
}

/// Also after a failed sync, which loses earlier writes.
#[test]
fn a_failed_checkpoint_loses_no_changes_of_earlier_and_later_ones() {
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let mut run = Run::begin(&disk, 1, seed).unwrap();
        let mut failed = 0;
        for _ in 0..12 {
            let number = run.complete + 1;
            let rank = &mut run.ranks[0];
            let mut changes = rank.change(25, 40, &mut run.rng);
            while run.rng.bool() {
                match run.rng.u64(0..2) {
                    0 => disk.fail_next_sync(|path| path.to_str().unwrap().contains("/changes.")),
                    _ => disk.set_capacity(disk.used_bytes() + run.rng.u64(0..1000)),
                }
                if rank.prepare(&changes, number).is_err() {
                    failed += 1;
                }
                disk.set_capacity(u64::MAX);
                // Newer changes take the places of failed ones; the flow writes each key once.
                let mut all: BTreeMap<_, _> =
                    changes.into_iter().map(|it| (it.key.clone(), it)).collect();
                let newer = rank.change(3, 40, &mut run.rng);
                all.extend(newer.into_iter().map(|it| (it.key.clone(), it)));
                changes = all.into_values().collect();
            }
            disk.fail_next_sync(|_| false);
            let prepared = rank.prepare(&changes, number).unwrap();
            let shard = postcard::to_stdvec(&(prepared, &rank.table)).unwrap();
            run.dir.put(key(number, 0), &shard).unwrap();
            rank.changelog.commit(number, Waker::noop()).unwrap();
            run.complete = number;
            let left = disk.crash(&mut Rng::with_seed(seed));
            assert_eq!(Run::begin(&left, 1, seed).unwrap().complete, number);
        }
        assert!(failed > 0 || seed > 3, "{seed}");
    }
}
