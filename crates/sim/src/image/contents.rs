//! Changes of files, and the room that they take.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::{FileId, Image};
use crate::Rng;
use crate::file::{Change, File};

impl Image {
    /// Writes `bytes` at `at`; on a full disk perhaps only some of them.
    pub(crate) fn write(
        &mut self,
        file: FileId,
        at: usize,
        mut bytes: Vec<u8>,
        rng: &mut Rng,
    ) -> io::Result<()> {
        let reach = self.files[file.0].room + self.capacity.saturating_sub(self.used);
        let fitting = usize::try_from(reach)
            .unwrap_or(usize::MAX)
            .saturating_sub(at);
        let is_cut = fitting < bytes.len();
        if is_cut {
            bytes.truncate(rng.usize(..=fitting));
        }
        if !bytes.is_empty() {
            let bytes = Arc::new(bytes);
            self.change(file, Change::Write { at, bytes })?;
        }
        match is_cut {
            true => Err(Errno::NOSPC.into()),
            false => Ok(()),
        }
    }

    pub(crate) fn set_len(&mut self, file: FileId, len: usize) -> io::Result<()> {
        let shrinks = len < self.content(file).bytes().len();
        self.change(file, Change::SetLen { len, shrinks })
    }

    pub(crate) fn reserve(&mut self, file: FileId, len: usize) -> io::Result<()> {
        self.change(file, Change::Reserve { len })
    }

    fn change(&mut self, file: FileId, change: Change) -> io::Result<()> {
        let inode = &mut self.files[file.0];
        let room = change.room_after(inode.file.cached()) as u64;
        let used = self.used - inode.room + room;
        if room > inode.room && used > self.capacity {
            return Err(Errno::NOSPC.into());
        }
        self.used = used;
        inode.room = room;
        inode.file.change(change);
        Ok(())
    }

    pub(crate) fn is_dirty(&self, file: FileId) -> bool {
        self.files[file.0].file.is_dirty()
    }

    pub(crate) fn sync(&mut self, file: FileId) {
        self.files[file.0].file.sync();
    }

    pub(crate) fn fail_sync(&mut self, file: FileId, rng: &mut Rng) {
        self.files[file.0].file.fail_sync(rng);
    }

    /// Makes `bytes` the file's content, durably.
    pub(crate) fn replace(&mut self, file: FileId, bytes: Vec<u8>) {
        let inode = &mut self.files[file.0];
        self.used = self.used - inode.room + bytes.len() as u64;
        inode.room = bytes.len() as u64;
        inode.file = File::of_bytes(bytes);
    }
}
