//! Jobs that are killed at random moments and started again: their results equal those of undisturbed runs.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use serde_json::Value;

use super::trial::Story;
use crate::project::our_program;

/// One in this many trials is of a job, the others of a server.
const EVERY: u32 = 4;

/// The most kills of a job, and the latest moment of each.
const KILLS_MAX: usize = 5;
const KILLED_WITHIN: Duration = Duration::from_millis(1_200);

/// A run ends within this time.
const RUN_MAX: Duration = Duration::from_secs(120);

/// The text for words: reading it takes about as long as the kills are apart.
const TEXT_BYTES: usize = 48 << 20;

/// The plan of a trial, drawn from its seed.
#[derive(Debug)]
pub struct Job {
    application: Application,
    ranks: u32,
    kills: Vec<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Application {
    /// Words of a file, with checkpoints in a directory.
    Words,
    /// Events of ads, which the application generates and checks.
    Swa,
    Ysb,
    YsbStar,
    /// `millstream quickstart`: the ads' events are stored, counted and written in one data directory.
    Quickstart,
}

impl Job {
    /// Returns the job of a seed, if its trial is of one.
    pub fn draw(seed: u32) -> Option<Job> {
        if !seed.is_multiple_of(EVERY) {
            return None;
        }
        let mut random = Rng::with_seed(u64::from(seed));
        let applications = [
            Application::Words,
            Application::Swa,
            Application::Ysb,
            Application::YsbStar,
            Application::Quickstart,
        ];
        let application = applications[random.usize(0..applications.len())];
        let ranks = match application {
            Application::Quickstart => 1,
            _ => [1, 2, 4][random.usize(0..3)],
        };
        let kills = 0..random.usize(1..=KILLS_MAX);
        let kills = kills.map(|_| KILLED_WITHIN.mul_f64(random.f64()));
        Some(Job {
            application,
            ranks,
            kills: kills.collect(),
        })
    }

    pub fn name(&self) -> &'static str {
        match self.application {
            Application::Words => "job-words",
            Application::Swa => "job-swa",
            Application::Ysb => "job-ysb",
            Application::YsbStar => "job-ysb-star",
            Application::Quickstart => "job-quickstart",
        }
    }

    /// Runs it with its kills, in the folder `own`, and compares.
    ///
    /// # Errors
    /// When its results differ from those of an undisturbed run, or it does not come to its end.
    pub fn run(&self, own: &Path, story: &mut Story) -> Result<()> {
        story.push(self.to_string());
        if self.application == Application::Words {
            let line = |number: usize| format!("the {} of {}\n", number % 1_000, number % 7);
            let mut text: String = (0..100_000).map(line).collect();
            text = text.repeat(TEXT_BYTES / text.len());
            fs::write(own.join("text"), text)?;
        }
        let mut at_work = 0;
        for after in &self.kills {
            let mut child = self.start(own, true, false)?;
            sleep(*after);
            at_work += u32::from(child.try_wait()?.is_none());
            // It may have ended meanwhile, with its results.
            child.kill()?;
            let output = child.wait_with_output()?;
            let is_killed = output.status.code().is_none() || output.status.success();
            ensure!(is_killed, "a run that resumes ends with {}", output.status);
        }
        story.push(format!("{at_work} times at work"));
        let report = finish(self.start(own, true, true)?)?;
        let figure = |name: &str| report[name].as_u64().unwrap_or_default();
        match self.application {
            Application::Words => {
                let alone = finish(self.start(own, false, true)?)?;
                for field in ["top", "words", "different"] {
                    let (found, expected) = (&report[field], &alone[field]);
                    ensure!(found == expected, "{field}: {found}, not {expected}");
                }
            }
            Application::Quickstart => {
                let (events, stored) = (figure("events"), figure("durable_records"));
                ensure!(
                    events == stored,
                    "{events} events are counted, and {stored} stored"
                );
                let (counted, sum) = (figure("counted"), figure("views") + figure("clicks"));
                ensure!(
                    counted == sum,
                    "{counted} events are in windows, and {sum} came"
                );
            }
            // They check each result themselves.
            _ => ensure!(
                figure("missing") == 0 && figure("events") > 0,
                "results are missing: {report}"
            ),
        }
        Ok(())
    }

    /// Starts it, with checkpoints or undisturbed. The last run of a job without an end has one.
    fn start(&self, own: &Path, resumes: bool, is_last: bool) -> Result<Child> {
        let program = our_program().context("build the program millstream first")?;
        let mut command = millstream_testing::command(program);
        let ads = ["--for", "3s", "--window", "200ms", "--rate", "40000"];
        match self.application {
            Application::Quickstart => {
                command.args(["quickstart", "--json", "--rate", "50000"]);
                command.args(["--http", "127.0.0.1:0", "--data"]);
                command.arg(own.join("data"));
                if is_last {
                    command.args(["--for", "500ms"]);
                }
            }
            application => {
                let name = &self.name()["job-".len()..];
                command.args(["flow", "run", name, "--json", "--ranks"]);
                command.arg(self.ranks.to_string());
                match application {
                    Application::Words => command
                        .args(["--top", "2000", "--file"])
                        .arg(own.join("text")),
                    _ => command.args(ads),
                };
                if resumes {
                    command.args(["--resume=if-any", "--checkpoint-interval", "20ms"]);
                    command.arg("--checkpoints").arg(own.join("checkpoints"));
                }
            }
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(millstream_testing::start(&mut command, RUN_MAX)?)
    }
}

/// Waits for the end of a run, and returns its report.
fn finish(child: Child) -> Result<Value> {
    let output = child.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_done = output.status.success() && !errors.contains("panicked at");
    ensure!(
        is_done,
        "the last run ends with {}: {errors}",
        output.status
    );
    serde_json::from_slice(&output.stdout).context("the last run prints no report")
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name()["job-".len()..];
        write!(f, "job {name} on {} ranks, killed after", self.ranks)?;
        for kill in &self.kills {
            write!(f, " {} ms", kill.as_millis())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_repeats_its_job_and_many_seeds_cover_all() {
        let jobs = || (0..200).filter_map(Job::draw);
        let told: Vec<String> = jobs().map(|job| job.to_string()).collect();
        assert_eq!(told.len(), 200 / EVERY as usize);
        assert!(jobs().map(|job| job.to_string()).eq(told));
        let names: BTreeSet<_> = jobs().map(|job| job.name()).collect();
        assert_eq!(names.len(), 5, "{names:?}");
    }
}
