//! Reads of a flow's state, on this rank and on others.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::error::BoxError;
use crate::ranks::asking::{self, AskError, Asking, Lines};
use crate::run::running::Running;
use crate::run::state_request::{Progress, StateAnswer, StateRequest};
use crate::run::workers::Workers;
use crate::sources::positions::Position;
use crate::stage::user_code::catch;
use crate::state::greatest::{self, VALUES_BYTES_MAX, bytes_of};
use crate::state::ordered::{OrderedState, ReadLevel, StateValue, WouldWait};
use crate::state::partial::StateReader;
use crate::topology::watermark::watermark_of;

/// The bytes of the largest answer to another rank.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// An answer as it goes to another rank.
type Sent = Result<StateAnswer, String>;

/// A request to another rank that waits for its answer.
pub struct Asked {
    rank: u32,
    asked: asking::Asked,
}

impl Asked {
    /// Waits for the answer.
    ///
    /// # Errors
    /// When none has come in time, the rank cannot answer, or a rank has failed.
    pub fn wait(self, time_max: Duration) -> Result<StateAnswer, AskError> {
        let answer = self.asked.wait(time_max)?;
        let answer = postcard::from_bytes(&answer).unwrap_or_else(|error| {
            let sent: Sent = Err(format!("its answer cannot be read: {error}"));
            sent
        });
        answer.map_err(|error| AskError::Failed {
            rank: self.rank,
            error,
        })
    }
}

impl Running {
    /// Reads state on this rank.
    ///
    /// # Errors
    /// When the flow has no such element, or its keys have no order and a range is wanted.
    pub fn read(&self, request: &StateRequest) -> Result<StateAnswer, BoxError> {
        answer(&self.workers, request)
    }

    /// Reads state on this rank as [`read`](Self::read) does, without waiting: neither for a lock that a worker may hold for
    /// long, nor for the changelog. Only values of keys and the progress can be read so.
    ///
    /// # Errors
    /// When it would have to wait, or `read` would return an error.
    pub fn try_read(&self, request: &StateRequest) -> Result<StateAnswer, WouldWait> {
        try_answer(&self.workers, request)
    }

    /// Asks another rank. It never waits; [`Asked::wait`] does.
    ///
    /// # Errors
    /// When too many requests wait for other ranks, or a rank has failed.
    ///
    /// # Panics
    /// When the flow has no other rank of this number, or no state.
    pub fn ask(&self, rank: u32, request: &StateRequest) -> Result<Asked, AskError> {
        let asking = self.asking.as_ref().expect("other ranks, and state");
        let question = postcard::to_stdvec(request).map_err(|error| AskError::Failed {
            rank,
            error: format!("the request cannot be written: {error}"),
        })?;
        let asked = asking.ask(rank, &question)?;
        Ok(Asked { rank, asked })
    }
}

/// Begins to answer other ranks.
pub fn start(lines: Lines, workers: &Arc<Workers>) -> io::Result<Asking> {
    let workers = Arc::clone(workers);
    Asking::start(lines, move |question| {
        let answer = catch(|| {
            let request = postcard::from_bytes(question)?;
            let answer: Sent = Ok(answer(&workers, &request)?);
            let bytes = postcard::to_stdvec(&answer)?;
            match bytes.len() <= ANSWER_BYTES_MAX {
                true => Ok(bytes),
                false => Err(format!(
                    "the answer has {} bytes, and at most {ANSWER_BYTES_MAX} can go to another rank: ask for fewer keys",
                    bytes.len()
                )
                .into()),
            }
        });
        answer.unwrap_or_else(|error| {
            let error: Sent = Err(error.to_string());
            postcard::to_stdvec(&error).expect("texts can be written")
        })
    })
}

