//! The rule by which best-effort work yields to latencies: after the scheduler of in-memory web objects (sections 3.3 and
//! 5.2), which withholds analytics above the objective and adds some below 70 % of it. How fast it comes back is ours.
//! Without threads or a clock, so that tests run it in simulated time.

use std::time::Duration;

use serde::Serialize;

/// Below this share of the objective best-effort work comes back.
pub const COMES_BACK_BELOW: f64 = 0.7;

/// Best-effort work comes back by one step in this time.
pub const STEP_TIME: Duration = Duration::from_millis(500);

/// After requests that waited for long, best-effort work has its former level again in this time: a burst is short.
const BURST_TIME: Duration = Duration::from_millis(100);

/// Requests that wait for long again within this time after a burst count as a miss: best-effort work is in their way.
const BURSTS_APART: Duration = Duration::from_secs(1);

/// For this long after an objective was missed, best-effort work stays below three quarters of the level at which it was.
const CEILING_TIME: Duration = Duration::from_secs(10);

/// Best-effort work had no slots for this long: a latency that is still above its objective has other causes.
const ALONE_TIME: Duration = Duration::from_secs(1);

/// A level of best-effort work: this many hundredths of all slots.
pub type Level = u32;

/// All slots.
pub const FULL: Level = 100;

/// The least step.
const STEP_MIN: Level = 5;

/// The state of an objective, as shares of it: 1.0 is the objective itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Standing {
    /// The latency at the objective's percentile, over the last requests; `None` without any.
    pub latency: Option<f64>,
    /// The age of the oldest request that waits; 0 if none does. It shows a stall before the percentile does.
    pub oldest: f64,
}

impl Standing {
    /// The greater share.
    pub fn worse(&self) -> f64 {
        self.latency.unwrap_or(0.0).max(self.oldest)
    }
}

/// The reason of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The latency at the percentile is above the objective.
    Missed,
    /// A request has waited for longer than the share of the objective below which best-effort work comes back.
    Waits,
    /// The latency is above the objective although best-effort work has had no slots: the objective cannot be held even alone.
    MissedAlone,
    /// The requests that waited for long are answered, and the objective was not missed: all the way back.
    BurstOver,
    /// The latency is low: a step back.
    Low,
    /// No request has come for the time of a step.
    Quiet,
}

/// Decides how much of the slots best-effort work may have.
#[derive(Debug)]
pub struct Controller {
    level: Level,
    changed_at: Duration,
    /// The next step beyond the ceiling.
    step: Level,
    /// The level at which an objective was last missed, and when.
    missed: Option<(Level, Duration)>,
    /// The level to come back to when a burst is over, if only requests that waited have taken it.
    before_burst: Option<Level>,
    /// When best-effort work came back after the last burst.
    burst_over_at: Option<Duration>,
    /// When the level fell to 0.
    withheld_at: Duration,
    /// Whether an objective was missed alone since then.
    is_missed_alone: bool,
}

impl Default for Controller {
    fn default() -> Self {
        Controller {
            level: FULL,
            changed_at: Duration::ZERO,
            step: STEP_MIN,
            missed: None,
            before_burst: None,
            burst_over_at: None,
            withheld_at: Duration::ZERO,
            is_missed_alone: false,
        }
    }
}

impl Controller {
    /// Returns the level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Takes in the standing of the objective that is worst off, some times per [`STEP_TIME`]; `None` if there was no request
    /// since the last call. Returns the new level and the reason, if it has changed, or if an objective is missed at 0: latencies
    /// from before then count no more.
    pub fn observe(
        &mut self,
        standing: Option<Standing>,
        now: Duration,
    ) -> Option<(Level, Reason)> {
        let since = now.saturating_sub(self.changed_at);
        let Some(standing) = standing else {
            return (self.level < FULL && since >= STEP_TIME).then(|| {
                self.before_burst = None;
                self.set(FULL, Reason::Quiet, now)
            });
        };
        let is_missed = standing.latency.is_some_and(|latency| latency > 1.0);
        let waits = standing.oldest > COMES_BACK_BELOW;
        if is_missed || waits {
            let reason = if is_missed {
                Reason::Missed
            } else {
                Reason::Waits
            };
            if is_missed && let Some(level) = self.before_burst.take() {
                self.missed = Some((level, now));
            }
            if self.level == 0 {
                // It comes back a whole step after the last miss.
                self.changed_at = now;
                let is_alone = now.saturating_sub(self.withheld_at) >= ALONE_TIME;
                let begins = is_missed && is_alone && !self.is_missed_alone;
                self.is_missed_alone |= begins;
                return begins.then_some((0, Reason::MissedAlone));
            }
            let last = self.burst_over_at;
            let is_again = last.is_some_and(|at| now.saturating_sub(at) < BURSTS_APART);
            if is_missed || is_again {
                self.missed = Some((self.level, now));
            } else {
                self.before_burst = Some(self.level);
            }
            self.step = STEP_MIN;
            self.withheld_at = now;
            self.is_missed_alone = false;
            return Some(self.set(0, reason, now));
        }
        if standing.oldest < COMES_BACK_BELOW / 2.0
            && since >= BURST_TIME
            && let Some(level) = self.before_burst.take()
        {
            self.burst_over_at = Some(now);
            return Some(self.set(level, Reason::BurstOver, now));
        }
        let is_low = standing
            .latency
            .is_none_or(|latency| latency < COMES_BACK_BELOW);
        if !is_low || self.level == FULL || since < STEP_TIME {
            return None;
        }
        let next = match self.missed.map(|(missed, at)| (missed * 3 / 4, at)) {
            // By halves, to below the level at which the objective was missed.
            Some((ceiling, _)) if self.level < ceiling => {
                let rest = ceiling - self.level;
                self.level + (rest / 2).max(STEP_MIN).min(rest)
            }
            Some((_, at)) if now.saturating_sub(at) < CEILING_TIME => return None,
            // Beyond it with growing steps.
            _ => {
                let step = self.step;
                self.step *= 2;
                (self.level + step).min(FULL)
            }
        };
        if next == FULL {
            self.missed = None;
            self.step = STEP_MIN;
        }
        Some(self.set(next, Reason::Low, now))
    }

    fn set(&mut self, level: Level, reason: Reason, now: Duration) -> (Level, Reason) {
        self.level = level;
        self.changed_at = now;
        (level, reason)
    }
}

#[cfg(test)]
mod tests;
