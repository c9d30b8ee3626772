//! Random trials of crashes and damage: a server is killed, and finds its files damaged; with `--loop-disk` it also loses
//! power and runs out of disk. Each time it starts again, and every record is read. One in four trials kills a job instead,
//! whose results must equal those of an undisturbed run.
//! Invariants: after crashes, all acknowledged records are there, in order and once, and of an `async` stream all
//! durable ones. After damage, each record that readers get is right; where some are missing, readers get an error or
//! `millstream repair` lists the place; undamaged data is whole and served. The server starts, or refuses and names the
//! damaged file of its own; it never panics, and it ends on SIGTERM.

mod audit;
mod books;
mod damage;
mod drive;
mod jobs;
mod load;
mod mounts;
mod options;
mod plan;
mod repair;
mod tally;
mod trial;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::runtime::Runtime;

use self::drive::Drive;
use self::jobs::Job;
use self::mounts::OwnMounts;
use self::plan::Plan;
use self::tally::{TRIALS, Tally};
use self::trial::{Story, Trial};
use crate::benchmark::Benchmark;
use crate::measure::Bench;
use crate::project::our_program;
use crate::report::Case;

pub use self::mounts::enter as enter_own_mounts;
pub use self::options::Options;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "torture",
    measures: "Checks every record of a server that is killed, loses power, runs out of disk or finds its files damaged, and the results of killed jobs, at random.",
    cases: &[(TRIALS, trials)],
};

/// The run ends after this many findings, since their directories take room.
const FINDINGS_MAX: usize = 5;

/// The most that a trial stores: the data, its copy, and the files that a finding keeps.
const BYTES_MAX: u64 = 256 << 20;

/// Trials with one seed after the other: the given number of them, or until the time is over.
fn trials(bench: &Bench) -> Result<Vec<Case>> {
    ensure!(
        our_program().is_some(),
        "build the program millstream first"
    );
    let options = &bench.torture;
    let first = options.seed.unwrap_or_else(|| fastrand::u32(..));
    let quick = Duration::from_secs(5);
    let lasts = bench.lasts;
    let lasts = lasts.unwrap_or(bench.size(Duration::from_secs(60), quick));
    let folder = bench.folder("torture", BYTES_MAX * (1 + FINDINGS_MAX as u64))?;
    match options.trials {
        Some(trials) => eprintln!("torture: seed {first}, {trials} trials"),
        None => eprintln!("torture: seed {first}, for {lasts:?}"),
    }
    let mounts = options.loop_disk.then(OwnMounts::check).transpose()?;
    if let Some(mounts) = &mounts {
        Drive::try_out(mounts, folder.path())
            .context("--loop-disk needs root, loop devices, mkfs.ext4 and perl")?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let started_at = Instant::now();
    let mut tally = Tally::default();
    let mut findings = Vec::new();
    let is_over = |tally: &Tally| match options.trials {
        Some(trials) => tally.trials >= trials,
        None => tally.trials > 0 && started_at.elapsed() >= lasts,
    };
    while !is_over(&tally) && findings.len() < FINDINGS_MAX {
        let seed = first.wrapping_add(tally.trials);
        tally.trials += 1;
        let own = folder.path().join(seed.to_string());
        if let Err(error) = trial(&runtime, &mut tally, seed, &own, mounts.as_ref()) {
            eprintln!(
                "torture: FINDING: {error:#}\n  its files stay in {} until the next run; the same again: \
                 --seed {seed} --trials 1{}",
                own.display(),
                if options.loop_disk {
                    " --loop-disk"
                } else {
                    ""
                }
            );
            findings.push(seed.to_string());
        }
    }
    let lasted = started_at.elapsed();
    eprintln!(
        "torture: seed {first}: {} trials in {:.0} s, {} records read",
        tally.trials,
        lasted.as_secs_f64(),
        tally.records
    );
    for line in tally.lines() {
        eprintln!("  {line}");
    }
    if !findings.is_empty() {
        folder.keep();
        bail!("there are findings, with the seeds {}", findings.join(", "));
    }
    Ok(tally.cases(first, lasted))
}

/// One trial, with its data in the folder `own`, which stays where it finds something.
fn trial(
    runtime: &Runtime,
    tally: &mut Tally,
    seed: u32,
    own: &Path,
    mounts: Option<&OwnMounts>,
) -> Result<()> {
    let started_at = Instant::now();
    let mut story = Story::new();
    fs::create_dir_all(own)?;
    let result = match Job::draw(seed) {
        Some(job) => {
            let result = job.run(own, &mut story);
            let counts = tally.of(job.name());
            counts.times += 1;
            match &result {
                Ok(()) => counts.whole += 1,
                Err(_) => counts.findings += 1,
            }
            result
        }
        None => {
            let plan = Plan::draw(seed, mounts.is_some());
            let trial = Trial::begin(runtime, tally, &mut story, own, &plan, mounts);
            trial.and_then(|trial| trial.run(&plan))
        }
    };
    eprintln!(
        "torture: seed {seed}, {:.1} s: {}",
        started_at.elapsed().as_secs_f64(),
        story.join("; ")
    );
    result?;
    Ok(fs::remove_dir_all(own)?)
}
