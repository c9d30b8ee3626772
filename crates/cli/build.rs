//! Names the program's version: the version of the package, and the commit if the sources are a git checkout.

use std::path::Path;
use std::process::Command;

/// Builds from an exported tree, such as a container image's, name their commit in this variable.
const COMMIT_VARIABLE: &str = "BUILD_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={COMMIT_VARIABLE}");
    let given = std::env::var(COMMIT_VARIABLE).ok();
    let commit = given.filter(|it| !it.is_empty()).or_else(checked_out);
    let commit = commit.as_deref().unwrap_or("unknown");
    let version = env!("CARGO_PKG_VERSION");
    // Cargo also sets this in the environment of `cargo run` and `cargo test`, where the program refuses unknown
    // variables that start with `MILLSTREAM_`.
    println!("cargo:rustc-env=PROGRAM_VERSION={version} ({commit})");
}

/// Returns the commit of the checkout that contains this package, and lets cargo run this again when it changes.
fn checked_out() -> Option<String> {
    // An exported tree inside another project's repository has no commit of its own.
    if git(&["rev-parse", "--show-prefix"])? != "crates/cli/" {
        return None;
    }
    // Every change of the checked-out commit changes one of the two, also in a worktree. Cargo would run this at each
    // build if it watched a missing file.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
