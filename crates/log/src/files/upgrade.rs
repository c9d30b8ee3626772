//! The manifest at a start: found, founded with the directory, or made of the names of the files.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use millstream_base::disk::Access;
use millstream_base::{ByteSize, GroupId, Position, Random, StreamId};

use crate::error::{LogError, Result};
use crate::files::clean_stop;
use crate::files::group_head::identity_of;
use crate::files::manifest::{self, HEAD_BYTES, Head, Listed, Manifest, Record, bytes_needed};
use crate::files::{DataDir, FORMAT};
use crate::ids::GroupName;
use crate::index::file::Index;
use crate::journal::old::OldFile;
use crate::random::draw;

/// The streams up to this one are the log's own, and have no identity in the catalog.
pub const POSITIONS: StreamId = StreamId(1);

impl DataDir {
    /// Returns the manifest of a directory of this format. A new directory gets one, and one of an earlier format is
    /// upgraded in place:
    ///
    /// 1. The upgrade removes the files of a killed upgrade: nothing of this format was written yet.
    /// 2. The files of all groups and of the journal are listed by their names. Of a group that has only an index the file was lost.
    /// 3. The marker names this format.
    ///
    /// A start goes on with a killed upgrade from step 1, or is behind step 3.
    pub fn find_manifest(&self, random: Arc<dyn Random>, format: u32) -> Result<Manifest> {
        if format < FORMAT {
            return self.upgrade(random, format);
        }
        let disk = Arc::clone(&self.disk);
        let known = clean_stop::manifest_end(self)?;
        let found = match Manifest::open(disk, Arc::clone(&random), &self.root, known) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) if self.is_new()? => {
                let disk = Arc::clone(&self.disk);
                return Manifest::create(disk, random, &self.root, None, Listed::default());
            }
            Ok(None) => {
                let what = "the list of the directory's files is missing";
                LogError::corrupted(self.manifest_path(), Position(0), what)
            }
            Err(error @ LogError::Corrupted { .. }) => error,
            Err(error) => return Err(error),
        };
        Err(LogError::DamagedManifest {
            error: Box::new(found),
        })
    }

    fn upgrade(&self, random: Arc<dyn Random>, format: u32) -> Result<Manifest> {
        // Step 1.
        for name in [manifest::NAME, manifest::NEW_NAME] {
            remove(self, &self.root.join(name))?;
        }
        // Step 2.
        let listed = self.list_by_names()?;
        let bytes = bytes_needed(listed.records().len() + 1);
        let disk = Arc::clone(&self.disk);
        let made = Manifest::create(disk, random, &self.root, None, listed);
        let made = made.map_err(|error| match error.is_disk_full() {
            true => LogError::NoRoomToUpgrade {
                dir: self.root.clone(),
                found: format,
                known: FORMAT,
                bytes: ByteSize(bytes),
            },
            false => error,
        })?;
        // Step 3.
        self.set_format()?;
        tracing::info!(dir = %self.root.display(), from = format, to = FORMAT,
            "upgraded the data directory; earlier programs refuse it from now on");
        Ok(made)
    }

    /// Rebuilds the manifest from the names of the files; `complete` adds the facts that the names do not contain. The
    /// former manifest's number and identity stay if they can be read.
    pub fn remake_manifest(
        &self,
        random: Arc<dyn Random>,
        complete: impl FnOnce(&DataDir, &mut Listed) -> Result<()>,
    ) -> Result<()> {
        let mut listed = self.list_by_names()?;
        complete(self, &mut listed)?;
        let disk = Arc::clone(&self.disk);
        let former = match self.read_manifest_head()? {
            Some(former) => Some(former),
            None => self.head_by_groups(&listed)?,
        };
        let mut former = match former {
            Some(former) => former,
            None => Head::of_new(draw(&*random)?),
        };
        // The new list must not look older than the list of the last clean stop.
        let known = clean_stop::manifest_end(self)?;
        former.number = former.number.max(known.map_or(0, |known| known.number));
        Manifest::create(disk, random, &self.root, Some(former), listed).map(drop)
    }

    /// Returns the directory's identity, as the heads of the log's own tables have it.
    fn head_by_groups(&self, listed: &Listed) -> Result<Option<Head>> {
        for (id, lane) in listed.lanes() {
            if id.stream > POSITIONS {
                continue;
            }
            for name in lane.groups(id) {
                let opened = self.open_with_head(&name, Access::Read);
                let read = |error| LogError::io("read", self.group_path(&name), error);
                let head = match opened {
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    opened => opened.map_err(read)?.1,
                };
                if let Some(head) = head.filter(|head| head.name == name) {
                    let directory = identity_of(*head.identity.as_bytes(), id.stream);
                    return Ok(Some(Head::of_new(*directory.as_bytes())));
                }
            }
        }
        Ok(None)
    }

    fn read_manifest_head(&self) -> Result<Option<Head>> {
        let path = self.manifest_path();
        let read = || {
            let file = match self.disk.open(&path, Access::Read) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let mut bytes = [0; HEAD_BYTES as usize];
            let count = file.read_full_at(&mut bytes, 0)?;
            Ok(Head::decode(&bytes[..count]))
        };
        read().map_err(|error| LogError::io("read", &path, error))
    }

    /// Lists the groups that have files, or indexes, and the files of the journal.
    fn list_by_names(&self) -> Result<Listed> {
        let mut listed = Listed::default();
        let journal = match self.disk.list(&self.journal_dir()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            _ => OldFile::find_all(self)?,
        };
        for file in journal {
            let new = Record::JournalFile {
                sequence: file.sequence,
                secret: file.secret,
                end: Position(0),
            };
            let follows = listed.apply(new);
            follows.map_err(|what| LogError::corrupted(file.path, Position(0), what))?;
        }
        let streams = match self.disk.list(&self.streams_dir()) {
            // Its founding was interrupted.
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            _ => self.list_streams()?,
        };
        for stream in streams {
            let (groups, indexes) = self.list_groups(stream)?;
            let mut names: Vec<GroupName> = groups.into_iter().chain(indexes).collect();
            names.sort_unstable();
            for name in self.without_replaced(names)? {
                let follows = listed.apply(Record::Group(name));
                follows.map_err(|what| {
                    let what = format!("{what}: move the file that does not belong there away");
                    LogError::corrupted(self.group_path(&name), Position(0), what)
                })?;
            }
        }
        Ok(listed)
    }

    /// Omits files that a compaction has replaced, and files of an unfinished compaction: where both exist, one of them is a
    /// leftover.
    fn without_replaced(&self, mut names: Vec<GroupName>) -> Result<Vec<GroupName>> {
        let mut leftovers = Vec::new();
        for new in names.iter().filter(|name| name.generation.is_rewritten()) {
            let is_older =
                |old: &&GroupName| old.lane == new.lane && old.generation < new.generation;
            let older = names.iter().filter(is_older);
            match self.replaced_to(new)? {
                Some(last) => {
                    leftovers.extend(older.filter(|old| (new.id..=last).contains(&old.id)))
                }
                None if older.clone().any(|old| old.id == new.id) => leftovers.push(*new),
                None => {}
            }
        }
        names.retain(|name| !leftovers.contains(name));
        Ok(names)
    }

    /// Returns the last group that a rewritten group replaces, if its file and its index are whole.
    fn replaced_to(&self, name: &GroupName) -> Result<Option<GroupId>> {
        let path = self.index_path(name);
        let end = Index::read_end(&*self.disk, &path, name);
        if end
            .map_err(|error| LogError::io("read", path, error))?
            .is_none()
        {
            return Ok(None);
        }
        let head = match self.open_with_head(name, Access::Read) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => {
                opened
                    .map_err(|error| LogError::io("read", self.group_path(name), error))?
                    .1
            }
        };
        Ok(head
            .filter(|head| head.name == *name)
            .map(|head| head.replaced_to))
    }
}

fn remove(dir: &DataDir, path: &Path) -> Result<()> {
    match dir.disk.remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(LogError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}
