//! The workspace's packages, from cargo's metadata.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub description: Option<String>,
    pub license: Option<String>,
    /// Relative to the root of the workspace.
    pub manifest_path: PathBuf,
    pub dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
pub struct Dependency {
    pub name: String,
    /// `None` for the library or program itself, else `dev` or `build`.
    pub kind: Option<String>,
}

impl Package {
    /// The folder of the package, relative to the root of the workspace.
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new(""))
    }

    /// The folder's name for a crate in `crates` or `apps`; `None` for other packages.
    pub fn crate_name(&self) -> Option<&str> {
        let shelves = ["crates", "apps"];
        let name = shelves.map(|shelf| self.folder().strip_prefix(shelf).ok());
        name.into_iter().flatten().next()?.to_str()
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

pub fn packages(root: &Path) -> anyhow::Result<Vec<Package>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--locked"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", output.status);
    }
    let mut metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cannot read cargo's metadata")?;
    for package in &mut metadata.packages {
        package.manifest_path = package.manifest_path.strip_prefix(root)?.to_owned();
    }
    Ok(metadata.packages)
}

#[cfg(test)]
impl Package {
    /// A package in `folder`, with everything a package must have.
    pub fn of(folder: &str, name: &str, dependencies: &[(&str, Option<&str>)]) -> Self {
        Self {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            description: Some("Something".to_owned()),
            license: Some("Apache-2.0".to_owned()),
            manifest_path: Path::new(folder).join("Cargo.toml"),
            dependencies: dependencies
                .iter()
                .map(|(name, kind)| Dependency {
                    name: (*name).to_owned(),
                    kind: kind.map(str::to_owned),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_contains_this_package() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let packages = packages(root).unwrap();
        let own = packages
            .iter()
            .find(|package| package.name == "xtask")
            .unwrap();
        assert_eq!(own.folder(), Path::new("xtask"));
        assert_eq!(own.crate_name(), None);
        let base = packages
            .iter()
            .find(|package| package.name == "millstream-base")
            .unwrap();
        assert_eq!(base.crate_name(), Some("base"));
    }
}
