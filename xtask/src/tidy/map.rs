//! Compares ARCHITECTURE.md's map of the code with the tree.

use std::collections::BTreeSet;

use super::Problem;
use crate::markdown;
use crate::tree::Tree;

pub const PAGE: &str = "ARCHITECTURE.md";
const SECTION: &str = "Map of the code";

/// Folders for whose children the map has a row each.
pub const CRATE_FOLDERS: [&str; 2] = ["crates", "apps"];

/// A row of the map.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    pub line: usize,
    /// A folder, relative to the root of the repository.
    pub path: String,
    /// The dependencies of this crate, by the names of their folders.
    pub stands_on: Vec<String>,
}

impl Row {
    /// The name of the folder.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Returns the rows of the map, or a problem if the section is missing.
pub fn rows(tree: &Tree) -> Result<Vec<Row>, Problem> {
    let page = tree.text(PAGE);
    let Some((lines_before, map)) = page.and_then(|page| markdown::section(page, SECTION)) else {
        let what = format!("the section \"{SECTION}\" is missing");
        return Err(Problem::new(PAGE, what));
    };
    let rows = markdown::rows(map).into_iter().filter_map(|row| {
        let [path, .., stands_on] = &row.value[..] else {
            return None;
        };
        Some(Row {
            line: lines_before + row.line,
            path: path.first()?.trim_end_matches('/').to_owned(),
            stands_on: stands_on.clone(),
        })
    });
    Ok(rows.collect())
}

/// Checks that the map has a row for each folder of the tree, and no other row.
pub fn check(tree: &Tree, rows: &[Row]) -> Vec<Problem> {
    let gone = rows.iter().filter(|row| !tree.has(&row.path));
    let gone = gone.map(|row| {
        let what = format!("the map names {}, which does not exist", row.path);
        Problem::at_line(PAGE, row.line, what)
    });
    let folders = folders(tree).into_iter();
    let missing = folders.filter(|folder| !rows.iter().any(|row| row.path == *folder));
    let missing =
        missing.map(|folder| Problem::new(PAGE, format!("the map has no row `{folder}`")));
    gone.chain(missing).collect()
}

/// All folders that the map must name: the folders of the first level, with [`CRATE_FOLDERS`] replaced by their
/// children.
fn folders(tree: &Tree) -> BTreeSet<String> {
    tree.paths()
        .filter(|path| !path.starts_with('.'))
        .filter_map(|path| {
            let (first, rest) = path.split_once('/')?;
            if !CRATE_FOLDERS.contains(&first) {
                return Some(first.to_owned());
            }
            let (second, _) = rest.split_once('/')?;
            Some(format!("{first}/{second}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_and_the_tree_must_agree() {
        let page = "\
# Architecture

## Map of the code

| path | what | stands on |
|---|---|---|
| `crates/base` | not `x` | |
| `crates/gone` | | `base` |
| `docs/` | | |

## Invariants
";
        let tree = Tree::of(&[
            (PAGE, page),
            (".ci/run", ""),
            ("crates/base/Cargo.toml", ""),
            ("crates/new/src/lib.rs", ""),
            ("docs/README.md", ""),
            ("tests/x.rs", ""),
        ]);
        let rows = rows(&tree).unwrap();
        let stand_on: Vec<(&str, &[String])> = rows
            .iter()
            .map(|row| (row.name(), &row.stands_on[..]))
            .collect();
        let base = ["base".to_owned()];
        assert_eq!(
            stand_on,
            [("base", &[][..]), ("gone", &base), ("docs", &[])]
        );
        assert_eq!(
            check(&tree, &rows),
            [
                Problem::new(
                    "ARCHITECTURE.md:8",
                    "the map names crates/gone, which does not exist"
                ),
                Problem::new(PAGE, "the map has no row `crates/new`"),
                Problem::new(PAGE, "the map has no row `tests`"),
            ]
        );
        assert!(super::rows(&Tree::of(&[])).is_err());
    }
}
