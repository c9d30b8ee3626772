//! The project's own checks. `cargo xtask tidy` runs all of them; `cargo xtask circles` runs only the check for circles
//! of files, which is quick and helps while moving files. `cargo xtask requests` writes the table of requests into the page
//! of the protocol. `cargo xtask tests FILE` runs test programs.

mod markdown;
mod modules;
mod programs;
mod prose;
mod tidy;
mod tree;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::tidy::Problem;
use crate::tree::Tree;
use crate::workspace::Package;

const USAGE: &str = "usage: cargo xtask tidy|circles|requests|tests FILE";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let check: Check = match words[..] {
        ["tidy"] => tidy::run,
        ["circles"] => tidy::circles,
        ["requests"] => |tree: &Tree, _: &[Package]| tidy::write_requests(tree),
        ["tests", messages] => return run_tests(Path::new(messages)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(check) {
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

fn run_tests(messages: &Path) -> ExitCode {
    programs::run(messages).unwrap_or_else(|error| {
        eprintln!("tests: {error:#}");
        ExitCode::FAILURE
    })
}

type Check = fn(&Tree, &[Package]) -> anyhow::Result<Vec<Problem>>;

fn run(check: Check) -> anyhow::Result<Vec<Problem>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no parent folder")?;
    let tree = Tree::read(root)?;
    let packages = workspace::packages(root)?;
    check(&tree, &packages)
}
