//! Reads that wait until a flow has all records before a position.
//!
//! The position of a source alone does not say that its items have arrived in the state. So a read waits for a snapshot,
//! which is taken for each checkpoint when all items before its positions have arrived, on all ranks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use millstream_flow::{Progress, ReadLevel};

use super::position::Offsets;
use super::query::{StateQuery, Wanted};
use super::ranks::FlowRanks;
use super::secondary::Elements;
use crate::error::RequestError;
use crate::shown::{Shown, WAITING_MAX, read_state};

/// The time that a read waits.
const WAIT_TIME_MAX: Duration = Duration::from_secs(10);

/// The time until a partition of which no source knows a position counts as unknown. Sources of a flow that begins may
/// not know theirs yet.
const UNKNOWN_TIME_MAX: Duration = Duration::from_secs(1);

/// The least and the longest time between two looks.
const STEP_MIN: Duration = Duration::from_millis(2);
const STEP_MAX: Duration = Duration::from_millis(50);

/// The result of a look at a flow.
enum Look {
    /// The flow has the records.
    Answer(Response),
    /// It does not have them yet.
    NotYet(Missing),
}

/// The offsets that a flow has not reached.
struct Missing {
    /// Those that are wanted.
    wanted: Offsets,
    /// All that it has reached.
    reached: Offsets,
    /// Those that are wanted of partitions that the flow does not read.
    unknown: Offsets,
}

/// A request to read an element.
pub struct Reading {
    pub flow: String,
    pub element: String,
    pub query: StateQuery,
}

/// Calls `read` with the elements of a request as soon as the flow has all records before the request's position.
pub async fn read_from(
    shown: State<Arc<Shown>>,
    reading: Reading,
    read: impl Fn(&Elements, &Wanted) -> Result<Response, RequestError> + Send + Sync + 'static,
) -> Result<Response, RequestError> {
    let began_at = Instant::now();
    let (reading, read) = (Arc::new(reading), Arc::new(read));
    let mut permit = None;
    let mut step = STEP_MIN;
    loop {
        let (reading, read) = (Arc::clone(&reading), Arc::clone(&read));
        // The look and the read are of the same run of the flow.
        let look = read_state(shown.clone(), move |shown| {
            let Reading {
                flow,
                element,
                query,
            } = &*reading;
            let ranks = FlowRanks::find(&*shown.content, flow)?;
            let mut elements = Elements::find(&ranks, element, query)?;
            let reached = match &query.at_least {
                None => Ok(0),
                Some(wanted) => look(&ranks, wanted, query.level)?,
            };
            Ok(match reached {
                Ok(checkpoint) => {
                    elements.since(checkpoint);
                    Look::Answer(read(&elements, &query.wanted)?)
                }
                Err(missing) => Look::NotYet(missing),
            })
        });
        match look.await? {
            Look::Answer(answer) => return Ok(answer),
            Look::NotYet(missing) => missing.check_time(began_at.elapsed())?,
        }
        if permit.is_none() {
            let waiting = Arc::clone(&shown.waiting_reads).try_acquire_owned();
            permit = Some(waiting.map_err(|_| RequestError::ManyWaiting(WAITING_MAX))?);
        }
        tokio::time::sleep(step).await;
        step = STEP_MAX.min(step * 2);
    }
}

/// Returns a checkpoint that has all records before `wanted`: a complete one for committed values, or else one that all
/// ranks have taken the snapshot for.
fn look(
    ranks: &FlowRanks,
    wanted: &Offsets,
    level: ReadLevel,
) -> Result<Result<u64, Missing>, RequestError> {
    let first = ranks.first();
    if first.checkpoints().is_none() {
        return Err(RequestError::NoPositions {
            flow: ranks.flow.clone(),
        });
    }
    // Before the look at the checkpoints: the last one is taken at the end.
    let has_ended = first.is_finished();
    let (now, snapshot) = match level {
        ReadLevel::Committed => {
            let complete = first.complete_checkpoint();
            (None, complete.map_or(0, |checkpoint| checkpoint.number))
        }
        ReadLevel::Live => {
            let now = ranks.progress(None)?;
            let snapshot = now.iter().map(|rank| rank.snapshot).min();
            (Some(now), snapshot.unwrap_or(0))
        }
    };
    let offsets = |ranks: &[Progress]| Offsets::of(ranks.iter().flat_map(|rank| &rank.positions));
    let reached = offsets(&ranks.progress(Some(snapshot))?);
    let missing = reached.missing(wanted);
    if missing.is_empty() {
        return Ok(Ok(snapshot));
    }
    if has_ended {
        return Err(RequestError::EndedBefore {
            flow: ranks.flow.clone(),
            wanted: missing.to_string(),
        });
    }
    let now = match now {
        Some(now) => offsets(&now),
        None => offsets(&ranks.progress(None)?),
    };
    if now.missing(wanted).is_empty() {
        // A flow that has resumed, and has nothing to do, takes no checkpoint by itself.
        first.want_checkpoint();
    }
    Ok(Err(Missing {
        wanted: missing,
        reached,
        unknown: now.unknown(wanted),
    }))
}

impl Missing {
    /// Checks whether the read may wait longer.
    fn check_time(self, waited: Duration) -> Result<(), RequestError> {
        if waited > UNKNOWN_TIME_MAX && !self.unknown.is_empty() {
            return Err(RequestError::UnknownPartitions {
                wanted: self.unknown.to_string(),
                known: self.reached.to_string(),
            });
        }
        match waited > WAIT_TIME_MAX {
            true => Err(RequestError::Behind {
                wanted: self.wanted.to_string(),
                reached: self.reached.to_string(),
                waited,
            }),
            false => Ok(()),
        }
    }
}
