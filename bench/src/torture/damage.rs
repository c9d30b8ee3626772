//! Damage to the files of a data directory that no server has open.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fastrand::Rng;

use super::books::{Books, Partition};
use super::plan::Blow;

/// The kinds of the node's files that are damaged, with their weights.
const KINDS: [(&str, u32); 4] = [("log", 6), ("index", 2), ("journal", 3), ("data", 1)];

/// The folders in a data directory that matter.
const STREAMS: &str = "streams";
const JOURNAL: &str = "journal";
const CATALOG: &str = "streams/0";
const MARKER: &str = "millstream.data";

/// A file, with its path in the data directory.
struct Found {
    path: PathBuf,
    bytes: u64,
}

/// The damage that was done.
pub struct Hit {
    /// In words.
    pub what: String,
    /// The changed or removed files, by paths in the data directory.
    paths: Vec<PathBuf>,
}

/// Damages files at random. Where the drawn kind of damage is impossible, as without two files to swap, a bit is
/// flipped instead.
pub fn strike(data: &Path, blow: Blow, random: &mut Rng) -> Result<Hit> {
    let files = files(data)?;
    let pairs_needed = matches!(blow, Blow::Swap | Blow::Copy);
    let kind = draw_kind(&files, if pairs_needed { 2 } else { 1 }, random);
    let mut files: Vec<Found> = files
        .into_iter()
        .filter(|file| kind_of(&file.path) == kind)
        .collect();
    if blow == Blow::RemoveFolder {
        return remove_folder(data, random);
    }
    let file = files.swap_remove(random.usize(0..files.len()));
    let other = match files.len() {
        0 => None,
        left => Some(files.swap_remove(random.usize(0..left))),
    };
    match (blow, other) {
        (Blow::Cut, _) => cut(data, file, random),
        (Blow::RemoveFile, _) => {
            fs::remove_file(data.join(&file.path))?;
            Ok(Hit {
                what: format!("{} removed", file.path.display()),
                paths: vec![file.path],
            })
        }
        (Blow::Swap, Some(other)) => swap(data, file, other),
        (Blow::Copy, Some(other)) => {
            fs::copy(data.join(&file.path), data.join(&other.path))?;
            let (from, to) = (file.path.display(), other.path.display());
            Ok(Hit {
                what: format!("{from} copied over {to}"),
                paths: vec![other.path],
            })
        }
        _ => flip(data, file, random),
    }
}

fn flip(data: &Path, file: Found, random: &mut Rng) -> Result<Hit> {
    let at = random.u64(0..file.bytes);
    let bit = random.u32(0..8);
    let opened = File::options()
        .read(true)
        .write(true)
        .open(data.join(&file.path))?;
    let mut byte = [0];
    opened.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1 << bit;
    opened.write_all_at(&byte, at)?;
    Ok(Hit {
        what: format!(
            "bit {bit} of byte {at} of {} flipped ({} bytes)",
            file.path.display(),
            file.bytes
        ),
        paths: vec![file.path],
    })
}

fn cut(data: &Path, file: Found, random: &mut Rng) -> Result<Hit> {
    let at = random.u64(0..file.bytes);
    let opened = File::options().write(true).open(data.join(&file.path))?;
    opened.set_len(at)?;
    Ok(Hit {
        what: format!(
            "{} cut from {} to {at} bytes",
            file.path.display(),
            file.bytes
        ),
        paths: vec![file.path],
    })
}

fn swap(data: &Path, one: Found, other: Found) -> Result<Hit> {
    let (one, other) = (one.path, other.path);
    let aside = data.with_file_name("swapped");
    fs::rename(data.join(&one), &aside)?;
    fs::rename(data.join(&other), data.join(&one))?;
    fs::rename(&aside, data.join(&other))?;
    Ok(Hit {
        what: format!("{} and {} swapped", one.display(), other.display()),
        paths: vec![one, other],
    })
}

/// Removes a stream's folder, all of them, or the journal.
fn remove_folder(data: &Path, random: &mut Rng) -> Result<Hit> {
    let streams = Path::new(STREAMS);
    let mut folders = vec![PathBuf::from(JOURNAL), streams.to_owned()];
    for name in names(&data.join(streams))? {
        folders.push(streams.join(name));
    }
    let path = folders.swap_remove(random.usize(0..folders.len()));
    fs::remove_dir_all(data.join(&path))?;
    Ok(Hit {
        what: format!("folder {} removed", path.display()),
        paths: vec![path],
    })
}

