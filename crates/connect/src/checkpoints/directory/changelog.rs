//! The changelog of a state element on one rank, in a directory: a base, and the changes since.

use std::task::Waker;

use millstream_flow::{BoxError, Change, Changelog, RestoreChange, Sink, SinkStart};

use super::blocks::{BlockReader, BlockWriter, Extent, Record};
use super::chain::{Chain, Link, bytes, changes, decode, encode};
use super::error::CheckpointDirError;
use super::files::Files;
use super::join::{Join, Joining};
use super::names::{Entry, Kind, StateFile, element_name};
use crate::checkpoints::changelog::{Unread, text_of_key};

/// Changes are joined into a new base when they are as large as the base, and at least this large: so all that joins write
/// is at most twice the changes and this.
const JOIN_BYTES_MIN: u64 = 1 << 20;

/// The files of a chain beyond which they are joined, whatever their size. Each run begins a new one.
const FILES_MAX: usize = 8;

/// Bytes that a restore reads at once, at least.
const READ_BYTES: usize = 256 << 10;

/// Appends changes to files, and joins these from time to time. No file is changed that an earlier run has written.
pub struct DirChangelog {
    files: Files,
    /// The name of the element in names of files.
    element: String,
    rank: u32,
    run: u64,
    /// The number of the run's next file.
    next: u64,
    /// The files that take no more changes.
    sealed: Chain,
    /// The file that takes changes, once there are some.
    current: Option<Current>,
    /// Files that were joined, each with the first checkpoint that does not need it.
    joined: Vec<(Link, u64)>,
    /// The last complete checkpoint, …
    complete: u64,
    /// … and the one before, once this run has completed one: its shards may still be there.
    before: Option<u64>,
    /// The join of all sealed files that goes on, and its new base. Meanwhile no further file is sealed.
    join: Option<(Joining, Link)>,
    /// The bytes of changes from which on they are joined, …
    join_at: u64,
    /// … but at least these.
    join_at_least: u64,
    /// Whether the last join has failed.
    has_failed: bool,
    /// The event time that a complete checkpoint has passed.
    passed: Option<i64>,
    /// Whether the files of earlier runs are removed that no checkpoint of this one names.
    has_swept: bool,
}

struct Current {
    number: u64,
    writer: BlockWriter,
    /// The part that the last prepared checkpoint names.
    prepared: Extent,
    /// Whether its name is durable.
    is_there: bool,
}

impl DirChangelog {
    pub fn new(files: Files, element: &str, run: u64) -> DirChangelog {
        DirChangelog {
            files,
            element: element_name(element),
            rank: 0,
            run,
            next: 0,
            sealed: Chain::new(),
            current: None,
            joined: Vec::new(),
            complete: 0,
            before: None,
            join: None,
            join_at: 0,
            join_at_least: JOIN_BYTES_MIN,
            has_failed: false,
            passed: None,
            has_swept: false,
        }
    }

    fn file(&self, link: &Link) -> StateFile {
        StateFile {
            kind: match link.is_base {
                true => Kind::Base,
                false => Kind::Changes,
            },
            rank: self.rank,
            element: self.element.clone(),
            run: link.run,
            number: link.number,
        }
    }

    fn new_link(&mut self, is_base: bool) -> Link {
        self.next += 1;
        Link {
            is_base,
            run: self.run,
            number: self.next,
            content: Extent::default(),
        }
    }

    fn current(&mut self) -> Result<&mut Current, CheckpointDirError> {
        let current = match self.current.take() {
            Some(current) => current,
            None => {
                let link = self.new_link(false);
                let path = self.files.state_path(&self.file(&link));
                Current {
                    number: link.number,
                    writer: BlockWriter::new(&path, self.files.create(&path)?),
                    prepared: Extent::default(),
                    is_there: false,
                }
            }
        };
        Ok(self.current.insert(current))
    }

