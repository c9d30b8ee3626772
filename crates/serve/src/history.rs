//! How fast flows were, second by second.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use millstream_flow::{Running, StageMetrics};
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::Content;

/// How often the flows are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// The length of each flow's history: five minutes.
const SAMPLES_MAX: usize = 300;

/// The histories of the flows that a server shows.
pub struct History {
    started_at: Instant,
    flows: Mutex<Vec<Watched>>,
}

/// A flow that is looked at.
struct Watched {
    /// A flow that is started again under the same name is another one.
    flow: Weak<Running>,
    track: Track,
}

/// The way of one flow.
struct Track {
    /// When the flow was looked at first and last, since the server's start.
    first: Duration,
    last: Duration,
    /// By stage, when it was looked at last.
    items_in: Vec<u64>,
    samples: VecDeque<Sample>,
}

/// The history of a flow.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Throughput {
    /// How long the server has looked at the flow, in seconds.
    watched_seconds: f64,
    /// Five minutes at most, the oldest first.
    throughput: Vec<Sample>,
}

/// How fast each stage was between two looks.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Sample {
    /// When it ends, on the scale of `watched_seconds`.
    seconds: f64,
    /// Items that each stage read, in the order of the stages.
    items_per_second: Vec<f64>,
}

impl History {
    pub fn new() -> History {
        History {
            started_at: Instant::now(),
            flows: Mutex::default(),
        }
    }

    /// Looks at the flows from time to time, without end.
    pub async fn keep(self: Arc<Self>, content: Arc<dyn Content>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (history, content) = (Arc::clone(&self), Arc::clone(&content));
            let looked = tokio::task::spawn_blocking(move || {
                content.tick();
                history.look(&*content);
            });
            // Content that panics has been told of; requests for it will be answered with that.
            if looked.await.is_err() {
                pending::<()>().await;
            }
        }
    }

    fn look(&self, content: &dyn Content) {
        let running = content.flows();
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.retain(|watched| running.iter().any(|flow| watched.is(flow)));
        let at = self.started_at.elapsed();
        for flow in &running {
            let items_in = items_in(&flow.metrics());
            match flows.iter_mut().find(|watched| watched.is(flow)) {
                Some(watched) => watched.track.add(at, items_in, flow.is_finished()),
                None => flows.push(Watched {
                    flow: Arc::downgrade(flow),
                    track: Track::new(at, items_in),
                }),
            }
        }
    }

    /// Returns the history of a flow; empty before its first sample.
    pub fn of(&self, flow: &Arc<Running>) -> Throughput {
        let flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        match flows.iter().find(|watched| watched.is(flow)) {
            Some(watched) => watched.track.until(self.started_at.elapsed()),
            None => Throughput::default(),
        }
    }
}

impl Watched {
    fn is(&self, flow: &Arc<Running>) -> bool {
        std::ptr::eq(self.flow.as_ptr(), Arc::as_ptr(flow))
    }
}

fn items_in(stages: &[StageMetrics]) -> Vec<u64> {
    stages.iter().map(|stage| stage.items_in).collect()
}

impl Track {
    fn new(at: Duration, items_in: Vec<u64>) -> Track {
        Track {
            first: at,
            last: at,
            items_in,
            samples: VecDeque::new(),
        }
    }

    /// Ends a sample. Of a flow that has ended, what it did last is kept.
    fn add(&mut self, at: Duration, items_in: Vec<u64>, is_finished: bool) {
        if is_finished && items_in == self.items_in {
            return;
        }
        let seconds = (at - self.last).as_secs_f64().max(1e-3);
        let items = items_in.iter().zip(&self.items_in);
        let sample = Sample {
            seconds: rounded((at - self.first).as_secs_f64()),
            items_per_second: items
                .map(|(now, before)| rounded(now.saturating_sub(*before) as f64 / seconds))
                .collect(),
        };
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.last = at;
        self.items_in = items_in;
    }

    fn until(&self, now: Duration) -> Throughput {
        Throughput {
            watched_seconds: rounded((now - self.first).as_secs_f64()),
            throughput: self.samples.iter().cloned().collect(),
        }
    }
}

/// Rounds to the resolution of the clock.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_sample_is_what_happened_since_the_one_before_by_the_time_that_passed() {
        let mut track = Track::new(10 * SECOND, vec![100, 50]);
        track.add(11 * SECOND, vec![300, 50], false);
        track.add(13 * SECOND, vec![301, 150], false);
        let expected = [(1.0, [200.0, 0.0]), (3.0, [0.5, 50.0])];
        let expected = expected.map(|(seconds, items)| Sample {
            seconds,
            items_per_second: items.to_vec(),
        });
        let throughput = track.until(Duration::from_millis(13_250));
        assert_eq!(throughput.throughput, expected);
        assert_eq!(throughput.watched_seconds, 3.25);
    }

    #[test]
    fn the_newest_five_minutes_are_kept() {
        let mut track = Track::new(Duration::ZERO, vec![0]);
        for second in 1..=1_000 {
            track.add(second * SECOND, vec![u64::from(second)], false);
        }
        let seconds = track.samples.iter().map(|sample| sample.seconds as u32);
        assert!(seconds.eq(701..=1_000));
    }

    #[test]
    fn what_a_flow_did_before_it_ended_is_not_pushed_out_by_the_silence_after() {
        let mut track = Track::new(Duration::ZERO, vec![0]);
        track.add(SECOND, vec![5], false);
        track.add(2 * SECOND, vec![8], true);
        track.add(3 * SECOND, vec![8], true);
        assert_eq!(track.samples.len(), 2);
        assert_eq!(track.samples[1].items_per_second, [3.0]);
    }
}
