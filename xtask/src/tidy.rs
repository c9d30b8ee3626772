//! The checks, one module each. A check reads the tree and returns its problems.

mod circles;
mod commands;
mod folders;
mod layout;
mod manifests;
mod map;
mod names;
mod pages;
mod problem;
mod requests;
mod unsafe_code;
mod words;

pub use self::circles::check as circles;
pub use self::problem::Problem;
pub use self::requests::write as write_requests;

use crate::tree::Tree;
use crate::workspace::Package;

/// Runs all checks. The commands of the guide come last, since they take longest.
pub fn run(tree: &Tree, packages: &[Package]) -> anyhow::Result<Vec<Problem>> {
    let mut problems = Vec::new();
    match map::rows(tree) {
        Ok(rows) => {
            problems.extend(map::check(tree, &rows));
            problems.extend(layout::check(&rows, packages));
        }
        Err(problem) => problems.push(problem),
    }
    problems.extend(circles::check(tree, packages)?);
    problems.extend(manifests::check(tree, packages));
    problems.extend(unsafe_code::check(tree));
    problems.extend(names::check(tree));
    problems.extend(pages::check_links(tree));
    problems.extend(pages::check_index(tree));
    problems.extend(pages::check_changelog(tree, packages));
    problems.extend(requests::check(tree));
    problems.extend(words::check(tree));
    problems.extend(commands::check(tree)?);
    Ok(problems)
}
