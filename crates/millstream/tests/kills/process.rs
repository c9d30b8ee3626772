//! The processes that the tests kill: flows and servers.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millstream::Node;
use millstream::flow::{FlowSettings, Running};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::jobs::{Job, Pace};
use crate::servers;

/// The plan of a process, as JSON.
const PLAN: &str = "MILLSTREAM_TEST_PLAN";
/// The address of a server; port 0 lets the system choose.
const ADDRESS: &str = "MILLSTREAM_TEST_SERVER";
/// The folder of a server's world.
const DIR: &str = "MILLSTREAM_TEST_DIR";

pub const MPIRUN: &str = "mpirun";

/// A process makes progress within this time, and ends within it.
pub const PROCESS_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A data directory that the flow opens.
    Log,
    /// A server in a process of its own.
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ranks {
    Threads(u32),
    Processes(u32),
}

/// The work of a process that runs a flow.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub job: Job,
    pub ranks: Ranks,
    /// The address of the server; without one the flow opens the folder `data`.
    pub server: Option<String>,
    /// Has the files by which processes report.
    pub dir: PathBuf,
    pub is_paced: bool,
    /// The interval of checkpoints, in place of the default one.
    pub interval: Option<Duration>,
}

/// The report of a rank at its end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// The items that this run has read.
    pub items: u64,
    /// The values of each state by key.
    pub states: BTreeMap<String, BTreeMap<String, Value>>,
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

impl Plan {
    /// Runs the flow to its end, on the ranks of this process.
    pub fn run(&self) -> Result<()> {
        let ranks = match self.ranks {
            Ranks::Threads(ranks) => millstream_exchange::Ranks::threads(ranks),
            Ranks::Processes(_) => vec![millstream_exchange::Ranks::from_environment()?],
        };
        let node = match &self.server {
            Some(address) => Node::connect(address)?,
            None => Node::embedded(self.dir.join("data"))?,
        };
        let pace = Pace::new(self.job, self.is_paced);
        let run = |ranks: millstream_exchange::Ranks| {
            let ran = self.run_rank(&node, &ranks, &pace);
            let ran = ran.inspect_err(|error| ranks.fail(&error.to_string()));
            ran.and_then(|()| Ok(ranks.leave()?))
        };
        let run = &run;
        thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|ranks| scope.spawn(move || run(ranks)))
                .collect();
            threads.into_iter().try_for_each(|it| it.join().unwrap())
        })
    }

    fn run_rank(
        &self,
        node: &Node,
        ranks: &millstream_exchange::Ranks,
        pace: &std::sync::Arc<Pace>,
    ) -> Result<()> {
        let settings = FlowSettings {
            ranks: ranks.clone(),
            ..FlowSettings::default()
        };
        let running = self
            .job
            .program(node, settings, self.interval, pace)?
            .start()?;
        let rank = ranks.rank();
        put(
            &self.dir.join(format!("begun.{rank}")),
            std::process::id().to_string().as_bytes(),
        )?;
        running.join()?;
        let report = Report {
            items: pace.items(),
            states: states(&running),
        };
        let report = serde_json::to_vec(&report)?;
        put(&self.dir.join(format!("report.{rank}")), &report)
    }

    /// Starts the process of the flow, or of all of its ranks.
    pub fn start(&self) -> Child {
        for file in self.files(&["begun.", "report."]) {
            fs::remove_file(file).unwrap();
        }
        let mut command = match self.ranks {
            Ranks::Threads(_) => millstream_testing::command(env::current_exe().unwrap()),
            Ranks::Processes(processes) => mpirun(processes),
        };
        command
            .args(["--ignored", "--exact", "process::flow_that_the_test_kills"])
            .args(["--nocapture", "--quiet"])
            .env(PLAN, serde_json::to_string(self).unwrap())
            .stdout(Stdio::null());
        millstream_testing::start(&mut command, PROCESS_MAX).unwrap()
    }

    /// Returns the files of the ranks that begin with one of these words.
    fn files(&self, words: &[&str]) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.dir).unwrap().map(|it| it.unwrap());
        let is_one = |path: &Path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            words.iter().any(|word| name.starts_with(word)) && !name.ends_with(".new")
        };
        let paths = files.map(|file| file.path());
        paths.filter(|path| is_one(path)).collect()
    }

    /// Returns the processes of the ranks that have begun.
    pub fn begun(&self) -> Vec<Pid> {
        let files = self.files(&["begun."]).into_iter();
        let number = |path| fs::read_to_string(path).unwrap().parse().unwrap();
        files
            .map(|path| Pid::from_raw(number(path)).unwrap())
            .collect()
    }

    /// Returns the reports of all ranks together.
    pub fn report(&self) -> Report {
        let mut all = Report::default();
        for file in self.files(&["report."]) {
            let report = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
            let Report { items, states } = report;
            all.items = match self.ranks {
                // All ranks count the items of their process.
                Ranks::Threads(_) => items.max(all.items),
                Ranks::Processes(_) => items + all.items,
            };
            for (name, values) in states {
                all.states.entry(name).or_default().extend(values);
            }
        }
        all
    }
}

