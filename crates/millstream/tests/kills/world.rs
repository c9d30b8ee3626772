//! A job in a place, whose processes are killed.

use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;

use crate::jobs::Job;
use crate::outcome::Outcome;
use crate::process::{FlowProcess, Place, Plan, Ranks, ServerProcess};

/// The latest kills after the beginning of a run, in ms: before it has begun, and from then on.
const IN_START_MS_MAX: u64 = 150;
const AT_WORK_MS_MAX: u64 = 700;

/// The most starts of the flow after the last kill: it ends where the server was away for too long.
const STARTS_MAX: u32 = 10;

pub struct World {
    dir: TempDir,
    job: Job,
    plan: Plan,
    server: Option<ServerProcess>,
    flow: Option<FlowProcess>,
    /// Whether the server was killed while the present flow ran: the flow may then fail.
    may_fail: bool,
    /// The kills so far.
    story: Vec<String>,
    at: String,
}

/// The processes that are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Flow,
    Server,
    Both,
}

impl World {
    pub fn new(job: Job, place: Place, ranks: Ranks, at: String) -> World {
        let dir = tempfile::tempdir().unwrap();
        job.store_input(&dir.path().join("data"));
        let server =
            (place == Place::Server).then(|| ServerProcess::start(dir.path(), "127.0.0.1:0"));
        let plan = Plan {
            job,
            ranks,
            server: server.as_ref().map(|server| server.address.clone()),
            dir: dir.path().to_owned(),
            is_paced: true,
            interval: None,
        };
        World {
            dir,
            job,
            plan,
            server,
            flow: None,
            may_fail: false,
            story: Vec::new(),
            at,
        }
    }

    /// Returns the flow at work, which it starts if there is none.
    fn flow(&mut self, is_paced: bool) -> &mut FlowProcess {
        let ended = self.flow.as_mut().and_then(FlowProcess::ended);
        if let Some(status) = ended {
            let is_expected = status.success() || self.may_fail;
            assert!(
                is_expected,
                "{}: {status} after {}",
                self.at,
                self.story.join(", ")
            );
            self.flow = None;
        }
        let plan = Plan {
            is_paced,
            ..self.plan.clone()
        };
        if self.flow.is_none() {
            self.may_fail = false;
        }
        self.flow.get_or_insert_with(|| FlowProcess::start(&plan))
    }

    /// Kills the flow, the server or both, at a random moment.
    pub fn kill(&mut self, rng: &mut Rng) {
        let has_processes = matches!(self.plan.ranks, Ranks::Processes(_));
        let victims: &[Victim] = match self.server {
            None => &[Victim::Flow],
            Some(_) if has_processes => &[Victim::Flow, Victim::Flow, Victim::Both],
            Some(_) => &[Victim::Flow, Victim::Flow, Victim::Server, Victim::Both],
        };
        let victim = victims[rng.usize(0..victims.len())];
        let in_start = rng.u32(0..4) == 0;
        // Without a pace it comes to its end soon, and is killed in the midst of that.
        let is_paced = rng.u32(0..6) > 0 || has_processes;
        let wait_ms = rng.u64(
            0..if in_start {
                IN_START_MS_MAX
            } else {
                AT_WORK_MS_MAX
            },
        );
        let at = self.at.clone();
        let flow = self.flow(is_paced);
        if !in_start {
            flow.wait_begun();
        }
        thread::sleep(Duration::from_millis(wait_ms));
        let is_at_work = match victim {
            Victim::Server => flow.ended().is_none(),
            Victim::Flow | Victim::Both => flow.kill(),
        };
        if victim != Victim::Server {
            self.flow = None;
        }
        if victim != Victim::Flow {
            let server = self.server.as_mut().expect("it is killed");
            server.kill();
            let address = server.address.clone();
            *server = ServerProcess::start(self.dir.path(), &address);
            self.may_fail = true;
        }
        let when = match (is_at_work, in_start) {
            (false, _) => "after its end",
            (true, true) => "of the start",
            (true, false) => "at work",
        };
        self.story
            .push(format!("{victim:?} killed {wait_ms} ms {when}"));
        eprintln!("{at}: {}", self.story[self.story.len() - 1]);
    }

    /// Sets the interval of checkpoints from the next start on; `None` for the default one.
    pub fn set_interval(&mut self, interval: Option<Duration>) {
        self.plan.interval = interval;
    }

    /// Kills the flow in the midst of its input.
    pub fn kill_at_work(&mut self, after: Duration) {
        let flow = self.flow(true);
        flow.wait_begun();
        thread::sleep(after);
        let is_at_work = flow.kill();
        self.flow = None;
        assert!(is_at_work, "{}: it ended within {after:?}", self.at);
    }

    /// Lets the flow come to its end, and compares. Returns whether its last run went on from the midst of the input.
    pub fn check(mut self, expected: &Outcome) -> bool {
        let report = self.finish();
        let resumed = report.items > 0 && report.items < self.job.items();
        eprintln!("{}: {} items in the last run", self.at, report.items);
        let again = self.finish();
        assert_eq!(again.items, 0, "{}: all input was read", self.at);
        assert_eq!(
            again.states, report.states,
            "{}: the state of a run that resumes at the end",
            self.at
        );
        let outcome = match &mut self.server {
            None => Outcome::of_data(self.job, self.dir.path()),
            Some(server) => {
                let outcome = Outcome::of_server(self.job, &server.address);
                server.kill();
                outcome
            }
        };
        let at = format!("{}, after {}", self.at, self.story.join(", "));
        outcome.check(expected, &at);
        outcome.check_served(&report.states, &at);
        resumed
    }

    fn finish(&mut self) -> crate::process::Report {
        for _ in 0..STARTS_MAX {
            let flow = self.flow(false);
            if flow.succeeds() {
                self.flow = None;
                return self.plan.report();
            }
        }
        panic!("{}: the flow does not come to its end", self.at);
    }
}