impl Hit {
    /// Returns whether a file or folder of the partition was damaged.
    pub fn strikes(&self, partition: &Partition) -> bool {
        let folder = Path::new(STREAMS).join(partition.stream_id.to_string());
        let prefix = format!("{}-", partition.partition);
        self.paths.iter().any(|path| {
            folder.starts_with(path)
                || path.starts_with(&folder)
                    && path
                        .file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        })
    }

    /// Returns whether all damaged files belong to streams of users.
    pub fn is_of_users(&self, books: &Books) -> bool {
        let is_of_user = |path: &PathBuf| {
            books.partitions.iter().any(|partition| {
                path.starts_with(Path::new(STREAMS).join(partition.stream_id.to_string()))
            })
        };
        self.paths.iter().all(is_of_user)
    }

    /// Returns whether it concerns the journal, whose data is not in the files of streams yet, or the catalog of
    /// streams.
    pub fn is_of_journal_or_catalog(&self) -> bool {
        self.paths.iter().any(|path| {
            path.starts_with(JOURNAL)
                || path.starts_with(CATALOG)
                || Path::new(CATALOG).starts_with(path)
        })
    }

    /// Returns whether a text names a damaged file, its folder, or, for the marker, the data directory.
    pub fn is_named_in(&self, text: &str, data: &Path) -> bool {
        self.paths.iter().any(|path| {
            let folder = match path.parent() {
                Some(folder) if folder.components().count() > 1 => Some(folder),
                _ => None,
            };
            let mut names = [Some(path.as_path()), folder].into_iter().flatten();
            names.any(|name| text.contains(&*data.join(name).to_string_lossy()))
                || path == Path::new(MARKER) && text.contains(&*data.to_string_lossy())
        })
    }

    /// Restores the damaged files from a copy of the data directory.
    pub fn undo(&self, data: &Path, copy: &Path) -> Result<()> {
        for path in &self.paths {
            let (to, from) = (data.join(path), copy.join(path));
            match fs::symlink_metadata(&to) {
                Ok(found) if found.is_dir() => fs::remove_dir_all(&to)?,
                Ok(_) => fs::remove_file(&to)?,
                Err(_) => {}
            }
            copy_all(&from, &to)?;
        }
        Ok(())
    }
}

/// Copies a file, or a folder with all that it holds, but for sockets.
pub fn copy_all(from: &Path, to: &Path) -> Result<()> {
    let kind = fs::metadata(from)
        .with_context(|| format!("cannot read {from:?}"))?
        .file_type();
    if kind.is_file() {
        fs::copy(from, to).with_context(|| format!("cannot copy {from:?}"))?;
    } else if kind.is_dir() {
        fs::create_dir_all(to)?;
        for name in names(from)? {
            copy_all(&from.join(&name), &to.join(&name))?;
        }
    }
    Ok(())
}

/// Chooses a kind that has at least `at_least` files.
fn draw_kind(files: &[Found], at_least: usize, random: &mut Rng) -> &'static str {
    let count = |kind: &str| {
        files
            .iter()
            .filter(|file| kind_of(&file.path) == kind)
            .count()
    };
    let kinds = KINDS.iter().filter(|(kind, _)| count(kind) >= at_least);
    let kinds: Vec<&str> = kinds
        .flat_map(|(kind, weight)| std::iter::repeat_n(*kind, *weight as usize))
        .collect();
    match kinds.len() {
        0 => "data",
        kinds_len => kinds[random.usize(0..kinds_len)],
    }
}

fn kind_of(path: &Path) -> &str {
    let kind = path.extension().and_then(|kind| kind.to_str());
    kind.unwrap_or_default()
}

/// The marker, and the files of streams and journal that are not empty, by name.
fn files(data: &Path) -> Result<Vec<Found>> {
    let mut paths = vec![PathBuf::from(MARKER)];
    let mut folders = vec![PathBuf::from(JOURNAL)];
    for name in names(&data.join(STREAMS))? {
        folders.push(Path::new(STREAMS).join(name));
    }
    for folder in folders {
        for name in names(&data.join(&folder))? {
            paths.push(folder.join(name));
        }
    }
    let mut files = Vec::new();
    for path in paths {
        let bytes = fs::metadata(data.join(&path))?.len();
        if bytes > 0 {
            files.push(Found { path, bytes });
        }
    }
    Ok(files)
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {folder:?}"))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}
