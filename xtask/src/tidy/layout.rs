//! Checks the dependencies between crates against the map in ARCHITECTURE.md.

use std::collections::BTreeSet;

use super::Problem;
use super::map::{PAGE, Row};
use crate::workspace::{Dependency, Package};

/// The crates for tests: every crate may use them in tests.
const FOR_TESTS: [&str; 2] = ["sim", "testing"];

/// Crates whose tests use further crates.
const TESTED_WITH: [(&str, &str); 3] =
    [("client", "broker"), ("connect", "broker"), ("sim", "log")];

/// Compares the dependencies of all packages with the map. A crate may depend on the crates that its row names, and on
/// their dependencies. A row names only crates above it, so circles are impossible, and only real dependencies.
pub fn check(rows: &[Row], packages: &[Package]) -> Vec<Problem> {
    let layout = Layout { rows };
    let of_rows = rows.iter().enumerate();
    let mut problems: Vec<Problem> = of_rows
        .flat_map(|(index, row)| layout.check_row(index, row, packages))
        .collect();
    problems.extend(
        packages
            .iter()
            .flat_map(|package| layout.check_package(package)),
    );
    problems
}

struct Layout<'a> {
    rows: &'a [Row],
}

impl<'a> Layout<'a> {
    fn check_row(&self, index: usize, row: &Row, packages: &[Package]) -> Vec<Problem> {
        let package = packages.iter().find(|package| is_of(row, package));
        let uses = |name: &str| match package {
            Some(package) => package.dependencies.iter().any(|dependency| {
                dependency.kind.is_none() && crate_of(&dependency.name) == Some(name)
            }),
            // A package outside of the workspace.
            None => true,
        };
        let problem = |what| Problem::at_line(PAGE, row.line, what);
        row.stands_on
            .iter()
            .filter_map(|name| {
                let above = self.rows[..index].iter().any(|row| row.name() == name);
                match () {
                    () if !above => Some(problem(format!("no row above is for {name}"))),
                    () if !uses(name) => {
                        let path = &row.path;
                        Some(problem(format!(
                            "{path} does not depend on {name}: remove it"
                        )))
                    }
                    () => None,
                }
            })
            .collect()
    }

    fn check_package(&self, package: &Package) -> Vec<Problem> {
        let place = package.manifest_path.display().to_string();
        let Some(row) = self.rows.iter().find(|row| is_of(row, package)) else {
            return vec![Problem::new(
                place,
                format!("the map in {PAGE} has no row for it"),
            )];
        };
        let allowed = self.below(row);
        let for_tests = self.for_tests(row.name());
        let is_allowed = |dependency: &Dependency, name: &&str| {
            allowed.contains(*name)
                || for_tests.contains(*name) && dependency.kind.as_deref() == Some("dev")
        };
        package
            .dependencies
            .iter()
            .filter_map(|dependency| Some((dependency, crate_of(&dependency.name)?)))
            .filter(|(dependency, name)| !is_allowed(dependency, name))
            .map(|(_, name)| {
                let what = format!("the map in {PAGE} does not let it depend on {name}");
                Problem::new(&place, what)
            })
            .collect()
    }

    /// The crates that the tests of a crate may use in addition to its dependencies.
    fn for_tests(&self, name: &str) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::from(FOR_TESTS);
        for (_, other) in TESTED_WITH.iter().filter(|(known, _)| *known == name) {
            found.insert(*other);
            found.extend(
                self.named(other)
                    .into_iter()
                    .flat_map(|row| self.below(row)),
            );
        }
        found
    }

    /// All crates that a crate may depend on.
    fn below(&self, row: &'a Row) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        for name in &row.stands_on {
            found.insert(name.as_str());
            // A row that names itself or a later row is reported elsewhere. Following it could loop forever.
            let rows = self
                .named(name)
                .into_iter()
                .filter(|other| other.line < row.line);
            found.extend(rows.flat_map(|row| self.below(row)));
        }
        found
    }

    fn named(&self, name: &str) -> Option<&'a Row> {
        self.rows.iter().find(|row| row.name() == name)
    }
}

fn is_of(row: &Row, package: &Package) -> bool {
    package.folder().to_str() == Some(&row.path)
}

/// The name of a crate's folder, if the package belongs to the workspace.
fn crate_of(package_name: &str) -> Option<&str> {
    match package_name {
        "millstream" => Some(package_name),
        _ => package_name.strip_prefix("millstream-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: usize, path: &str, stands_on: &[&str]) -> Row {
        Row {
            line,
            path: path.to_owned(),
            stands_on: stands_on.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn rows() -> [Row; 6] {
        [
            row(1, "crates/base", &[]),
            row(2, "crates/record", &["base"]),
            row(3, "crates/sim", &["base"]),
            row(4, "crates/log", &["record"]),
            row(5, "crates/broker", &["log"]),
            row(6, "crates/client", &["record"]),
        ]
    }

    #[track_caller]
    fn check_one(folder: &str, dependencies: &[(&str, Option<&str>)], problems: &[&str]) {
        let package = Package::of(folder, "", dependencies);
        let found = check(&rows(), &[package]);
        let found: Vec<String> = found.into_iter().map(|problem| problem.what).collect();
        assert_eq!(found, problems);
    }

    #[test]
    fn a_crate_may_use_the_crates_of_its_row_and_their_dependencies() {
        let record = ("millstream-record", None);
        let refused = ["the map in ARCHITECTURE.md does not let it depend on client"];
        check_one("crates/log", &[record], &[]);
        check_one(
            "crates/log",
            &[record, ("millstream-base", None), ("tokio", None)],
            &[],
        );
        check_one(
            "crates/log",
            &[record, ("millstream-client", None)],
            &refused,
        );
        check_one(
            "crates/log",
            &[record, ("millstream-client", Some("dev"))],
            &refused,
        );
        check_one(
            "crates/log",
            &[record, ("millstream-sim", Some("dev"))],
            &[],
        );
        let refused = ["the map in ARCHITECTURE.md does not let it depend on sim"];
        check_one("crates/log", &[record, ("millstream-sim", None)], &refused);
        check_one(
            "crates/client",
            &[record, ("millstream-log", Some("dev"))],
            &[],
        );
        let refused = ["the map in ARCHITECTURE.md does not let it depend on log"];
        check_one(
            "crates/client",
            &[record, ("millstream-log", None)],
            &refused,
        );
        let missing = ["the map in ARCHITECTURE.md has no row for it"];
        check_one("crates/other", &[], &missing);
    }

    #[test]
    fn a_row_names_crates_above_it_on_which_its_crate_depends() {
        let unused = ["crates/log does not depend on record: remove it"];
        check_one("crates/log", &[("millstream-base", None)], &unused);
        check_one("crates/log", &[("millstream-record", Some("dev"))], &unused);
        let circle = [row(1, "crates/a", &["b"]), row(2, "crates/b", &["a", "b"])];
        let found = check(&circle, &[]);
        let found: Vec<String> = found.into_iter().map(|problem| problem.what).collect();
        assert_eq!(found, ["no row above is for b", "no row above is for b"]);
    }
}