    /// Returns the files as of the last prepared checkpoint.
    fn chain(&self) -> Chain {
        let current = self.current.as_ref().map(|current| Link {
            is_base: false,
            run: self.run,
            number: current.number,
            content: current.prepared,
        });
        let current = current.filter(|link| link.content.bytes > 0);
        self.sealed.iter().cloned().chain(current).collect()
    }

    /// Whether the running join should end before there are more changes: otherwise these could pile up without a bound.
    fn is_behind(&self, waker: &Waker) -> bool {
        let Some((joining, _)) = &self.join else {
            return false;
        };
        let current = self.current.as_ref();
        let since = current.map_or(0, |it| it.writer.written().bytes);
        since > 2 * bytes(&self.sealed).max(self.join_at_least) && joining.wake(waker)
    }

    /// Takes the new base of a join that has ended: the checkpoint is the first that has it.
    fn end_join(&mut self, checkpoint: u64) {
        let Some((joining, mut base)) = self.join.take_if(|(it, _)| it.is_over()) else {
            return;
        };
        match joining.finish() {
            Ok(content) => {
                base.content = content;
                self.join_at = content.bytes;
                let joined = std::mem::replace(&mut self.sealed, vec![base]);
                self.joined
                    .extend(joined.into_iter().map(|link| (link, checkpoint)));
                self.has_failed = false;
            }
            Err(error) => self.join_failed(&error),
        }
    }

    fn join_failed(&mut self, error: &BoxError) {
        // The files are more with each attempt.
        self.join_at = 2 * changes(&self.chain());
        self.has_failed = true;
        tracing::warn!(
            dir = %self.files.dir.display(), element = %self.element, rank = self.rank, %error,
            "the changes of a state element cannot be joined; this is tried again when they have twice the size"
        );
    }

    /// Starts a join of all prepared changes, if they are many.
    fn start_join(&mut self) {
        let chain = self.chain();
        let is_due = changes(&chain) >= self.join_at.max(self.join_at_least)
            || chain.len() > FILES_MAX && !self.has_failed;
        if self.join.is_some() || !is_due {
            return;
        }
        // Its changes are in the chain. It takes no more.
        self.current.take_if(|current| current.prepared.bytes > 0);
        self.sealed = chain;
        let base = self.new_link(true);
        let files = self.sealed.iter().map(|link| {
            let path = self.files.state_path(&self.file(link));
            (path, link.content)
        });
        let mut files: Vec<_> = files.collect();
        let has_base = self.sealed[0].is_base;
        let changes = files.split_off(usize::from(has_base));
        let joining = Joining::start(Join {
            files: self.files.clone(),
            base: files.pop(),
            changes,
            output: self.files.state_path(&self.file(&base)),
            passed: self.passed,
        });
        match joining {
            Ok(joining) => self.join = Some((joining, base)),
            Err(error) => self.join_failed(&error),
        }
    }

    /// Removes files that no checkpoint needs any more from which a run may resume. One that stays does no harm.
    fn prune(&mut self) {
        let Some(before) = self.before else {
            return;
        };
        let (obsolete, joined) = std::mem::take(&mut self.joined)
            .into_iter()
            .partition(|(_, from)| *from <= before);
        self.joined = joined;
        for (link, _) in obsolete {
            let path = self.files.state_path(&self.file(&link));
            let _ = self.files.remove(&path);
        }
        if !std::mem::replace(&mut self.has_swept, true) {
            // The next run tries it again.
            let _ = self.sweep();
        }
    }

    /// Removes the files of earlier runs that the checkpoint does not name from which this run has resumed.
    fn sweep(&self) -> Result<(), CheckpointDirError> {
        let joined = self.joined.iter().map(|(link, _)| link);
        let named = self.sealed.iter().chain(joined);
        let named: Vec<StateFile> = named.map(|link| self.file(link)).collect();
        for entry in self.files.entries()? {
            if let Entry::State(file) = entry
                && (file.rank, &file.element) == (self.rank, &self.element)
                && file.run != self.run
                && !named.contains(&file)
            {
                self.files.remove(&self.files.state_path(&file))?;
            }
        }
        Ok(())
    }

