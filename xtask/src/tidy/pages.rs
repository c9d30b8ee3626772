//! Checks the links between pages, the index of the guide, and the change log.

use std::collections::BTreeSet;

use super::Problem;
use crate::markdown;
use crate::tree::Tree;
use crate::workspace::Package;

const INDEXES: [&str; 2] = ["README.md", "docs/README.md"];
const CHANGELOG: &str = "CHANGELOG.md";

/// Links within the project must lead to a file or folder.
pub fn check_links(tree: &Tree) -> Vec<Problem> {
    pages(tree)
        .flat_map(|(path, page)| {
            markdown::links(page).into_iter().filter_map(move |link| {
                let target = resolve(path, &link.value)?;
                (!tree.has(&target)).then(|| {
                    let what = format!("the link leads to {target}, which does not exist");
                    Problem::at_line(path, link.line, what)
                })
            })
        })
        .collect()
}

/// The index must link each page of the guide, and some page must link each other file in the guide's folder.
pub fn check_index(tree: &Tree) -> Vec<Problem> {
    let mut in_index = BTreeSet::from(INDEXES.map(str::to_owned));
    let mut on_any_page = BTreeSet::new();
    for (path, page) in pages(tree) {
        let targets = markdown::links(page);
        let targets = targets.iter().filter_map(|link| resolve(path, &link.value));
        match INDEXES.contains(&path) {
            true => in_index.extend(targets),
            false => on_any_page.extend(targets),
        }
    }
    tree.paths()
        .filter(|path| path.starts_with("docs/") && !in_index.contains(*path))
        .filter(|path| path.ends_with(".md") || !on_any_page.contains(*path))
        .map(|path| {
            Problem::new(
                path,
                format!("no link in {} leads here", INDEXES.join(" or ")),
            )
        })
        .collect()
}

/// The change log must have a section for the present version, or one called Unreleased.
pub fn check_changelog(tree: &Tree, packages: &[Package]) -> Vec<Problem> {
    let headings = tree
        .text(CHANGELOG)
        .map(markdown::headings)
        .unwrap_or_default();
    let is_current = |heading: &String| {
        let title = heading.split_whitespace().next().unwrap_or_default();
        title == "Unreleased" || packages.iter().any(|package| package.version == title)
    };
    if headings.iter().any(is_current) {
        return Vec::new();
    }
    let what = "it has no section for this version, and none called Unreleased";
    vec![Problem::new(CHANGELOG, what)]
}

fn pages(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.texts().filter(|(path, _)| path.ends_with(".md"))
}

/// The path that a link on `page` leads to; `None` if it leads out of the project or stays on the
/// page.
fn resolve(page: &str, link: &str) -> Option<String> {
    let target = link.split('#').next().unwrap_or_default();
    if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let mut path: Vec<&str> = page.split('/').collect();
    path.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." if !path.is_empty() => {
                path.pop();
            }
            _ => path.push(part),
        }
    }
    Some(path.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_relative_to_its_page() {
        let check = |page, link, expect: Option<&str>| {
            assert_eq!(resolve(page, link).as_deref(), expect);
        };
        check("README.md", "docs/a.md#part", Some("docs/a.md"));
        check("docs/a.md", "../README.md", Some("README.md"));
        check("docs/a.md", "./b/", Some("docs/b"));
        check("docs/a.md", "../../a", Some("../a"));
        check("docs/a.md", "#part", None);
        check("docs/a.md", "https://example.org/a", None);
        check("docs/a.md", "mailto:a@example.org", None);
    }

    fn places(problems: Vec<Problem>) -> Vec<String> {
        problems.into_iter().map(|problem| problem.place).collect()
    }

    #[test]
    fn links_must_lead_somewhere_and_the_guide_must_be_found() {
        let tree = Tree::of(&[
            ("README.md", "[guide](docs/) [gone](gone.md)"),
            ("docs/README.md", "\n[a](a.md)"),
            ("docs/a.md", "![plot](plot.svg) [hidden](hidden.md)"),
            ("docs/plot.svg", ""),
            ("docs/hidden.md", ""),
            ("docs/lost.svg", ""),
        ]);
        assert_eq!(places(check_links(&tree)), ["README.md:1"]);
        assert_eq!(
            places(check_index(&tree)),
            ["docs/hidden.md", "docs/lost.svg"]
        );
    }

    #[test]
    fn the_change_log_must_be_current() {
        let check = |log, problems| {
            let tree = Tree::of(&[(CHANGELOG, log)]);
            let packages = [Package::of("xtask", "xtask", &[])];
            assert_eq!(check_changelog(&tree, &packages).len(), problems);
        };
        check("## Unreleased\n", 0);
        check("## 0.1.0 (2026-11-20)\n", 0);
        check("## 0.0.9\n", 1);
        check("", 1);
    }
}
