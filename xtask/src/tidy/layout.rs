//! Which crate may depend on which.

use std::collections::BTreeSet;

use super::Problem;
use crate::workspace::{Dependency, Package};

/// A crate may depend on what its line names, and on what that may depend on. Every line names
/// only crates above it, so that there is no circle.
const LAYOUT: [(&str, &[&str]); 17] = [
    ("base", &[]),
    ("record", &["base"]),
    ("ring", &["base"]),
    ("share", &[]),
    ("log", &["record"]),
    ("wire", &["record"]),
    ("replica", &["base"]),
    ("exchange", &["base"]),
    ("flow", &["ring", "exchange"]),
    ("client", &["wire", "share"]),
    ("connect", &["flow", "log", "client"]),
    ("broker", &["log", "wire", "replica", "share"]),
    ("serve", &["connect", "broker"]),
    ("ads", &["connect"]),
    ("logparser", &["flow"]),
    ("millstream", &["serve", "ads", "logparser"]),
    ("sim", &["broker", "connect"]),
];

/// For tests only: every crate may use it there, none elsewhere.
const SIMULATOR: &str = "sim";

/// Crates that are tested with others, on which they do not stand.
const TESTED_WITH: [(&str, &str); 2] = [("client", "broker"), ("connect", "broker")];

pub fn check(packages: &[Package]) -> Vec<Problem> {
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<Problem> {
    let place = package.manifest_path.display().to_string();
    let Some(allowed) = allowed(package) else {
        return vec![Problem::new(
            place,
            format!("this crate is missing in the layout ({})", file!()),
        )];
    };
    let for_tests = for_tests(package);
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
            Problem::new(
                &place,
                format!("the layout ({}) does not let it depend on {name}", file!()),
            )
        })
        .collect()
}

/// The crates that a package may depend on; `None` if it should be in the layout and is not.
fn allowed(package: &Package) -> Option<BTreeSet<&'static str>> {
    match package.crate_name() {
        Some(name) => LAYOUT
            .iter()
            .any(|(known, _)| *known == name)
            .then(|| below(name)),
        None if package.name == env!("CARGO_PKG_NAME") => Some(BTreeSet::new()),
        // Benchmarks and end-to-end tests stand on top of everything.
        None => {
            let mut all = below("millstream");
            all.insert("millstream");
            Some(all)
        }
    }
}

/// What the tests of a package may use beyond that.
fn for_tests(package: &Package) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::from([SIMULATOR]);
    let name = package.crate_name();
    for (_, other) in TESTED_WITH.iter().filter(|(known, _)| Some(*known) == name) {
        found.insert(*other);
        found.extend(below(other));
    }
    found
}

/// Everything that a crate of the layout may depend on.
fn below(name: &str) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    for (_, direct) in LAYOUT.iter().filter(|(known, _)| *known == name) {
        for dependency in *direct {
            found.insert(*dependency);
            found.extend(below(dependency));
        }
    }
    found
}

/// The name in the layout of one of our own packages.
fn crate_of(package_name: &str) -> Option<&str> {
    match package_name {
        "millstream" => Some(package_name),
        _ => package_name.strip_prefix("millstream-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_only_crates_above_it() {
        for (index, (name, direct)) in LAYOUT.iter().enumerate() {
            for dependency in *direct {
                let above = LAYOUT[..index].iter().any(|(known, _)| known == dependency);
                assert!(above, "{name} → {dependency}");
            }
        }
    }

    #[test]
    fn the_library_stands_on_all_but_the_simulator() {
        let mut all = below("millstream");
        all.extend(["millstream", SIMULATOR]);
        assert_eq!(all, LAYOUT.iter().map(|(name, _)| *name).collect());
    }

    #[track_caller]
    fn check_one(folder: &str, dependencies: &[(&str, Option<&str>)], problems: usize) {
        let package = Package::of(folder, "", dependencies);
        assert_eq!(check(&[package]).len(), problems);
    }

    #[test]
    fn allows_what_the_layout_names_and_what_that_stands_on() {
        check_one("crates/log", &[("millstream-record", None)], 0);
        check_one(
            "crates/log",
            &[("millstream-base", None), ("tokio", None)],
            0,
        );
        check_one("crates/log", &[("millstream-flow", None)], 1);
        check_one("crates/log", &[("millstream-wire", Some("dev"))], 1);
        check_one("crates/log", &[("millstream-sim", Some("dev"))], 0);
        check_one("crates/log", &[("millstream-sim", None)], 1);
        check_one("crates/log", &[("millstream-bench", None)], 1);
        check_one("crates/sim", &[("millstream-log", None)], 0);
        check_one("crates/client", &[("millstream-log", Some("dev"))], 0);
        check_one("crates/client", &[("millstream-broker", None)], 1);
        check_one("crates/other", &[], 1);
        check_one("apps/ads", &[("millstream-log", None)], 0);
        check_one("apps/ads", &[("millstream", None)], 1);
        check_one(
            "bench",
            &[("millstream", None), ("millstream-log", None)],
            0,
        );
    }
}
