//! Members of groups: they come, read for a while, and go, or are killed. Together they must see every
//! record at least once.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use millstream_client::{Consumer, ConsumerConfig, Decompressor, Fetched};
use tokio::time::sleep;

use super::run::{BACKOFF, Phase, Run, STREAM, count};

/// How long a member stays, at least and at most, where the run lasts long enough.
const STAYS_MIN: Duration = Duration::from_secs(5);
const STAYS_MAX: Duration = Duration::from_secs(60);

/// Until the next one comes in its place, at most.
const AWAY_MAX: Duration = Duration::from_secs(1);

/// One in this many members is killed: its partitions have no owner until the group gives it up.
const MEMBERS_PER_KILL: u32 = 10;

/// Joins a group again and again, until all clients leave.
pub async fn take_part(run: Arc<Run>, group: usize, number: usize) -> Result<()> {
    let mut random = Rng::with_seed((group << 32 | number) as u64);
    let client = run.client();
    let name = format!("soak-{group}");
    let longest = STAYS_MAX.min(run.lasts / 2);
    let shortest = STAYS_MIN.min(run.lasts / 8);
    while !run.is_in(Phase::Leave) {
        let mut member = Consumer::in_group(&client, config(), &name, &[STREAM])?;
        let stays = shortest + (longest - shortest).mul_f64(random.f64());
        read(&run, group, &mut member, stays).await?;
        if run.may_kill_members() && random.u32(0..MEMBERS_PER_KILL) == 0 {
            // It does not commit, and sends the group nothing.
            drop(member);
            count(&run.counts.members_killed);
        } else {
            // During an outage it goes like a member that is killed.
            let _ = member.close().await;
            count(&run.counts.members_left);
        }
        run.rest(AWAY_MAX.min(longest).mul_f64(random.f64()), Phase::Leave)
            .await;
    }
    Ok(())
}

fn config() -> ConsumerConfig {
    ConsumerConfig {
        prefetch_bytes: 2 << 20,
        answer_bytes_max: 1 << 20,
        ..ConsumerConfig::default()
    }
}

async fn read(run: &Run, group: usize, member: &mut Consumer, stays: Duration) -> Result<()> {
    let stays = run.rest(stays, Phase::Leave);
    let mut stays = std::pin::pin!(stays);
    loop {
        tokio::select! {
            fetched = member.next() => match fetched {
                Ok(fetched) => take(run, group, &fetched)?,
                Err(error) if error.is_retriable() => sleep(BACKOFF).await,
                Err(error) => return Err(error.into()),
            },
            _ = &mut stays => return Ok(()),
        }
    }
}

fn take(run: &Run, group: usize, fetched: &Fetched) -> Result<()> {
    let partition = fetched.partition() as usize;
    let (mut result, mut room) = (Ok(()), Vec::new());
    let mut seen: Option<(u64, u64)> = None;
    fetched.each(&mut Decompressor::default(), |record| {
        let checked = run.books.check(partition, record, &mut room);
        let at = record.offset.0;
        let checked =
            checked.with_context(|| format!("the record at offset {at} of partition {partition}"));
        if let Err(error) = checked {
            result = Err(error);
            return ControlFlow::Break(());
        }
        match &mut seen {
            Some((_, next)) if *next == at => *next += 1,
            _ => {
                if let Some((start, next)) = seen {
                    run.books.cover(partition, group, start..next);
                }
                seen = Some((at, at + 1));
            }
        }
        ControlFlow::Continue(())
    })?;
    if let Some((start, next)) = seen {
        run.books.cover(partition, group, start..next);
    }
    result
}
