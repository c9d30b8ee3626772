//! The same flow on several ranks: threads of this process, or processes that a launcher started.

use std::num::NonZeroUsize;
use std::sync::mpsc::channel;
use std::thread;
use std::{env, fs};

use anyhow::{Context, anyhow};
use millstream_base::crc32c;
use millstream_exchange::Ranks;
use millstream_flow::{FlowError, FlowSettings, Running, Summary};

use super::checkpoints::{CheckpointWatch, checkpointing};
use crate::args::{CheckpointArgs, RankArgs};
use crate::stop::Stop;
use crate::values::LOOK_INTERVAL;

/// Runs a flow on all ranks in this process. Returns the result of the gathering rank, if it is one of them.
pub fn on_ranks<T: Send>(
    args: &RankArgs,
    checkpoints: &CheckpointArgs,
    settings: &FlowSettings,
    run: impl Fn(FlowSettings) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Option<T>> {
    let ranks = match args.ranks {
        Some(count) => Ranks::threads(count),
        None => vec![Ranks::from_environment()?],
    };
    let count = ranks[0].count();
    let in_process = ranks.len();
    if args.gather_at >= count {
        let error = anyhow!(
            "--gather-at {} names no rank: there are {count}, counted from 0",
            args.gather_at
        );
        ranks
            .iter()
            .for_each(|ranks| ranks.fail(&error.to_string()));
        return Err(error);
    }
    let program = match in_process == count as usize {
        true => String::new(),
        false => program().inspect_err(|error| {
            ranks
                .iter()
                .for_each(|ranks| ranks.fail(&format!("{error:#}")));
        })?,
    };
    let run_rank = |ranks: Ranks| -> anyhow::Result<Option<T>> {
        let result = checkpointing(checkpoints)
            .map_err(anyhow::Error::from)
            .and_then(|checkpoints| {
                run(FlowSettings {
                    workers: workers(args, settings, in_process),
                    ranks: ranks.clone(),
                    program: program.clone(),
                    checkpoints,
                    ..settings.clone()
                })
            });
        let result = result.inspect_err(|error| ranks.fail(&format!("{error:#}")))?;
        let left = ranks.leave();
        left.with_context(|| format!("rank {} of {count}", ranks.rank()))?;
        Ok((ranks.rank() == args.gather_at).then_some(result))
    };
    let run_rank = &run_rank;
    let results: Vec<anyhow::Result<Option<T>>> = thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|ranks| {
                thread::Builder::new()
                    .name(format!("rank {}", ranks.rank()))
                    .spawn_scoped(scope, move || run_rank(ranks))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread?.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    });
    let mut found = None;
    let mut failed = None;
    for result in results {
        match result {
            Ok(result) => found = found.or(result),
            // The errors of all ranks name the failed rank.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(found), Err)
}

/// The identity that all processes must share: the program and its arguments.
fn program() -> anyhow::Result<String> {
    let arguments: Vec<String> = env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let path = env::current_exe().context("cannot tell where this program lies")?;
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(format!(
        "millstream {} with checksum {:08x}, {}",
        env!("CARGO_PKG_VERSION"),
        crc32c(&bytes),
        arguments.join(" ")
    ))
}

/// Waits for the end of a flow, and stops the flow on a signal.
pub fn join(
    running: &Running,
    stop: &Stop,
    mut checkpoints: CheckpointWatch,
) -> Result<Summary, FlowError> {
    let summary = thread::scope(|scope| {
        let (ended, end) = channel();
        scope.spawn(move || {
            // The receiver is gone if its thread is unwinding.
            let _ = ended.send(running.join());
        });
        loop {
            match end.recv_timeout(LOOK_INTERVAL) {
                Ok(summary) => return summary,
                Err(_) if stop.is_set() => running.stop(),
                Err(_) => {}
            }
            checkpoints.look(running);
        }
    });
    checkpoints.end(running);
    summary
}

/// Workers of each rank: the cores are shared by the ranks in this process, unless the settings name another number.
fn workers(args: &RankArgs, settings: &FlowSettings, in_process: usize) -> NonZeroUsize {
    let share = || NonZeroUsize::new(settings.workers.get() / in_process);
    let workers = args.instances.or_else(share);
    workers.unwrap_or(NonZeroUsize::MIN)
}