    /// Returns the advice about a file that cannot be read.
    fn advice(&self) -> String {
        let resumed = self.complete;
        let entries = self.files.entries().unwrap_or_default();
        let is_older =
            |entry: &Entry| matches!(entry, Entry::Shard(key) if key.checkpoint < resumed);
        let has_older = entries.iter().any(is_older);
        let older = match has_older {
            true => format!(
                "remove the files checkpoint.{resumed}.* to go on from an older checkpoint, after which results come again, or "
            ),
            false => String::new(),
        };
        format!(
            "bring back a copy of that file, or {older}remove all files of the directory and start the flow anew, without \
             resuming"
        )
    }

    fn restore_file(
        &self,
        link: &Link,
        each: &mut RestoreChange<'_>,
        unread: &mut Unread<CheckpointDirError>,
    ) -> Result<(), CheckpointDirError> {
        let path = self.files.state_path(&self.file(link));
        let file = self.files.open(&path)?;
        let mut reader = BlockReader::new(&path, file, link.content, READ_BYTES)?;
        while let Some(block) = reader.next()? {
            block.each(|record| {
                let read = match each(record.key, record.value) {
                    // A key that cannot be read has no value any more.
                    _ if record.value.is_none() => Ok(()),
                    read => read.map_err(|error| CheckpointDirError::Change {
                        path: path.clone(),
                        key: text_of_key(record.key),
                        why: error.to_string(),
                    }),
                };
                unread.note(record.key, read)
            })?;
        }
        reader.check()
    }
}

impl Sink<Change> for DirChangelog {
    fn push(&mut self, changes: &[Change], waker: &Waker) -> Result<usize, BoxError> {
        if self.is_behind(waker) {
            return Ok(0);
        }
        let current = self.current()?;
        for change in changes {
            current.writer.push(&Record {
                key: &change.key,
                value: change.value.as_deref(),
                expires: change.expires,
            })?;
        }
        Ok(changes.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        if let Some(current) = &mut self.current {
            current.writer.flush()?;
            current.writer.sync()?;
            if !current.is_there {
                self.files.sync()?;
                current.is_there = true;
            }
        }
        Ok(true)
    }

    fn waits_for_commit(&self) -> bool {
        true
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        self.rank = start.rank;
        self.sealed = start.prepared.map_or(Ok(Chain::new()), decode)?;
        self.join_at = bytes(&self.sealed) - changes(&self.sealed);
        Ok(())
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        if let Some(current) = &mut self.current {
            current.prepared = current.writer.written();
        }
        self.end_join(checkpoint);
        self.prune();
        self.start_join();
        encode(&self.chain())
    }

    fn commit(&mut self, checkpoint: u64, _: &Waker) -> Result<bool, BoxError> {
        if checkpoint > self.complete {
            self.before = Some(self.complete);
            self.complete = checkpoint;
        }
        Ok(true)
    }
}

impl Changelog for DirChangelog {
    fn restore(
        &mut self,
        resumed: Option<u64>,
        each: &mut RestoreChange<'_>,
    ) -> Result<(), BoxError> {
        self.complete = resumed.unwrap_or(0);
        let mut unread = Unread::default();
        for link in &self.sealed {
            let restored = self.restore_file(link, each, &mut unread);
            restored.map_err(|error| format!("{error}; {}", self.advice()))?;
        }
        Ok(unread.check()?)
    }

    fn give_up(&mut self) {
        if let Some(current) = &mut self.current {
            current.writer.return_to(current.prepared);
        }
    }

    fn passed(&mut self, time: i64) -> Result<(), BoxError> {
        self.passed = self.passed.max(Some(time));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
