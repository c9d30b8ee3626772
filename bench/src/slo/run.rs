//! A run: the serving flow, the analytics beside it, and their shares of the processors.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use millstream::{Flow, RequestSettings, RunningFlow};
use millstream_flow::{FlowSettings, Objective, Pool, Running};

use super::load::Sine;
use super::tasks::{self, Pace, Sent};
use crate::machine;
use crate::measure::ended;
use crate::pi::{self, ANALYTICS};
use crate::thread_cpu::ThreadCpu;

/// The objective: this percentage of the tasks is answered within this time.
pub const PERCENTILE: f64 = 99.9;
pub const WITHIN: Duration = Duration::from_millis(30);

/// The tasks that are unanswered while the capacity is measured.
const UNANSWERED: usize = 128;

/// The figures of a run.
pub struct Ran {
    pub sent: Vec<Sent>,
    /// At the end of each interval, in seconds: the part of all processors that the analytics had in it, in percent.
    pub analytics: Vec<(f64, f64)>,
    /// The analytics' part of the processor time that all other threads have left, in percent.
    pub analytics_of_rest: f64,
    /// How often the level of best-effort work has changed.
    pub changes_of_level: usize,
}

/// Returns how many tasks in a second the flow answers, without analytics and without an objective.
pub fn capacity(lasts: Duration) -> Result<f64> {
    let serving = start_serving(&settings(&new_pool()), None)?;
    let requests = serving.requests().context("it takes requests")?;
    let sent = tasks::send(requests, Pace::Unanswered(UNANSWERED), lasts)?;
    stop(&serving)?;
    let lasts_s = lasts.as_secs_f64();
    let took = sent
        .iter()
        .filter_map(|task| Some(task.due_s + task.took_s?));
    let answered = took.filter(|answered_s| *answered_s <= lasts_s).count();
    ensure!(answered > 0, "no task was answered within {lasts:?}");
    Ok(answered as f64 / lasts_s)
}

/// Runs tasks beside analytics.
pub fn run(sine: Sine, lasts: Duration, interval: Duration) -> Result<Ran> {
    let pool = new_pool();
    let settings = settings(&pool);
    let objective = Objective {
        percentile: PERCENTILE,
        within: WITHIN,
    };
    let serving = start_serving(&settings, Some(objective))?;
    let analytics = pi::start(settings)?;
    let requests = serving.requests().context("it takes requests")?;
    let mut cpu = ThreadCpu::of(std::process::id())?;
    let began_at = Instant::now();
    let (sent, shares) = thread::scope(|scope| {
        let sender = scope.spawn(|| tasks::send(requests, Pace::Sine(sine), lasts));
        let shares = watch(&mut cpu, interval, lasts);
        let sent = sender.join().map_err(|_| anyhow!("the generator panicked"));
        Ok::<_, anyhow::Error>((sent??, shares?))
    })?;
    let seconds = began_at.elapsed().as_secs_f64();
    cpu.look()?;
    let changes_of_level = pool.decisions().len();
    stop(&serving)?;
    stop(&analytics)?;
    let analytics_s = cpu.named_s(ANALYTICS);
    let rest_s = seconds * machine::cores().get() as f64 - (cpu.all_s() - analytics_s);
    Ok(Ran {
        sent,
        analytics: shares,
        analytics_of_rest: 100.0 * analytics_s / rest_s,
        changes_of_level,
    })
}

/// Returns the analytics' part of all processors in each interval.
fn watch(cpu: &mut ThreadCpu, interval: Duration, lasts: Duration) -> Result<Vec<(f64, f64)>> {
    let began_at = Instant::now();
    let mut shares = Vec::new();
    let (mut at_before, mut analytics_before) = (0.0, 0.0);
    while began_at.elapsed() < lasts {
        let due = interval * (shares.len() as u32 + 1);
        thread::sleep(due.saturating_sub(began_at.elapsed()));
        cpu.look()?;
        let (at, analytics) = (began_at.elapsed().as_secs_f64(), cpu.named_s(ANALYTICS));
        let all = (at - at_before) * machine::cores().get() as f64;
        shares.push((at, 100.0 * (analytics - analytics_before) / all));
        (at_before, analytics_before) = (at, analytics);
    }
    Ok(shares)
}

/// A pool of its own, so that no run sees the decisions of another.
fn new_pool() -> Arc<Pool> {
    Pool::new(machine::cores())
}

fn settings(pool: &Arc<Pool>) -> FlowSettings {
    FlowSettings {
        pool: Arc::clone(pool),
        ..FlowSettings::default()
    }
}

fn start_serving(settings: &FlowSettings, objective: Option<Objective>) -> Result<RunningFlow> {
    let flow = Flow::with_settings("tasks", settings.clone());
    let flow = flow.request_settings(RequestSettings {
        objective,
        ..RequestSettings::default()
    });
    let replies = flow.requests().map(|call| call.reply(tasks::respond(call)));
    Ok(replies.respond().start()?)
}

/// Ends a flow.
fn stop(flow: &Running) -> Result<()> {
    flow.stop();
    ended(flow)?;
    Ok(())
}
