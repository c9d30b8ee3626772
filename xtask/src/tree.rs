//! The files of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Entries of a work tree that are not part of the project.
const FOREIGN_FOLDERS: [&str; 3] = [".git", "target", "node_modules"];

/// A longer file is data, not text to read.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// All files of the project, at the time of reading.
pub struct Tree {
    root: PathBuf,
    /// The content of each file, by its path relative to the root; `None` for a file that is not text.
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self {
            root: root.to_owned(),
            files: BTreeMap::new(),
        };
        tree.read_folder("")?;
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &str) -> anyhow::Result<()> {
        let path = self.root.join(folder);
        let entries = fs::read_dir(&path).with_context(|| format!("cannot list {path:?}"))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            if kind.is_dir() && !FOREIGN_FOLDERS.contains(&name.as_str()) {
                self.read_folder(&format!("{folder}{name}/"))?;
            } else if kind.is_file() {
                let text = text(&entry.path())
                    .with_context(|| format!("cannot read {:?}", entry.path()))?;
                self.files.insert(format!("{folder}{name}"), text);
            }
        }
        Ok(())
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Every text file with its path.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Whether this file exists, or this folder has files.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let inside = format!("{path}/");
        self.files.contains_key(path) || self.paths().any(|file| file.starts_with(&inside))
    }

    /// The pages whose commands and index the checks compare with the tree: README and the guide.
    pub fn guide(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(path, _)| {
            *path == "README.md" || path.starts_with("docs/") && path.ends_with(".md")
        })
    }
}

fn text(path: &Path) -> std::io::Result<Option<String>> {
    if fs::metadata(path)?.len() > TEXT_BYTES_MAX {
        return Ok(None);
    }
    Ok(String::from_utf8(fs::read(path)?).ok())
}

#[cfg(test)]
impl Tree {
    /// A tree that exists in memory only.
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self {
            root: PathBuf::new(),
            files: files
                .iter()
                .map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned())))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_project_are_read() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["README.md", "crates/log/x.rs", "target/debug/x", ".ci/run"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        fs::write(folder.path().join("data"), b"\xff").unwrap();
        let tree = Tree::read(folder.path()).unwrap();
        let paths: Vec<&str> = tree.paths().collect();
        assert_eq!(paths, [".ci/run", "README.md", "crates/log/x.rs", "data"]);
        assert_eq!(tree.text("README.md"), Some("text"));
        assert_eq!(tree.text("data"), None);
        assert!(tree.has("crates/log/") && tree.has("data") && !tree.has("crates/lo"));
    }
}
