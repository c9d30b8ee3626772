//! Checks the manifest of every package.

use super::Problem;
use crate::tree::Tree;
use crate::workspace::Package;

pub fn check(tree: &Tree, packages: &[Package]) -> Vec<Problem> {
    packages
        .iter()
        .flat_map(|package| {
            let place = package.manifest_path.display().to_string();
            let manifest = tree.text(&place).unwrap_or_default();
            complaints(package, manifest)
                .into_iter()
                .map(move |what| Problem::new(&place, what))
        })
        .collect()
}

fn complaints(package: &Package, manifest: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if package.description.is_none() {
        complaints.push("a description is missing".to_owned());
    }
    if package.license.is_none() {
        complaints.push("license.workspace = true is missing".to_owned());
    }
    if !manifest.contains("[lints]\nworkspace = true\n") {
        complaints.push("[lints] workspace = true is missing".to_owned());
    }
    if let Some(name) = package.crate_name() {
        let expected = match name {
            "millstream" => name.to_owned(),
            _ => format!("millstream-{name}"),
        };
        if package.name != expected {
            complaints.push(format!("its name is {}, not {expected}", package.name));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\n\n[lints]\nworkspace = true\n";

    #[test]
    fn a_complete_manifest_passes() {
        for (folder, name) in [
            ("crates/log", "millstream-log"),
            ("crates/millstream", "millstream"),
            ("xtask", "xtask"),
        ] {
            let package = Package::of(folder, name, &[]);
            assert_eq!(complaints(&package, MANIFEST), [""; 0]);
        }
    }

    #[test]
    fn missing_fields_are_reported() {
        let mut package = Package::of("crates/log", "log", &[]);
        package.description = None;
        package.license = None;
        assert_eq!(complaints(&package, "[package]\n").len(), 4);
    }
}
