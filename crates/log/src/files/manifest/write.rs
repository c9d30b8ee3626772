//! Writing the manifest: appends, syncs that many callers share, and rewrites.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::{Disk, Random, StreamId};
use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::files::manifest::current::{
    Current, Failed, ManifestEnd, NAME, RecordCount, rewrite_above,
};
use crate::files::manifest::read::read;
use crate::files::manifest::record::{Head, Record};
use crate::files::manifest::state::Listed;
use crate::random::draw;

/// The list of all files of a data directory.
pub struct Manifest {
    disk: Arc<dyn Disk>,
    random: Arc<dyn Random>,
    root: PathBuf,
    /// Held during a sync and a rewrite: of two syncs at a time only one would learn of a failed write. Taken before
    /// `current`, which is free during a sync, so that others append meanwhile.
    syncing: Mutex<()>,
    current: Mutex<Current>,
}

impl Manifest {
    /// Makes the manifest of a data directory, behind the one that it had. It is durable then.
    ///
    /// # Errors
    /// When it cannot be written. The former one is there then, or this one.
    pub fn create(
        disk: Arc<dyn Disk>,
        random: Arc<dyn Random>,
        root: &Path,
        former: Option<Head>,
        listed: Listed,
    ) -> Result<Manifest> {
        let former = match former {
            Some(former) => former,
            None => Head::of_new(draw(&*random)?),
        };
        let current = Current::write(&*disk, &*random, root, former, listed)?;
        Ok(Manifest::with(disk, random, root, current))
    }

    /// Opens the manifest. `None` when there is none. It was durable up to `known`, if that is given. This
    /// makes all records that it has read durable.
    ///
    /// # Errors
    /// When it is damaged, or cannot be read or written.
    pub fn open(
        disk: Arc<dyn Disk>,
        random: Arc<dyn Random>,
        root: &Path,
        known: Option<ManifestEnd>,
    ) -> Result<Option<Manifest>> {
        let path = root.join(NAME);
        let Some(found) = read(&*disk, &path, known)? else {
            return Ok(None);
        };
        let current = Current::open(&*disk, root, found)?;
        Ok(Some(Manifest::with(disk, random, root, current)))
    }

    fn with(
        disk: Arc<dyn Disk>,
        random: Arc<dyn Random>,
        root: &Path,
        current: Current,
    ) -> Manifest {
        Manifest {
            disk,
            random,
            root: root.to_owned(),
            syncing: Mutex::new(()),
            current: Mutex::new(current),
        }
    }

    /// Returns the random number that no other data directory has.
    pub fn directory(&self) -> [u8; 16] {
        self.current.lock().head.directory
    }

    /// Calls `look` with the list, which includes records that are not durable yet.
    pub fn look_at<R>(&self, look: impl FnOnce(&Listed) -> R) -> R {
        look(&self.current.lock().listed)
    }

    /// Checks that records can be appended.
    ///
    /// # Errors
    /// When a write has failed: it is unknown which records the next start finds.
    pub fn check(&self) -> Result<()> {
        self.current.lock().check()
    }

    /// Appends records in one write, so that they outlast the process.
    ///
    /// # Errors
    /// On a full disk nothing is appended. After other failures it is unknown whether the next start finds them, and
    /// nothing can be appended any more.
    ///
    /// # Panics
    /// When a record does not follow from those before it.
    pub fn append(&self, records: &[Record]) -> Result<RecordCount> {
        let failed = match self.current.lock().append(&self.path(), records) {
            Ok(appended) => return Ok(appended),
            Err(Failed::Unchanged(error)) => return Err(error),
            Err(Failed::Unknown(error)) => error,
        };
        let _one = self.syncing.lock();
        let mut current = self.current.lock();
        current.check()?;
        // Some file systems reserve no room.
        if failed.is_disk_full() && current.undo().is_ok() {
            return Err(failed);
        }
        warn_of_rewrite(&failed);
        current.take(records);
        self.rewrite_unknown(&mut current)?;
        Ok(current.appended)
    }

