//! ARCHITECTURE.md's map of the code against the tree.

use std::collections::BTreeSet;

use super::Problem;
use crate::markdown;
use crate::tree::Tree;

const PAGE: &str = "ARCHITECTURE.md";
const SECTION: &str = "Map of the code";

/// Folders whose children are named one by one.
const SHELVES: [&str; 2] = ["crates", "apps"];

pub fn check(tree: &Tree) -> Vec<Problem> {
    let Some((lines_before, map)) = tree
        .text(PAGE)
        .and_then(|page| markdown::section(page, SECTION))
    else {
        return vec![Problem::new(
            PAGE,
            format!("the section \"{SECTION}\" is missing"),
        )];
    };
    let named = markdown::row_names(map);
    let mut problems: Vec<Problem> = named
        .iter()
        .filter(|name| !tree.has(&name.value))
        .map(|name| {
            let what = format!("the map names {}, which does not exist", name.value);
            Problem::at_line(PAGE, lines_before + name.line, what)
        })
        .collect();
    let missing = folders(tree).into_iter().filter(|folder| {
        !named
            .iter()
            .any(|name| name.value.trim_end_matches('/') == folder)
    });
    problems
        .extend(missing.map(|folder| Problem::new(PAGE, format!("the map has no row `{folder}`"))));
    problems
}

/// All folders that the map must name: those of the first level, and what stands on a shelf.
fn folders(tree: &Tree) -> BTreeSet<String> {
    tree.paths()
        .filter(|path| !path.starts_with('.'))
        .filter_map(|path| {
            let (first, rest) = path.split_once('/')?;
            if !SHELVES.contains(&first) {
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

| path | what |
|---|---|
| `crates/base` | |
| `crates/gone` | |
| `docs/` | |

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
        assert_eq!(
            check(&tree),
            [
                Problem::new(
                    "ARCHITECTURE.md:8",
                    "the map names crates/gone, which does not exist"
                ),
                Problem::new(PAGE, "the map has no row `crates/new`"),
                Problem::new(PAGE, "the map has no row `tests`"),
            ]
        );
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
