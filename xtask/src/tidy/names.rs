//! Checks that files named on pages and in comments exist.

use super::Problem;
use crate::markdown;
use crate::prose::{self, Kind};
use crate::tree::Tree;

/// Endings of the project's files: a piece of code with one of these endings names a file.
const SOURCES: [&str; 2] = [".rs", ".py"];

/// Folders of the project: a piece of code that begins with one names a file or folder in it.
const FOLDERS: [&str; 8] = [
    "apps/", "bench/", "crates/", "docs/", "fuzz/", "scripts/", "tests/", "xtask/",
];

/// Reports names of missing files and folders, on pages and in comments.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let texts = tree.texts().filter(|(path, _)| !is_history(path));
    texts
        .flat_map(|(path, text)| {
            let named = match path.ends_with(".md") {
                true => markdown::codes(text),
                false => in_comments(path, text),
            };
            let gone = named.into_iter().filter(|name| !exists(tree, &name.value));
            gone.map(|name| {
                let what = format!("`{}` does not exist", name.value);
                Problem::at_line(path, name.line, what)
            })
            .collect::<Vec<_>>()
        })
        .collect()
}

/// The change log may name files of the past.
fn is_history(path: &str) -> bool {
    path == "CHANGELOG.md"
}

/// The pieces of code in the comments of a source file.
fn in_comments(path: &str, text: &str) -> Vec<markdown::At<String>> {
    let pieces = prose::pieces(path, text).into_iter();
    let comments = pieces.filter(|piece| piece.kind == Kind::Comment);
    let lines = comments.flat_map(|piece| {
        let lines: Vec<String> = piece.text.lines().map(str::to_owned).collect();
        (piece.line..).zip(lines)
    });
    lines
        .flat_map(|(line, comment)| {
            let codes = comment.split('`').skip(1).step_by(2);
            let codes = codes.map(|code| markdown::At {
                line,
                value: code.to_owned(),
            });
            codes.collect::<Vec<_>>()
        })
        .collect()
}

/// Whether a piece of code is not the name of a file, or names an existing file by its path or by the end of it.
fn exists(tree: &Tree, code: &str) -> bool {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_source = SOURCES
        .iter()
        .any(|end| code.strip_suffix(end).is_some_and(|stem| !stem.is_empty()));
    let is_inside = FOLDERS.iter().any(|folder| code.starts_with(folder));
    if !code.chars().all(is_path) || !(is_source || is_inside) {
        return true;
    }
    let end = format!("/{code}");
    tree.has(code) || tree.paths().any(|path| path.ends_with(&end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_file_must_exist() {
        let page = "`a.rs`, `x/a.rs`, `crates/x/`, `gone.rs`, `crates/y`, `f()`, `.rs`\n";
        let code =
            "//! As `gone.rs` says.\nlet x = \"`other.rs`\"; // `fine`\n    // See `a.rs`.\n";
        let tree = Tree::of(&[
            ("README.md", page),
            ("crates/x/a.rs", code),
            ("CHANGELOG.md", page),
        ]);
        let gone =
            |place: &str, name: &str| Problem::new(place, format!("`{name}` does not exist"));
        assert_eq!(
            check(&tree),
            [
                gone("README.md:1", "gone.rs"),
                gone("README.md:1", "crates/y"),
                gone("crates/x/a.rs:1", "gone.rs"),
            ]
        );
    }
}