fn states(running: &Running) -> BTreeMap<String, BTreeMap<String, Value>> {
    let names = running.state_names().map(str::to_owned);
    let state = |name: String| {
        let state = running.state(&name)?;
        let keys = state.keys(usize::MAX).into_iter();
        let values = keys.filter_map(|key| Some((key.clone(), state.get(&key)?)));
        Some((name, values.collect()))
    };
    names.filter_map(state).collect()
}

/// Writes a file that is whole when it has its name.
fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let unfinished = path.with_added_extension("new");
    fs::write(&unfinished, bytes)?;
    Ok(fs::rename(unfinished, path)?)
}

/// Runs this program as some processes that end with the test.
fn mpirun(processes: u32) -> Command {
    let mut command = millstream_testing::command(MPIRUN);
    command
        .args(["--oversubscribe", "-q", "-n", &processes.to_string()])
        .args(millstream_testing::ENDS_WITH_PARENT)
        .arg(env::current_exe().unwrap())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

/// Whether ranks can be processes here.
pub fn has_mpi() -> bool {
    let mut command = mpirun(2);
    command
        .args(["--ignored", "--exact", "process::rank_that_tries_mpi"])
        .env(PLAN, "")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = millstream_testing::start(&mut command, PROCESS_MAX);
    child.unwrap().wait().unwrap().success()
}

/// Joins the ranks of `mpirun`: no test of its own.
#[test]
#[ignore = "started by the tests of jobs on processes"]
fn rank_that_tries_mpi() {
    if env::var(PLAN).is_ok() {
        let ranks = millstream_exchange::Ranks::from_environment().unwrap();
        ranks.leave().unwrap();
    }
}

/// Runs a flow: no test of its own.
#[test]
#[ignore = "started by the tests of killed jobs"]
fn flow_that_the_test_kills() {
    if let Ok(plan) = env::var(PLAN) {
        let plan: Plan = serde_json::from_str(&plan).unwrap();
        if let Err(error) = plan.run() {
            eprintln!("the flow fails: {error}");
            std::process::exit(1);
        }
    }
}

/// Serves until it is killed, and says where: no test of its own.
#[test]
#[ignore = "started by the tests of killed jobs"]
fn server_that_the_test_kills() {
    let (Ok(address), Ok(dir)) = (env::var(ADDRESS), env::var(DIR)) else {
        return;
    };
    let dir = PathBuf::from(dir);
    let (_log, server) = servers::start(&dir.join("data"), |_, config| {
        config.listeners[0].address = address.parse().unwrap();
    });
    let address = server.local_address().to_string();
    put(&dir.join("address"), address.as_bytes()).unwrap();
    loop {
        thread::sleep(PROCESS_MAX);
    }
}

/// A server in a process.
pub struct ServerProcess {
    child: Child,
    pub address: String,
}

impl ServerProcess {
    /// Starts a server over the folder's data, and waits until it serves.
    pub fn start(dir: &Path, address: &str) -> ServerProcess {
        let ready = dir.join("address");
        let _ = fs::remove_file(&ready);
        let mut command = millstream_testing::command(env::current_exe().unwrap());
        command
            .args([
                "--ignored",
                "--exact",
                "process::server_that_the_test_kills",
            ])
            .args(["--nocapture", "--quiet"])
            .env(ADDRESS, address)
            .env(DIR, dir)
            .stdout(Stdio::null());
        let child = millstream_testing::start(&mut command, PROCESS_MAX).unwrap();
        wait_until("the server begins", || ready.exists());
        let address = fs::read_to_string(ready).unwrap();
        ServerProcess { child, address }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A flow in one or more processes.
pub struct FlowProcess {
    child: Child,
    plan: Plan,
}

impl FlowProcess {
    pub fn start(plan: &Plan) -> FlowProcess {
        FlowProcess {
            child: plan.start(),
            plan: plan.clone(),
        }
    }

    /// Returns its status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub fn succeeds(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Waits until the flow has begun on all ranks, or has ended.
    pub fn wait_begun(&mut self) {
        let ranks = match self.plan.ranks {
            Ranks::Threads(ranks) | Ranks::Processes(ranks) => ranks as usize,
        };
        wait_until("the flow begins", || {
            self.plan.begun().len() == ranks || self.ended().is_some()
        });
    }

    /// Kills it: of several processes one alone, which ends the others. Returns whether it was still at work.
    pub fn kill(&mut self) -> bool {
        let is_at_work = self.ended().is_none();
        match (self.plan.ranks, self.plan.begun().pop()) {
            (Ranks::Processes(_), Some(rank)) if is_at_work => {
                // It may have ended since.
                let _ = kill_process(rank, Signal::KILL);
            }
            _ => self.child.kill().unwrap(),
        }
        self.child.wait().unwrap();
        is_at_work
    }
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < PROCESS_MAX, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
