//! Checks that only the few modules that need `unsafe` code allow it.

use super::Problem;
use crate::tree::Tree;

/// The beginnings of the paths of files that may allow it.
const PERMITTED: [&str; 5] = [
    "crates/ring/src/",
    "crates/share/src/",
    "crates/log/src/memory/buffer",
    "crates/client/src/mapping",
    "crates/exchange/src/mpi",
];

pub fn check(tree: &Tree) -> Vec<Problem> {
    tree.texts()
        .filter(|(path, _)| path.ends_with(".rs"))
        .filter(|(path, _)| !PERMITTED.iter().any(|start| path.starts_with(start)))
        .flat_map(|(path, text)| {
            lines_that_allow(text).map(move |line| {
                let what = format!(
                    "unsafe code is allowed here, but only {} may do so, each in its own file",
                    PERMITTED.join(", ")
                );
                Problem::at_line(path, line, what)
            })
        })
        .collect()
}

fn lines_that_allow(text: &str) -> impl Iterator<Item = usize> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| {
            let attribute = line.trim_start();
            (attribute.starts_with("#[") || attribute.starts_with("#!["))
                && attribute.contains("unsafe_code")
        })
        .map(|(index, _)| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_permitted_in_few_places() {
        let code = "//! No unsafe_code.\n\n#![allow(unsafe_code)]\n";
        let tree = Tree::of(&[
            ("crates/ring/src/lib.rs", code),
            ("crates/log/src/memory/buffer.rs", code),
            ("crates/log/src/lane.rs", code),
        ]);
        let places: Vec<String> = check(&tree).into_iter().map(|found| found.place).collect();
        assert_eq!(places, ["crates/log/src/lane.rs:3"]);
    }
}
