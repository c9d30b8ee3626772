//! `millstream completion` and `millstream man`: files for shells and for `man`, made from the commands themselves.

use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_complete::{Shell, generate};
use serde_json::json;

use crate::console::{count_of, print, report};
use crate::usage::WrongUsage;

/// Prints the script that completes commands and flags in a shell.
pub fn complete(shell: Shell, mut command: Command, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return Err(WrongUsage::error(
            "completion prints a script for a shell, and no JSON: leave out --json",
        ));
    }
    let mut script = Vec::new();
    generate(shell, &mut command, "millstream", &mut script);
    print(|out| std::io::Write::write_all(out, &script))
}

/// Writes a page for each command into a directory.
pub fn man(dir: &Path, command: Command, is_json: bool) -> anyhow::Result<()> {
    let shown = dir.display();
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {shown}"))?;
    let command = command.disable_help_subcommand(true);
    clap_mangen::generate_to(command, dir)
        .with_context(|| format!("cannot write pages to {shown}"))?;
    let pages = std::fs::read_dir(dir).with_context(|| format!("cannot list {shown}"))?;
    let pages = pages.filter_map(Result::ok).map(|page| page.file_name());
    let pages = pages.filter(|name| name.to_string_lossy().starts_with("millstream"));
    let mut pages: Vec<_> = pages
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    pages.sort();
    let count = count_of(pages.len() as u64, "page");
    report(
        is_json,
        &json!({ "directory": dir, "pages": pages }),
        format_args!("wrote {count} to {shown}"),
    )
}
