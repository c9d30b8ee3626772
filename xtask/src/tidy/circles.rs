//! Finds circles of files. A reader can understand a file of a circle only together with all others.

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;

use super::{Problem, folders};
use crate::modules::Files;
use crate::tree::Tree;
use crate::workspace::Package;

/// The most files of a folder that may use each other in a circle: one idea in several files.
const CIRCLE_FILES_MAX: usize = 4;

/// Reports circles of files in different folders of a crate, circles of too many files in one folder, and circles of
/// folders.
pub fn check(tree: &Tree, packages: &[Package]) -> anyhow::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for package in packages {
        for root in ["lib.rs", "main.rs"] {
            let root = package.folder().join("src").join(root);
            let root = root.display().to_string();
            if tree.has(&root) {
                let files = Files::read(tree, &root)?;
                problems.extend(circles(&files));
                let name = package.crate_name().unwrap_or_default();
                problems.extend(folders::check(&files, name));
            }
        }
    }
    Ok(problems)
}

fn circles(files: &Files) -> Vec<Problem> {
    let uses = files.uses.iter().enumerate();
    let edges = uses.flat_map(|(from, uses)| uses.keys().map(move |to| (from as u32, *to as u32)));
    let graph = DiGraph::<(), ()>::from_edges(edges);
    let circles = tarjan_scc(&graph)
        .into_iter()
        .filter(|circle| circle.len() > 1);
    circles
        .filter_map(|circle| {
            let mut circle: Vec<usize> = circle.into_iter().map(|file| file.index()).collect();
            circle.sort_by_key(|file| &files.paths[*file]);
            let first = folder(files, circle[0]);
            let is_of_one_folder = circle.iter().all(|file| folder(files, *file) == first);
            (!is_of_one_folder || circle.len() > CIRCLE_FILES_MAX)
                .then(|| Problem::new(&files.paths[circle[0]], describe(files, &circle)))
        })
        .collect()
}

/// The folder of a file. A file with modules in a folder of its own name belongs to that folder.
fn folder(files: &Files, file: usize) -> &str {
    let path = &files.paths[file];
    let stem = path.trim_end_matches(".rs");
    let has_modules = files.paths.iter().any(|other| {
        other
            .strip_prefix(stem)
            .is_some_and(|rest| rest.starts_with('/'))
    });
    match has_modules {
        true => stem,
        false => path.rsplit_once('/').map_or("", |(folder, _)| folder),
    }
}

fn describe(files: &Files, circle: &[usize]) -> String {
    let mut text = format!(
        "{} files use each other in a circle; at most {CIRCLE_FILES_MAX} of one folder may:",
        circle.len()
    );
    for from in circle {
        for (to, names) in &files.uses[*from] {
            if circle.contains(to) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let (from, to) = (&files.paths[*from], &files.paths[*to]);
                text += &format!("\n    {from} uses {} of {to}", names.join(", "));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_one(files: &[(&str, &str)], expected: usize) {
        let files = Files::read(&Tree::of(files), "src/lib.rs").unwrap();
        assert_eq!(circles(&files).len(), expected);
    }

    #[test]
    fn files_of_different_folders_use_each_other_in_one_direction() {
        let root = ("src/lib.rs", "mod a; mod b;");
        let used = ("src/b.rs", "pub struct B;");
        let user = ("src/a/mod.rs", "use crate::b::B; pub struct A;");
        check_one(&[root, user, used], 0);
        let circle = ("src/b.rs", "pub struct B; use crate::a::A;");
        check_one(&[root, user, circle], 1);
    }

    #[test]
    fn a_few_files_of_a_folder_may_use_each_other() {
        let names = ["a", "b", "c", "d", "e"];
        for (count, expected) in [(4, 0), (5, 1)] {
            let names = &names[..count];
            let root: String = names.iter().map(|name| format!("mod {name};")).collect();
            let mut files = vec![("src/lib.rs".to_owned(), root)];
            for (index, name) in names.iter().enumerate() {
                let next = names[(index + 1) % count];
                let code = format!("pub struct S; use crate::{next}::S as Next;");
                files.push((format!("src/{name}.rs"), code));
            }
            let files: Vec<(&str, &str)> = files
                .iter()
                .map(|(path, code)| (path.as_str(), code.as_str()))
                .collect();
            check_one(&files, expected);
        }
    }
}
