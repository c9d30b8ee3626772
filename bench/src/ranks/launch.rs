//! How programs are started on several ranks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::project::our_program;

/// The kind of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ranks {
    /// Threads of one process.
    Threads,
    /// Processes under MPI.
    Mpi,
}

/// The workers, ranks and transport of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    pub ranks: Ranks,
    pub count: u32,
    /// Of each operator on each rank, and as many workers there.
    pub instances: u32,
}

impl Setting {
    pub const fn threads(count: u32, instances: u32) -> Setting {
        Setting {
            ranks: Ranks::Threads,
            count,
            instances,
        }
    }

    pub const fn mpi(count: u32, instances: u32) -> Setting {
        Setting {
            ranks: Ranks::Mpi,
            count,
            instances,
        }
    }

    /// As it stands in the names of cases.
    pub fn name(&self) -> String {
        let ranks = match self.ranks {
            Ranks::Threads => "threads",
            Ranks::Mpi => "mpi",
        };
        format!("{ranks}/{}x{}", self.count, self.instances)
    }
}

/// The program `millstream`, and the launcher of its processes.
pub struct Launcher {
    program: PathBuf,
    mpi: Option<Mpi>,
}

impl Launcher {
    /// `None` where there is no program to be measured.
    pub fn find(case: &str) -> Option<Launcher> {
        let Some(program) = our_program() else {
            eprintln!(
                "bench: {case} left out: no program millstream beside this one; build it first"
            );
            return None;
        };
        Some(Launcher {
            program,
            mpi: Mpi::find(case),
        })
    }

    /// Those that can be started here.
    pub fn startable(&self, settings: impl IntoIterator<Item = Setting>) -> Vec<Setting> {
        let can_start = |setting: &Setting| setting.ranks == Ranks::Threads || self.mpi.is_some();
        settings.into_iter().filter(can_start).collect()
    }

    /// Runs `millstream flow run`, and returns the value that it prints.
    ///
    /// # Errors
    /// When the setting cannot be started, or the program fails.
    pub fn run<T: DeserializeOwned>(&self, setting: Setting, words: &[&str]) -> Result<T> {
        let mut command = match setting.ranks {
            Ranks::Threads => millstream_testing::command(&self.program),
            Ranks::Mpi => {
                let mpi = self.mpi.as_ref().context("there is no MPI here")?;
                mpi.command(setting.count, &self.program)
            }
        };
        command.args(["flow", "run"]).args(words).arg("--json");
        command.args(["--instances", &setting.instances.to_string()]);
        if setting.ranks == Ranks::Threads {
            command.args(["--ranks", &setting.count.to_string()]);
        }
        printed(&mut command).with_context(|| format!("{} on {}", words[0], setting.name()))
    }
}

/// The installed MPI.
pub struct Mpi {
    is_open_mpi: bool,
}

impl Mpi {
    /// Returns `None` where no MPI is installed, or this program was built without it.
    pub fn find(case: &str) -> Option<Mpi> {
        if !cfg!(feature = "mpi") {
            eprintln!(
                "bench: {case} under MPI left out: this program is built without the feature mpi"
            );
            return None;
        }
        let Ok(version) = Command::new("mpirun").arg("--version").output() else {
            eprintln!("bench: {case} under MPI left out: there is no mpirun here");
            return None;
        };
        let is_open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
        Some(Mpi { is_open_mpi })
    }

    /// Returns the command that starts a program as `processes` processes.
    pub fn command(&self, processes: u32, program: &Path) -> Command {
        let mut command = millstream_testing::command("mpirun");
        command.args(["-n", &processes.to_string()]);
        if self.is_open_mpi {
            // More than there are cores, and each where the system puts it, as threads are.
            command.args(["-q", "--oversubscribe", "--bind-to", "none"]);
            // It refuses root otherwise, and there is no other machine to reach.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
            command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.env("OMPI_MCA_plm_rsh_agent", "");
        }
        command
            .args(millstream_testing::ENDS_WITH_PARENT)
            .arg(program);
        command
    }
}

/// Runs a program, and returns the value of the last line that it prints.
///
/// # Errors
/// When the program fails, or prints something else.
pub fn printed<T: DeserializeOwned>(command: &mut Command) -> Result<T> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("cannot start a process")?;
    ensure!(
        output.status.success(),
        "it failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("it printed {line:?}"))
}
