//! Reads and damages a disk from outside of a run. None of this counts as an operation or meets a
//! fault. The resulting content and the names in its folder are durable.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::SimDisk;
use crate::image::{Node, ROOT};

impl SimDisk {
    /// All files and their lengths, in the order of their paths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let image = &self.state.lock().image;
        let tree = image.tree(ROOT, Path::new("/")).into_iter();
        tree.filter_map(|(path, node)| match node {
            Node::File(file) => Some((path, image.content(file).bytes().len() as u64)),
            Node::Folder(_) => None,
        })
        .collect()
    }

    /// The bytes that all files together have or reserve, as [`SimDisk::set_capacity`] counts them.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().image.used()
    }

    /// All bytes of a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn read_file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let image = &self.state.lock().image;
        Ok(image.content(image.file(path.as_ref())?).bytes().to_vec())
    }

    /// Makes `bytes` the content of a file. The file need not exist, but its folder must.
    ///
    /// # Errors
    /// When there is no such folder, or no room for another file.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let image = &mut self.state.lock().image;
        let (folder, name) = image.place(path.as_ref())?;
        let file = match image.child(folder, name) {
            Some(Node::File(file)) => file,
            Some(Node::Folder(_)) => return Err(Errno::ISDIR.into()),
            None => image.create_file(folder, name)?,
        };
        image.sync_names(&[folder]);
        image.replace(file, bytes.to_vec());
        Ok(())
    }

    /// Changes one bit of a file; bit 0 is the lowest of its first byte.
    ///
    /// # Errors
    /// When there is no such file or it has no such bit.
    pub fn flip_bit(&self, path: impl AsRef<Path>, bit: u64) -> io::Result<()> {
        let mut bytes = self.read_file(&path)?;
        let index = usize::try_from(bit / 8).unwrap_or(usize::MAX);
        *bytes.get_mut(index).ok_or(Errno::INVAL)? ^= 1 << (bit % 8);
        self.write_file(path, &bytes)
    }

    /// Truncates a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn truncate(&self, path: impl AsRef<Path>, len: usize) -> io::Result<()> {
        let mut bytes = self.read_file(&path)?;
        bytes.truncate(len);
        self.write_file(path, &bytes)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let image = &mut self.state.lock().image;
        let (folder, _) = image.place(path.as_ref())?;
        image.remove_file(path.as_ref())?;
        image.sync_names(&[folder]);
        Ok(())
    }
}
