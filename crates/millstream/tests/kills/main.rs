//! Jobs that are killed at random moments: their results and state equal those of an undisturbed run, without settings.
//!
//! `MILLSTREAM_SEED` draws other moments, and `MILLSTREAM_KILLS` sets the number of kills of each job.

#[path = "../servers/mod.rs"]
mod servers;

mod jobs;
mod outcome;
mod process;
mod world;

use std::env;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;
use process::{MPIRUN, Place, Ranks};
use world::World;

use jobs::Job;

/// The kills of each of the five jobs: more than sixty in all.
const KILLS: u64 = 13;

/// The kills of the job on processes.
const KILLS_OF_PROCESSES: u64 = 3;

fn setting<T: FromStr>(name: &str, default: T) -> T {
    let text = env::var(name).ok();
    text.map_or(default, |text| {
        text.parse().ok().unwrap_or_else(|| panic!("{name}={text}"))
    })
}

/// Kills the job on each number of ranks in each place, and compares its outcome with that of an undisturbed run.
fn check(job: Job) {
    let seed: u64 = setting("MILLSTREAM_SEED", 1);
    let kills: u64 = setting("MILLSTREAM_KILLS", KILLS);
    let expected = jobs::undisturbed(job);
    let places = [Place::Log, Place::Server].into_iter();
    let worlds: Vec<_> = places
        .flat_map(|place| [1, 2, 4].map(|ranks| (place, ranks)))
        .collect();
    let mut resumed = 0;
    for (number, (place, ranks)) in (0..).zip(&worlds) {
        // Each world has its own moments, whatever the ones before it have drawn.
        let mut rng = Rng::with_seed(seed + (number << 32) + ((job as u64) << 40));
        let kills = kills / worlds.len() as u64 + u64::from(number < kills % worlds.len() as u64);
        let at = format!("MILLSTREAM_SEED={seed}: {job:?}, {place:?}, {ranks} ranks");
        let mut world = World::new(job, *place, Ranks::Threads(*ranks), at);
        for _ in 0..kills {
            world.kill(&mut rng);
        }
        resumed += u64::from(world.check(&expected));
    }
    assert!(
        resumed > 0,
        "MILLSTREAM_SEED={seed}: no run went on from the midst of its input"
    );
}

#[test]
fn ads_that_are_killed_have_the_results_of_an_undisturbed_run() {
    check(Job::Ads);
}

#[test]
fn words_that_are_killed_have_the_results_of_an_undisturbed_run() {
    check(Job::Words);
}

#[test]
fn joins_that_are_killed_have_the_results_of_an_undisturbed_run() {
    check(Job::Join);
}

#[test]
fn sessions_that_are_killed_have_the_results_of_an_undisturbed_run() {
    check(Job::Sessions);
}

#[test]
fn joins_of_keyed_topics_that_are_killed_have_the_results_of_an_undisturbed_run() {
    check(Job::KeyJoin);
}

#[test]
fn five_forced_stops_and_starts_from_one_checkpoint_ingest_nothing_twice() {
    let expected = jobs::undisturbed(Job::Words);
    for place in [Place::Log, Place::Server] {
        let at = format!("{place:?}, from one checkpoint");
        let mut world = World::new(Job::Words, place, Ranks::Threads(2), at);
        world.kill_at_work(Duration::from_millis(600));
        world.set_interval(Some(Duration::from_secs(60 * 60)));
        for stop in 0..5 {
            world.kill_at_work(Duration::from_millis(50 * stop));
        }
        world.set_interval(None);
        assert!(world.check(&expected), "the checkpoint is in the midst");
    }
}

#[test]
fn jobs_on_processes_that_are_killed_have_the_results_of_an_undisturbed_run() {
    if !process::has_mpi() {
        eprintln!("skipped: {MPIRUN} is missing, or the test is built without the feature mpi");
        return;
    }
    let seed: u64 = setting("MILLSTREAM_SEED", 1);
    for job in [Job::Words, Job::Join] {
        let at = format!("MILLSTREAM_SEED={seed}: {job:?}, two processes");
        let mut rng = Rng::with_seed(seed + job as u64);
        let mut world = World::new(job, Place::Server, Ranks::Processes(2), at);
        for _ in 0..KILLS_OF_PROCESSES {
            world.kill(&mut rng);
        }
        world.check(&jobs::undisturbed(job));
    }
}
