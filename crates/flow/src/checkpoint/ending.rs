//! The end of a rank: one more checkpoint follows, and all that was prepared is committed.

use crate::checkpoint::decisions::Decisions;
use crate::checkpoint::shards::Shards;
use crate::checkpoint::snapshot::Elements;
use crate::error::Failure;

/// The steps by which a rank ends, once all of its stages have ended.
pub struct Ending {
    /// The rank's last checkpoint before its end; all are counted from the beginning of the run.
    ended: u64,
    /// Its last checkpoint since then: the final one, or one that another rank has started meanwhile.
    last: u64,
}

/// The parts of a rank that take part in its end.
pub struct Parts<'a> {
    pub elements: &'a Elements<'a>,
    pub shards: &'a Shards,
    pub decisions: &'a Decisions,
    /// Whether the flow is being stopped.
    pub is_stopping: bool,
}

impl Ending {
    /// Announces to other ranks that this one has ended; `ended` is the number of its last checkpoint.
    pub fn begin(ended: u64, shards: &Shards, decisions: &Decisions) -> Result<Ending, Failure> {
        decisions.end(shards.checkpoint(ended))?;
        let last = ended;
        Ok(Ending { ended, last })
    }

    /// Does all steps that are possible now; never waits. Returns whether the rank has ended; if not, the caller calls it again
    /// when there is something to decide.
    pub fn go_on(&mut self, parts: &Parts<'_>) -> Result<bool, Failure> {
        let Parts {
            elements,
            shards,
            decisions,
            is_stopping,
        } = *parts;
        let is_awaited = decisions.signal().waiting().is_any;
        loop {
            decisions.decide()?;
            // 1. Until all ranks have ended, this one takes part in the checkpoints of the others.
            let end = decisions.final_number(shards.checkpoint(self.ended));
            if shards.is_writing() {
                // While other ranks continue, the writer retries a shard that cannot be stored.
                shards.set_ending(end.is_some() || is_stopping);
                return Ok(false);
            }
            shards.finish();
            let last = shards.checkpoint(self.last);
            let is_stored = shards.is_stored(last);
            let next = match end {
                // Another rank may have reached this checkpoint, and this one may have followed it.
                Some(end) if end == last && is_stored => {
                    // 3. The results of the last checkpoint of all.
                    return Ok(!is_awaited || decisions.is_committed(end));
                }
                Some(end) if end == last => return give_up(parts),
                // 2. The last checkpoint of all.
                Some(end) => end,
                // The other ranks may wait for a shard that this one cannot store.
                None if !is_stored && is_stopping && is_awaited => return give_up(parts),
                None => match decisions.wanted(last) {
                    Some(wanted) => wanted,
                    None => return Ok(false),
                },
            };
            self.last = next - shards.checkpoint(0);
            shards.store(self.last, elements.save(next)?, None);
        }
    }
}

/// The last checkpoint is not stored.
fn give_up(parts: &Parts<'_>) -> Result<bool, Failure> {
    if !parts.decisions.signal().waiting().is_any {
        return Ok(true);
    }
    Err(Failure::Error {
        operator: "checkpoints".into(),
        error: format!(
            "the last checkpoint is not stored, so the results since the one before are not committed; resume the flow: {}",
            parts.shards.counts().error.unwrap_or_default()
        )
        .into(),
    })
}
