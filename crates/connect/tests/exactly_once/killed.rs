//! A flow whose process is killed at any moment, and started again.

use std::env;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::Ranks;

use crate::world::{Into, World, checkpoint_dir, server_sink, start};

const SERVER: &str = "MILLSTREAM_TEST_SERVER";
const CHECKPOINTS: &str = "MILLSTREAM_TEST_CHECKPOINTS";
const ITEMS: u64 = 40_000;

/// The process makes progress within this time, and ends within it.
const PROCESS_MAX: Duration = Duration::from_secs(120);

/// The process that is killed: no test of its own.
#[test]
#[ignore = "started by a_killed_flow_writes_each_result_once"]
fn flow_that_the_test_kills() {
    let (Ok(server), Ok(checkpoints)) = (env::var(SERVER), env::var(CHECKPOINTS)) else {
        return;
    };
    let place = checkpoint_dir(&PathBuf::from(checkpoints));
    let running = start(&Ranks::alone(), Some(place), ITEMS, server_sink(&server));
    running.unwrap().join().unwrap();
}

#[test]
fn a_killed_flow_writes_each_result_once() {
    let world = World::new(Into::Server, ITEMS);
    let spawn = || -> Child {
        let test = "killed::flow_that_the_test_kills";
        let mut command = millstream_testing::command(env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", test, "--nocapture"])
            .env(SERVER, world.address())
            .env(CHECKPOINTS, world.checkpoints())
            .stdout(Stdio::null());
        millstream_testing::start(&mut command, PROCESS_MAX).unwrap()
    };
    let mut seen = 0;
    for kill in 0..4 {
        let mut child = spawn();
        // At another moment each time, and never before it has got on.
        let started_at = Instant::now();
        while world.results().len() == seen {
            assert!(started_at.elapsed() < PROCESS_MAX, "no more results");
            assert!(child.try_wait().unwrap().is_none(), "it has not ended");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(kill * 3));
        child.kill().unwrap();
        child.wait().unwrap();
        seen = world.results().len();
    }
    assert!(spawn().wait().unwrap().success());
    world.check(1);
}
