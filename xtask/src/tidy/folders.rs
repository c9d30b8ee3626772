//! Holds the folders of some crates in floors: no folder uses another one that uses it, directly or through others.
//!
//! A file beside `lib.rs` counts as a folder of its own, together with the folder that has its name.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Problem;
use crate::modules::Files;

/// The crates whose folders form floors.
const CRATES: [&str; 3] = ["broker", "flow", "log"];

/// Files that may still use a folder above theirs, each with that folder. The list may only shrink: move the used item
/// to a lower folder instead of adding a line.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/log/src/core.rs", "compact"),
    ("crates/log/src/core.rs", "persist"),
    ("crates/log/src/files/manifest/state.rs", "lane"),
    ("crates/log/src/files/upgrade.rs", "journal"),
    ("crates/log/src/hold.rs", "lane"),
    ("crates/log/src/lane/mod.rs", "compact"),
];

/// Reports circles of folders in the crate of this name, and exceptions that it no longer needs.
pub fn check(files: &Files, name: &str) -> Vec<Problem> {
    if !CRATES.contains(&name) {
        return Vec::new();
    }
    let source = format!("crates/{name}/src/");
    let exceptions = EXCEPTIONS.iter().copied();
    let exceptions: Vec<_> = exceptions
        .filter(|(file, _)| file.starts_with(&source))
        .collect();
    problems(files, &exceptions)
}

/// The uses from one folder to another, each as the indexes of two files.
type Arrows<'a> = BTreeMap<(&'a str, &'a str), Vec<(usize, usize)>>;

fn problems(files: &Files, exceptions: &[(&str, &str)]) -> Vec<Problem> {
    let mut arrows = Arrows::new();
    let mut excepted = Vec::new();
    for (from, uses) in files.uses.iter().enumerate() {
        for to in uses.keys().copied() {
            let (user, used) = (folder(files, from), folder(files, to));
            let exception = (files.paths[from].as_str(), used);
            match exceptions.contains(&exception) {
                _ if user == used => {}
                true => excepted.push((exception, user)),
                false => arrows.entry((user, used)).or_default().push((from, to)),
            }
        }
    }
    let mut problems = Vec::new();
    for exception in exceptions {
        let mut uses = excepted.iter().filter(|(found, _)| found == exception);
        if !uses.any(|((_, used), user)| path(&arrows, used, user).is_some()) {
            let (file, used) = exception;
            let what = format!(
                "its use of the folder {used} closes no circle any more: remove it from the list in folders.rs"
            );
            problems.push(Problem::new(*file, what));
        }
    }
    while let Some(circle) = shortest_circle(&arrows) {
        let mut text = format!(
            "{} folders use each other in a circle; move items to a lower folder:",
            circle.len()
        );
        let mut first = None;
        for arrow in circle {
            for (from, to) in arrows.remove(&arrow).unwrap_or_default() {
                let names: Vec<&str> = files.uses[from][&to].iter().map(String::as_str).collect();
                let (from, to) = (&files.paths[from], &files.paths[to]);
                text += &format!("\n    {from} uses {} of {to}", names.join(", "));
                first.get_or_insert(from);
            }
        }
        problems.push(Problem::new(first.cloned().unwrap_or_default(), text));
    }
    problems
}

/// The folder of a file, or its own name for a file beside `lib.rs`.
fn folder(files: &Files, file: usize) -> &str {
    let (source, _) = files.paths[0].rsplit_once('/').unwrap_or_default();
    let path = files.paths[file].strip_prefix(source).unwrap_or_default();
    let path = path.trim_matches('/');
    path.split_once('/')
        .map_or(path.trim_end_matches(".rs"), |(first, _)| first)
}

/// Returns the arrows of a circle that has as few as any.
fn shortest_circle<'a>(arrows: &Arrows<'a>) -> Option<Vec<(&'a str, &'a str)>> {
    let circles = arrows.keys().filter_map(|(user, used)| {
        let mut circle = path(arrows, used, user)?;
        circle.push((*user, *used));
        Some(circle)
    });
    circles.min_by_key(Vec::len)
}

/// Returns the arrows of a shortest path from one folder to another.
fn path<'a>(arrows: &Arrows<'a>, from: &str, to: &str) -> Option<Vec<(&'a str, &'a str)>> {
    let mut visited = BTreeSet::new();
    let mut ends = VecDeque::from([(from, Vec::new())]);
    while let Some((end, path)) = ends.pop_front() {
        if end == to {
            return Some(path);
        }
        if !visited.insert(end) {
            continue;
        }
        for arrow in arrows.keys().filter(|(user, _)| *user == end) {
            let longer = path.iter().chain([arrow]).copied().collect();
            ends.push_back((arrow.1, longer));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    const ROOT: (&str, &str) = ("src/lib.rs", "mod a; mod b; mod c;");

    /// Checks the problems of a crate: for each its place.
    #[track_caller]
    fn check_all(files: &[(&str, &str)], exceptions: &[(&str, &str)], expected: &[&str]) {
        let files = Files::read(&Tree::of(files), "src/lib.rs").unwrap();
        let found = problems(&files, exceptions);
        let places: Vec<&str> = found.iter().map(|problem| &*problem.place).collect();
        assert_eq!(places, expected, "{found:?}");
    }

    /// A folder `a` with two files, of which one uses `b`, and the other one is used by `c`.
    fn crate_with<'a>(b: &'a str, c: &'a str) -> [(&'a str, &'a str); 6] {
        [
            ROOT,
            ("src/a/mod.rs", "pub mod high; pub mod low;"),
            ("src/a/high.rs", "use crate::b::B;"),
            ("src/a/low.rs", "pub struct Low;"),
            ("src/b.rs", b),
            ("src/c.rs", c),
        ]
    }

    #[test]
    fn folders_use_each_other_in_one_direction() {
        let files = crate_with("pub struct B;", "use crate::a::low::Low;");
        check_all(&files, &[], &[]);
        // No file of these uses another one that leads back to it.
        let files = crate_with("pub struct B; use crate::a::low::Low;", "");
        check_all(&files, &[], &["src/b.rs"]);
        let files = crate_with(
            "pub struct B; use crate::c::C;",
            "pub struct C; use crate::a::low::Low;",
        );
        check_all(&files, &[], &["src/b.rs"]);
    }

    #[test]
    fn a_file_belongs_to_the_folder_of_its_name() {
        let files = [
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "pub mod low; use crate::b::B;"),
            ("src/a/low.rs", "pub struct Low;"),
            ("src/b.rs", "pub struct B; use crate::a::low::Low;"),
        ];
        check_all(&files, &[], &["src/b.rs"]);
    }

    #[test]
    fn an_exception_stands_while_its_use_closes_a_circle() {
        let exception = [("src/b.rs", "a")];
        let circle = crate_with("pub struct B; use crate::a::low::Low;", "");
        check_all(&circle, &exception, &[]);
        let unused = crate_with("pub struct B;", "");
        check_all(&unused, &exception, &["src/b.rs"]);
        check_all(&unused, &[("src/gone.rs", "a")], &["src/gone.rs"]);
        let downward = crate_with("pub struct B;", "use crate::a::low::Low;");
        check_all(&downward, &[("src/c.rs", "a")], &["src/c.rs"]);
        let other = crate_with(
            "pub struct B; use crate::a::low::Low;",
            "use crate::a::low::Low;",
        );
        check_all(&other, &[("src/c.rs", "a")], &["src/c.rs", "src/b.rs"]);
    }
}
