//! Ranks that are processes: this program starts itself under `mpirun`, and each process plays one rank of a scene.
//! It is a test without cargo's harness, since a scene is played by several processes.

mod scenes;

#[path = "../common/mod.rs"]
mod common;

use std::env;
use std::process::{Command, ExitCode, Output};
use std::thread;
use std::time::{Duration, Instant};

/// The line that a rank prints when all checks passed.
const WELL: &str = "as it has to be";

/// The line that a rank prints in the middle of a scene when the test may abort it.
const BEGUN: &str = "it has begun";

/// The required end of a scene.
#[derive(Clone, Copy)]
enum End {
    /// Every rank finds all well, and MPI ends in order.
    Well,
    /// MPI ends all processes in the middle, within this number of seconds.
    Aborted(u64),
}

struct Test {
    name: &'static str,
    scene: &'static str,
    ranks: &'static [u32],
    end: End,
}

const fn test(name: &'static str, scene: &'static str, ranks: &'static [u32], end: End) -> Test {
    Test {
        name,
        scene,
        ranks,
        end,
    }
}

const TESTS: [Test; 10] = [
    test(
        "traffic_is_whole_and_in_order",
        "traffic",
        &[1, 2, 3, 4],
        End::Well,
    ),
    test(
        "long_messages_are_whole_and_in_order",
        "long",
        &[2, 3],
        End::Well,
    ),
    test(
        "every_rank_learns_which_rank_runs_something_else",
        "differs",
        &[2, 4],
        End::Well,
    ),
    test(
        "a_failure_in_the_middle_of_traffic_ends_all",
        "fails",
        &[2, 3, 4],
        End::Well,
    ),
    test(
        "a_panic_in_the_middle_of_traffic_ends_all",
        "panics",
        &[2, 4],
        End::Well,
    ),
    test(
        "a_message_on_an_unknown_channel_ends_all",
        "lies",
        &[3],
        End::Well,
    ),
    test(
        "idle_ranks_take_next_to_no_processor_time",
        "idles",
        &[2],
        End::Well,
    ),
    test(
        "ranks_that_answer_each_other_do_not_send_each_other_to_sleep",
        "answers",
        &[2],
        End::Well,
    ),
    test(
        "a_process_that_dies_ends_all",
        "dies",
        &[3],
        End::Aborted(20),
    ),
    test(
        "a_rank_that_ignores_a_failure_is_ended",
        "ignores",
        &[2],
        End::Aborted(40),
    ),
];

/// All ranks of a scene draw from this seed.
const SEED: &str = "1";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.as_slice() {
        [scene, name, seed] if scene == "scene" => scenes::play(name, seed.parse().unwrap()),
        _ => run_all(),
    }
}

fn run_all() -> ExitCode {
    let Some(launcher) = Launcher::find() else {
        println!("there is no mpirun here: ranks under MPI are not tested");
        return ExitCode::SUCCESS;
    };
    // The last one mostly waits, so the others run beside it.
    let (last, others) = TESTS.split_last().expect("there are tests");
    let failed: usize = thread::scope(|scope| {
        let last = scope.spawn(|| launcher.check(last));
        let failed: usize = others.iter().map(|test| launcher.check(test)).sum();
        failed + last.join().expect("it reports what goes wrong")
    });
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {} passed; {failed} failed; 0 ignored",
        TESTS.len() - failed
    );
    ExitCode::from(u8::from(failed > 0))
}

/// The installed MPI.
struct Launcher {
    is_open_mpi: bool,
}

impl Launcher {
    fn find() -> Option<Launcher> {
        let version = Command::new("mpirun").arg("--version").output().ok()?;
        let is_open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
        Some(Launcher { is_open_mpi })
    }

    /// Returns the number of failed tests: 0 or 1.
    fn check(&self, test: &Test) -> usize {
        let outcomes = test.ranks.iter().map(|ranks| self.check_once(test, *ranks));
        let outcome: Result<Vec<()>, String> = outcomes.collect();
        match outcome {
            Ok(_) => println!("test {} ... ok", test.name),
            Err(what) => {
                println!("test {} ... FAILED\n{what}", test.name);
                return 1;
            }
        }
        0
    }

    fn check_once(&self, test: &Test, ranks: u32) -> Result<(), String> {
        let began_at = Instant::now();
        let output = self
            .run(test.scene, ranks)
            .map_err(|error| format!("mpirun: {error}"))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let all_print = |what| stdout.matches(what).count() == ranks as usize;
        let is_right = match test.end {
            End::Well => output.status.success() && all_print(WELL),
            End::Aborted(seconds_max) => {
                let is_in_time = began_at.elapsed() < Duration::from_secs(seconds_max);
                !output.status.success() && is_in_time && all_print(BEGUN)
            }
        };
        if is_right {
            return Ok(());
        }
        Err(format!(
            "{} with {ranks} ranks ended with {} after {:?}\n{stdout}\n{}",
            test.scene,
            output.status,
            began_at.elapsed(),
            String::from_utf8_lossy(&output.stderr),
        ))
    }

    fn run(&self, scene: &str, ranks: u32) -> std::io::Result<Output> {
        let mut command = millstream_testing::command("mpirun");
        command.args(["-n", &ranks.to_string()]);
        if self.is_open_mpi {
            command.args(["--oversubscribe", "--timeout", "60"]);
            // CI is root in a container, and there is no other machine to reach.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
            command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.env("OMPI_MCA_plm_rsh_agent", "");
        }
        command.env("MPIEXEC_TIMEOUT", "60");
        command
            .args(millstream_testing::ENDS_WITH_PARENT)
            .arg(env::current_exe()?)
            .args(["scene", scene, SEED]);
        command.output()
    }
}