    /// Makes records durable. One sync serves all that were appended before it.
    ///
    /// # Errors
    /// When they may not be durable; then nothing can be appended any more.
    pub fn sync_to(&self, appended: RecordCount) -> Result<()> {
        let _one = self.syncing.lock();
        let (file, count, all) = {
            let current = self.current.lock();
            if appended <= current.synced {
                return Ok(());
            }
            current.check()?;
            (Arc::clone(&current.file), current.count, current.appended)
        };
        let synced = file.sync();
        let mut current = self.current.lock();
        if let Err(error) = synced {
            warn_of_rewrite(&LogError::io("sync", self.path(), error));
            return self.rewrite_unknown(&mut current);
        }
        (current.durable, current.synced) = (count, all);
        match current.end() > current.rewrite_above {
            true => self.rewrite_whole(&mut current),
            false => Ok(()),
        }
    }

    /// Makes all records durable, and returns where they end, while no others are appended.
    ///
    /// # Errors
    /// When they may not be durable.
    pub fn end(&self) -> Result<ManifestEnd> {
        let appended = self.current.lock().appended;
        self.sync_to(appended)?;
        let current = self.current.lock();
        current.check()?;
        Ok(ManifestEnd {
            number: current.head.number,
            records: current.count,
            crc: current.last_crc,
        })
    }

    /// Returns whether the file has records that a rewrite leaves out.
    pub fn has_obsolete(&self, exists: impl Fn(StreamId) -> bool) -> bool {
        let current = self.current.lock();
        let records = current.listed.records();
        let live = records.iter().filter(|record| {
            let stream = record.stream();
            stream.is_none_or(&exists)
        });
        // One record says where the others of the last rewrite ended.
        current.count > live.count() as u64 + 1
    }

    /// Forgets a stream whose files are removed. The file forgets it when it is rewritten.
    pub fn forget(&self, stream: StreamId) {
        let listed = &mut self.current.lock().listed;
        listed.retain_streams(|other| other != stream);
    }

    /// Changes the list by a rewrite, which is durable then.
    ///
    /// # Errors
    /// When it cannot be written; then nothing can be appended any more.
    pub fn change(&self, change: impl FnOnce(&mut Listed)) -> Result<()> {
        let _one = self.syncing.lock();
        let mut current = self.current.lock();
        current.check()?;
        change(&mut current.listed);
        self.rewrite_unknown(&mut current)
    }

    /// Writes the list anew, without the streams that do not exist. If that fails, the former one stays in use where it
    /// can.
    ///
    /// # Errors
    /// When it is unknown which of the two the next start finds; then nothing can be appended any more.
    pub fn rewrite(&self, exists: impl Fn(StreamId) -> bool) -> Result<()> {
        let _one = self.syncing.lock();
        let mut current = self.current.lock();
        current.check()?;
        current.listed.retain_streams(exists);
        self.rewrite_whole(&mut current)
    }

    fn path(&self) -> PathBuf {
        self.root.join(NAME)
    }

    /// Replaces a file that is whole, and stays in use where the new one cannot be written.
    fn rewrite_whole(&self, current: &mut Current) -> Result<()> {
        match self.write_next(current) {
            Ok(()) => Ok(()),
            Err(Failed::Unchanged(error)) => {
                tracing::warn!(%error, "the list of files is not written anew; the former one grows on");
                current.rewrite_above = rewrite_above(current.end());
                Ok(())
            }
            Err(Failed::Unknown(error)) => Err(current.fail(&error)),
        }
    }

    /// Replaces a file whose content is unknown.
    fn rewrite_unknown(&self, current: &mut Current) -> Result<()> {
        match self.write_next(current) {
            Ok(()) => Ok(()),
            Err(Failed::Unchanged(error) | Failed::Unknown(error)) => Err(current.fail(&error)),
        }
    }

    fn write_next(&self, current: &mut Current) -> Result<(), Failed> {
        let listed = current.listed.clone();
        let next = Current::write(&*self.disk, &*self.random, &self.root, current.head, listed)?;
        let all = current.appended;
        *current = Current {
            appended: all,
            synced: all,
            ..next
        };
        Ok(())
    }
}

fn warn_of_rewrite(error: &LogError) {
    tracing::warn!(%error, "the list of files is written anew, to another file");
}
