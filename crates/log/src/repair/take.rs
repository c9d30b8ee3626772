//! The files and parts of files that a repair takes away: they go to the folder `aside`.

use std::path::{Path, PathBuf};

use millstream_base::disk::Access;
use millstream_base::{LaneIndex, Position, StreamId, StreamletIndex};

use crate::error::{LogError, Result};
use crate::files::manifest::NAME as MANIFEST;
use crate::ids::{GroupName, LaneId};
use crate::journal::format::encode_run;
use crate::repair::{PREFIX, Repair};

impl Repair {
    /// Copies the list of files, if there is one.
    pub fn copy_manifest(&mut self) -> Result<()> {
        let path = self.dir.manifest_path();
        let read = |error| LogError::io("read", &path, error);
        let file = match self.dir.disk.open(&path, Access::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(read)?,
        };
        let len = file.len().map_err(read)?;
        let to = self.place(MANIFEST);
        let whole = Position(0)..Position(len);
        self.dir.copy_aside(&*file, &path, whole, &to)?;
        self.note(to, len)
    }

    /// Moves a group's files to the folder.
    pub fn take_group(&mut self, name: &GroupName) -> Result<()> {
        let stream = name.lane.stream;
        self.take_file(stream, &self.dir.keys_path(name))?;
        self.take_file(stream, &self.dir.index_path(name))?;
        self.take_file(stream, &self.dir.group_path(name))
    }

    /// Copies the journal's runs of a stream, or of one lane of it: each run with 48 bytes before it, as
    /// in the journal. Returns the last group of the stream that it names.
    pub fn take_runs(&mut self, stream: StreamId, lane: Option<LaneId>) -> Result<u64> {
        let mut last = 0;
        let mut out = None;
        let to = match lane {
            None => self.place(&format!("{stream}.runs")),
            Some(LaneId {
                streamlet: StreamletIndex(streamlet),
                lane: LaneIndex(lane),
                ..
            }) => self.place(&format!("{stream}-{streamlet}-{lane}.runs")),
        };
        let mut at = 0;
        let disk = &self.dir.disk;
        self.journal.replay(&self.dir, |run, data| {
            if run.lane.stream != stream {
                return Ok(());
            }
            last = last.max(run.group.0);
            if lane.is_some_and(|lane| lane != run.lane) {
                return Ok(());
            }
            let write = |error| LogError::io("write", &to, error);
            if out.is_none() {
                out = Some(disk.open(&to, Access::Create).map_err(write)?);
            }
            let file = out.as_ref().expect("opened above");
            let mut bytes = Vec::new();
            encode_run(&run, data, &mut bytes);
            bytes.extend_from_slice(data);
            file.write_at(&bytes, at).map_err(write)?;
            at += bytes.len() as u64;
            Ok(())
        })?;
        if let Some(file) = out {
            file.sync()
                .map_err(|error| LogError::io("sync", &to, error))?;
            self.note(to, at)?;
        }
        Ok(last)
    }

    /// Moves damaged blocks of the journal to the folder.
    pub fn take_from_journal(&mut self) -> Result<()> {
        let Repair {
            dir,
            folder,
            number,
            ..
        } = &*self;
        let mut taken = Vec::new();
        self.journal.take_damage_out(dir, |file, path, range| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("{PREFIX}{number:06}.{name}.{}", range.start);
            let (to, bytes) = (folder.join(name), range.end.0 - range.start.0);
            dir.copy_aside(file, path, range, &to)?;
            dir.sync_dir(folder)?;
            taken.push((to, bytes));
            Ok(())
        })?;
        taken
            .into_iter()
            .try_for_each(|(path, bytes)| self.note(path, bytes))
    }

    /// Moves a file to the folder, if it is there.
    pub fn take_file(&mut self, stream: StreamId, path: &Path) -> Result<()> {
        let len = match self.dir.disk.open(path, Access::Read) {
            Ok(file) => file
                .len()
                .map_err(|error| LogError::io("read", path, error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(LogError::io("open", path, error)),
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let to = self.place(&format!("{stream}-{name}"));
        self.dir
            .disk
            .rename(path, &to)
            .map_err(|error| LogError::io("move", path, error))?;
        self.dir.sync_dir(&self.dir.stream_dir(stream))?;
        self.note(to, len)
    }

    /// Moves the bytes of a group's file from `position` on.
    pub fn take_end(&mut self, name: &GroupName, position: Position) -> Result<()> {
        let (stream, path) = (name.lane.stream, &self.dir.group_path(name));
        let error = |error| LogError::io("truncate", path, error);
        let file = self.dir.open_group(name, Access::Write).map_err(error)?;
        let len = file.len().map_err(error)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let to = self.place(&format!("{stream}-{name}.{position}"));
        if len > position.0 {
            let end = Position(len);
            self.dir.copy_aside(&*file, path, position..end, &to)?;
            self.note(to, len - position.0)?;
        }
        // Also where a repair before has done it: its sync may have failed.
        file.set_len(len.min(position.0)).map_err(error)?;
        file.sync().map_err(error)?;
        Ok(())
    }

    pub fn place(&self, name: &str) -> PathBuf {
        self.folder
            .join(format!("{PREFIX}{:06}.{name}", self.number))
    }

    pub fn note(&mut self, path: PathBuf, bytes: u64) -> Result<()> {
        self.dir.sync_dir(&self.folder)?;
        self.taken.files.push(path);
        self.taken.bytes += bytes;
        Ok(())
    }
}
