//! Files that commands write.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

/// Writes a file atomically: it appears with the whole content, or not at all. A link stays, and its target changes. Other
/// targets, such as pipes and devices, get the content as it comes.
pub fn write_file<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let cannot_write = || format!("cannot write to {}", path.display());
    let target = match path.metadata() {
        // Replaces the target of a link, and not the link itself.
        Ok(found) if found.is_file() => path.canonicalize().with_context(cannot_write)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            path.to_owned()
        }
        _ => return write(&mut File::create(path).with_context(cannot_write)?),
    };
    let folder = match target.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".millstream-")
        // The permissions of a new file, limited by the user's umask.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .with_context(cannot_write)?;
    let written = write(file.as_file_mut())?;
    file.as_file().sync_all().with_context(cannot_write)?;
    file.persist(&target).with_context(cannot_write)?;
    Ok(written)
}
