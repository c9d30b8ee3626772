//! The ranks of a flow that a reader of state asks, those in other processes, too.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_flow::{AskError, Asked, Progress, Running, StateAnswer, StateRequest, WouldWait};

use super::headers;
use crate::Content;
use crate::error::RequestError;
use crate::shown::{ANSWER_TIME_MAX, running};

/// Ranks of a flow.
#[derive(Clone)]
pub struct FlowRanks {
    pub flow: String,
    here: Vec<Arc<Running>>,
    /// Ranks in other processes, which the first one here asks.
    away: Vec<u32>,
    first: Arc<Running>,
    /// Whether reads fail with [`RequestError::WouldWait`] where they would have to wait.
    is_at_once: bool,
}

impl FlowRanks {
    /// Finds all ranks of a flow.
    pub fn find(content: &dyn Content, flow: &str) -> Result<FlowRanks, RequestError> {
        let here = running(content, flow, None)?;
        let first = Arc::clone(&here[0]);
        let is_away = |rank: &u32| here.iter().all(|here| here.rank() != *rank);
        Ok(FlowRanks {
            flow: flow.to_owned(),
            away: (0..first.ranks()).filter(is_away).collect(),
            first,
            here,
            is_at_once: false,
        })
    }

    /// Returns the same ranks, for reads that never wait: they fail with [`RequestError::WouldWait`] instead.
    pub fn at_once(self) -> FlowRanks {
        let is_at_once = true;
        FlowRanks { is_at_once, ..self }
    }

    /// Waits for that time before ranks are asked again.
    pub fn pause(&self, time: Duration) -> Result<(), RequestError> {
        match self.is_at_once {
            true => Err(RequestError::WouldWait),
            false => {
                thread::sleep(time);
                Ok(())
            }
        }
    }

    /// Returns one of the ranks, or all.
    pub fn only(&self, rank: Option<u32>) -> Result<FlowRanks, RequestError> {
        let mut ranks = self.clone();
        if let Some(rank) = rank {
            if rank >= self.first.ranks() {
                let flow = self.flow.clone();
                return Err(RequestError::UnknownRank { flow, rank });
            }
            ranks.here.retain(|here| here.rank() == rank);
            ranks.away.retain(|away| *away == rank);
        }
        Ok(ranks)
    }

    /// Returns the first of all ranks that this process has.
    pub fn first(&self) -> &Arc<Running> {
        &self.first
    }

    pub fn count(&self) -> usize {
        self.here.len() + self.away.len()
    }

    /// Asks all of them, and waits for their answers.
    pub fn ask(&self, request: &StateRequest) -> Result<Vec<StateAnswer>, RequestError> {
        if self.is_at_once {
            return self.ask_at_once(request);
        }
        let until = Instant::now() + ANSWER_TIME_MAX;
        let asked = self.away.iter().map(|rank| self.first.ask(*rank, request));
        let asked: Vec<Asked> = asked.collect::<Result<_, _>>()?;
        let mut answers = Vec::new();
        for rank in &self.here {
            let answer = rank.read(request).map_err(|error| AskError::Failed {
                rank: rank.rank(),
                error: error.to_string(),
            });
            answers.push(answer?);
        }
        for asked in asked {
            answers.push(asked.wait(until.saturating_duration_since(Instant::now()))?);
        }
        Ok(answers)
    }

    fn ask_at_once(&self, request: &StateRequest) -> Result<Vec<StateAnswer>, RequestError> {
        if !self.away.is_empty() {
            return Err(RequestError::WouldWait);
        }
        let answers = self.here.iter().map(|rank| rank.try_read(request));
        let answers: Result<_, WouldWait> = answers.collect();
        answers.map_err(|_| RequestError::WouldWait)
    }

    /// Returns how far all of them were at a checkpoint, as an object.
    pub fn progress_at(&self, checkpoint: u64) -> Result<String, RequestError> {
        let ranks = self.progress(Some(checkpoint))?;
        // A rank remembers the last checkpoints only.
        let mut ages = ranks.iter().map(|rank| rank.checkpoint_age_seconds);
        if ages.any(|age| age.is_none()) {
            return Err(RequestError::Checkpoints);
        }
        Ok(headers::progress(&ranks, checkpoint).to_string())
    }

    /// Asks all of them for their progress, at a checkpoint or now.
    pub fn progress(&self, checkpoint: Option<u64>) -> Result<Vec<Progress>, RequestError> {
        let answers = self.ask(&StateRequest::Progress { checkpoint })?;
        let progress = answers.into_iter().filter_map(|answer| match answer {
            StateAnswer::Progress(progress) => Some(progress),
            _ => None,
        });
        Ok(progress.collect())
    }
}
