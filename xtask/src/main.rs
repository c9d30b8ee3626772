//! The project's own checks: what no compiler sees. `cargo xtask tidy` runs all of them.

mod markdown;
mod tidy;
mod tree;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::tidy::Problem;
use crate::tree::Tree;

const USAGE: &str = "usage: cargo xtask tidy";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words != ["tidy"] {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    match tidy() {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in &problems {
                eprintln!("{problem}");
            }
            eprintln!("tidy: {} problems", problems.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn tidy() -> anyhow::Result<Vec<Problem>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no parent folder")?;
    let tree = Tree::read(root)?;
    let packages = workspace::packages(root)?;
    tidy::run(&tree, &packages)
}