fn answer(workers: &Workers, request: &StateRequest) -> Result<StateAnswer, BoxError> {
    let element = |name: &str| {
        let state = workers.state(name);
        state.ok_or_else(|| format!("the flow has no state element \"{name}\""))
    };
    Ok(match request {
        StateRequest::Values {
            element: name,
            keys,
            level,
        } => {
            let state = &**element(name)?;
            let values = values(keys, |key| Ok::<_, BoxError>(value(state, key, *level)))?;
            // Otherwise a value that cannot be read would look absent.
            state.is_whole()?;
            values
        }
        StateRequest::Range {
            element: name,
            range,
            limit,
            level,
        } => {
            let state = &**element(name)?;
            let ordered = state.ordered();
            let ordered = ordered.ok_or_else(|| format!("the keys of \"{name}\" have no order"))?;
            let page = ordered.scan(range, *limit, *level);
            state.is_whole()?;
            StateAnswer::Range(page)
        }
        StateRequest::Keys {
            element: name,
            limit,
        } => {
            let state = &**element(name)?;
            let keys = state.keys(*limit);
            state.is_whole()?;
            StateAnswer::Keys(keys)
        }
        StateRequest::Greatest {
            element: name,
            query,
        } => {
            let state = &**element(name)?;
            let found = greatest::search(state, query, &*workers.clock);
            state.is_whole()?;
            StateAnswer::Greatest(found)
        }
        StateRequest::Progress { checkpoint } => {
            let positions = || workers.positions();
            StateAnswer::Progress(progress(workers, *checkpoint, positions))
        }
    })
}

fn try_answer(workers: &Workers, request: &StateRequest) -> Result<StateAnswer, WouldWait> {
    match request {
        StateRequest::Values {
            element,
            keys,
            level,
        } => {
            let state = workers.state(element).and_then(|state| state.ordered());
            let state = state.ok_or(WouldWait)?;
            values(keys, |key| state.try_read(key, *level))
        }
        StateRequest::Progress { checkpoint } => {
            let positions = match checkpoint {
                None => workers.try_positions()?,
                Some(_) => Vec::new(),
            };
            let progress = progress(workers, *checkpoint, || positions);
            Ok(StateAnswer::Progress(progress))
        }
        StateRequest::Range { .. } | StateRequest::Keys { .. } | StateRequest::Greatest { .. } => {
            Err(WouldWait)
        }
    }
}

/// Reads the values of keys until they take too much memory.
fn values<E>(
    keys: &[String],
    mut read: impl FnMut(&str) -> Result<Option<StateValue>, E>,
) -> Result<StateAnswer, E> {
    let mut bytes = 0;
    let mut values = Vec::new();
    for key in keys {
        let found = read(key)?;
        let value = found.as_ref().and_then(|found| found.value.as_ref());
        bytes += value.map_or(0, bytes_of);
        values.push(found);
        if bytes > VALUES_BYTES_MAX && values.len() > 1 {
            return Ok(StateAnswer::Large);
        }
    }
    Ok(StateAnswer::Values(values))
}

fn value(state: &dyn StateReader, key: &str, level: ReadLevel) -> Option<StateValue> {
    match state.ordered() {
        Some(state) => OrderedState::read(state, key, level),
        None => state.get(key).map(|value| StateValue {
            value: Some(value),
            is_committed: false,
            checkpoint: None,
        }),
    }
}

/// Returns the progress at a checkpoint, or now: then `positions` are those of the sources.
fn progress(
    workers: &Workers,
    checkpoint: Option<u64>,
    positions: impl FnOnce() -> Vec<Position>,
) -> Progress {
    let shard = workers.checkpoints().and_then(|counts| counts.last);
    let progress = Progress {
        shard_age_seconds: shard.and_then(|shard| shard.age_seconds),
        snapshot: workers.trail.last(),
        ..Progress::default()
    };
    match checkpoint {
        None => Progress {
            positions: positions(),
            watermark: watermark_of(&workers.stages),
            checkpoint_age_seconds: workers.trail.complete().map(|it| it.age_seconds),
            ..progress
        },
        Some(number) => match workers.trail.find(number) {
            Some(view) => Progress {
                positions: view.positions,
                watermark: view.watermark,
                checkpoint_age_seconds: Some(view.age_seconds),
                ..progress
            },
            None => progress,
        },
    }
}
