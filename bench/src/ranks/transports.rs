//! The transports between ranks beside the same work done by hand: threads beside a channel of the standard library,
//! processes beside bare MPI.

#[cfg(feature = "mpi")]
mod bare;
mod link;
mod ours;
mod standard;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use self::link::{Figure, Plan};
use super::launch::{Mpi, Ranks, printed};
use crate::child;
use crate::measure::{Bench, ROUNDS, rounds_of};
use crate::report::{Better, Case};

pub const TRANSPORTS: &str = "transports";

/// A transport between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contender {
    /// Channels of the exchange; a rank that finds nothing sleeps.
    Sleeping,
    /// Channels of the exchange; a rank that finds nothing looks again.
    Polling,
    /// The limit, whose ends look again and again.
    ByHand,
}

const CONTENDERS: [Contender; 3] = [Contender::Sleeping, Contender::Polling, Contender::ByHand];

/// The work of a child process: both ranks, or one of two that MPI has started.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Task {
    contender: Contender,
    ranks: Ranks,
    plan: Plan,
}

impl child::Task for Task {
    const NAME: &'static str = "ranks/transports";

    fn run(self) -> Result<()> {
        run(self)
    }
}

/// Runs the contender; the first rank sends the parent its figures.
fn run(task: Task) -> Result<()> {
    let Task {
        contender, plan, ..
    } = task;
    let figures = match (contender, task.ranks) {
        (Contender::Sleeping, Ranks::Threads) => ours::threads(plan, true)?,
        (Contender::Polling, Ranks::Threads) => ours::threads(plan, false)?,
        (Contender::ByHand, Ranks::Threads) => standard::threads(plan)?,
        (Contender::Sleeping, Ranks::Mpi) => ours::process(plan, true)?,
        (Contender::Polling, Ranks::Mpi) => ours::process(plan, false)?,
        (Contender::ByHand, Ranks::Mpi) => by_hand_under_mpi(plan)?,
    };
    match figures {
        Some(figures) => child::report(&figures),
        None => Ok(()),
    }
}

#[cfg(feature = "mpi")]
fn by_hand_under_mpi(plan: Plan) -> Result<Option<Vec<Figure>>> {
    bare::process(plan)
}

#[cfg(not(feature = "mpi"))]
fn by_hand_under_mpi(_: Plan) -> Result<Option<Vec<Figure>>> {
    bail!("this program is built without the feature mpi")
}

/// All contenders in turn, each in processes of its own.
pub fn transports(bench: &Bench) -> Result<Vec<Case>> {
    let plan = Plan {
        part: bench.size(1, 1000),
    };
    let mpi = Mpi::find(TRANSPORTS);
    let mut cases = Vec::new();
    for (ranks, name) in [(Ranks::Threads, "threads"), (Ranks::Mpi, "mpi")] {
        if ranks == Ranks::Mpi && mpi.is_none() {
            continue;
        }
        let rounds = rounds_of(bench.size(ROUNDS, 1), CONTENDERS.len(), |place| {
            let task = Task {
                contender: CONTENDERS[place],
                ranks,
                plan,
            };
            start(mpi.as_ref(), task)
        })?;
        cases.extend(of_ranks(name, &rounds));
    }
    Ok(cases)
}

fn start(mpi: Option<&Mpi>, task: Task) -> Result<Vec<Figure>> {
    let program = std::env::current_exe()?;
    let mut command = match (task.ranks, mpi) {
        (Ranks::Mpi, Some(mpi)) => mpi.command(2, &program),
        (Ranks::Mpi, None) => bail!("there is no MPI here"),
        (Ranks::Threads, _) => millstream_testing::command(program),
    };
    command.args(child::words(&task)?);
    printed(&mut command)
}

/// The cases of threads, or of processes: by contender and round, the figures of each size.
fn of_ranks(name: &str, rounds: &[Vec<Vec<Figure>>]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (size, first) in rounds[0][0].iter().enumerate() {
        for (place, receiver) in ["sleeping", "polling"].into_iter().enumerate() {
            let of = |place: usize, pick: fn(&Figure) -> f64| {
                let of_round = |round: &Vec<Figure>| pick(&round[size]);
                rounds[place].iter().map(of_round).collect::<Vec<f64>>()
            };
            let case = |what: &str, unit, better, pick| {
                let bytes = first.bytes;
                let name = format!("{TRANSPORTS}/{name}/{receiver}/{bytes}-bytes/{what}");
                let by_hand = of(CONTENDERS.len() - 1, pick);
                Case::new(name, unit, better, of(place, pick)).by_hand(by_hand)
            };
            cases.push(case("latency", "us", Better::Lower, |figure| {
                figure.latency_us
            }));
            let throughput = case("throughput", "MB/s", Better::Higher, |figure| {
                figure.mb_per_s
            });
            let messages = throughput.ours / first.bytes as f64;
            cases.push(throughput.detail("million_messages_per_s", messages));
        }
    }
    cases
}
