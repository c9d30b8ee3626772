//! The tasks that benchmarks give to child processes, by their names.

use anyhow::{Context as _, Result};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::child::Entry;
use crate::{keys, log, nexmark, push, ranks, serving, state, windows};

/// Runs a task in this process, which the kernel kills when its parent ends.
///
/// # Errors
/// When no task has this name, or the task fails.
pub fn run(name: &str, json: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let entry = entries().find(|entry| entry.name == name);
    let entry = entry.with_context(|| format!("there is no task {name:?}"))?;
    (entry.run)(json)
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    const ALL: [&[Entry]; 8] = [
        &log::TASKS,
        &keys::TASKS,
        &push::TASKS,
        &windows::TASKS,
        &state::TASKS,
        &nexmark::TASKS,
        &ranks::TASKS,
        &serving::TASKS,
    ];
    ALL.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_task_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = entries().map(|entry| entry.name).collect();
        assert_eq!(names.len(), entries().count());
        assert!(run("log/unknown", "null").is_err());
    }
}
