//! The marker of a data directory: its format, and the lock of the program that has it open.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use millstream_base::disk::Access;
use millstream_base::{Disk, Position};
use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::files::{
    ASIDE, CLEAN_STOP, DataDir, JOURNAL, NEW_CLEAN_STOP, SOCKET, STREAMS, list, manifest,
};

const MARKER: &str = "millstream.data";
const MARKER_TEXT: &str = "millstream data, format ";

/// The format that this program writes. It makes directories of format 2 ones of this format; streams of the first one
/// had no identity.
pub const FORMAT: u32 = 3;

/// The oldest format that can be upgraded.
pub const FORMAT_MIN: u32 = 2;

impl DataDir {
    /// Takes the lock of a data directory, founds it where there is none, and checks the names in it. Returns its
    /// format, too. The manifest is not read.
    pub fn lock(disk: Arc<dyn Disk>, root: &Path) -> Result<(DataDir, u32)> {
        disk.create_dir_all(root)
            .map_err(|error| LogError::io("create folder", root, error))?;
        let mut names: Vec<String> = list(&*disk, root)?;
        names.retain(|name| name != SOCKET);
        let path = root.join(MARKER);
        if names.is_empty() {
            found(&*disk, root, &path)?;
        } else if !names.iter().any(|name| name == MARKER) {
            return Err(LogError::ForeignFile {
                path: root.join(&names[0]),
            });
        }
        let marker = disk
            .open(&path, Access::Write)
            .map_err(|error| LogError::io("open for writing", &path, error))?;
        let locked = marker
            .try_lock()
            .map_err(|error| LogError::io("lock", &path, error))?;
        if !locked {
            return Err(LogError::Locked {
                dir: root.to_owned(),
            });
        }
        let mut text = [0; 64];
        let count = marker
            .read_full_at(&mut text, 0)
            .map_err(|error| LogError::io("read", &path, error))?;
        let format = match parse_marker(&text[..count]) {
            Some(version) if version > FORMAT => {
                return Err(LogError::NewerFormat {
                    dir: root.to_owned(),
                    found: version,
                    known: FORMAT,
                });
            }
            Some(version) if version < FORMAT_MIN && names.len() > 1 => {
                return Err(LogError::OlderFormat {
                    dir: root.to_owned(),
                    found: version,
                    known: FORMAT,
                });
            }
            // Founding was interrupted: nothing is stored yet, and the marker may not be on the medium.
            _ if names.len() == 1 => {
                found(&*disk, root, &path)?;
                FORMAT
            }
            _ if names.is_empty() => FORMAT,
            Some(version) => version,
            None => return Err(LogError::ForeignFile { path }),
        };
        check_names(&*disk, root, &names)?;
        let dir = DataDir {
            disk,
            root: root.to_owned(),
            marker: Mutex::new(Some(marker)),
            is_upgraded: false,
            manifest: OnceLock::new(),
            open_group_files: Arc::default(),
            stream_dirs: Mutex::default(),
            secondary: Mutex::default(),
        };
        Ok((dir, format))
    }

    /// Marks the directory durably as one of this format. It takes one byte of the marker, which no crash tears, and
    /// keeps its lock.
    pub fn set_format(&self) -> Result<()> {
        let marker = self.marker.lock();
        let marker = marker.as_ref().expect("the directory is locked");
        marker
            .write_at(FORMAT.to_string().as_bytes(), MARKER_TEXT.len() as u64)
            .and_then(|()| marker.sync())
            .map_err(|error| LogError::io("write", self.root.join(MARKER), error))
    }

    /// Returns whether nothing was stored yet: the directory has only the files of its founding.
    pub fn is_new(&self) -> Result<bool> {
        let names = list(&*self.disk, &self.root)?;
        let is_of_founding =
            |name: &String| matches!(name.as_str(), MARKER | manifest::NEW_NAME | SOCKET);
        Ok(names.iter().all(is_of_founding))
    }
}

/// Checks that all names belong to a data directory, and that no folder is missing.
fn check_names(disk: &dyn Disk, root: &Path, names: &[String]) -> Result<()> {
    let is_known = |name: &&String| {
        matches!(
            name.as_str(),
            MARKER
                | JOURNAL
                | STREAMS
                | ASIDE
                | CLEAN_STOP
                | NEW_CLEAN_STOP
                | manifest::NAME
                | manifest::NEW_NAME
        )
    };
    if let Some(foreign) = names.iter().find(|name| !is_known(name)) {
        return Err(LogError::ForeignFile {
            path: root.join(foreign),
        });
    }
    let has = |folder: &str| names.iter().any(|name| name == folder);
    if has(JOURNAL) && !has(STREAMS) {
        let what = "the folder is missing, though the journal's is there";
        return Err(LogError::corrupted(root.join(STREAMS), Position(0), what));
    }
    if has(STREAMS) && !has(JOURNAL) && !list(disk, &root.join(STREAMS))?.is_empty() {
        let what = "the folder is missing, and chunks that it held after a crash are in no other file; if it is lost, or \
                    the last run ended in good order, make an empty one";
        return Err(LogError::corrupted(root.join(JOURNAL), Position(0), what));
    }
    Ok(())
}

fn found(disk: &dyn Disk, root: &Path, marker: &Path) -> Result<()> {
    // The folders above may be new too. One that cannot be read was not made here.
    let above = root.ancestors().skip(1);
    for folder in above {
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        match disk.sync_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            result => result.map_err(|error| LogError::io("sync folder", folder, error))?,
        }
    }
    let write = || {
        let file = disk.open(marker, Access::Create)?;
        file.write_at(format!("{MARKER_TEXT}{FORMAT}\n").as_bytes(), 0)?;
        file.sync()?;
        disk.sync_dir(root)
    };
    write().map_err(|error| LogError::io("write", marker, error))
}

fn parse_marker(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    text.strip_prefix(MARKER_TEXT)?
        .strip_suffix('\n')?
        .parse()
        .ok()
}
