//! The throughput of flows in each second.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use millstream_flow::{Running, StageMetrics};
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::Content;

/// The time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// The length of each flow's history: five minutes.
const SAMPLES_MAX: usize = 300;

/// The histories of the flows that a server shows.
pub struct History {
    started_at: Instant,
    flows: Mutex<Vec<Watched>>,
}

/// A flow with its samples.
struct Watched {
    /// Compared by identity: a flow that starts again under the same name is another one.
    flow: Weak<Running>,
    track: Track,
}

/// The samples of one flow.
struct Track {
    /// The times of the first and the last sample, since the server's start.
    first: Duration,
    last: Duration,
    /// The items that each stage had read at the last sample.
    items_in: Vec<u64>,
    samples: VecDeque<Sample>,
}

/// The history of a flow.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Throughput {
    /// The time since the flow's first sample, in seconds.
    watched_seconds: f64,
    /// The samples of the last five minutes, the oldest first.
    throughput: Vec<Sample>,
}

/// The throughput of each stage between two samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Sample {
    /// The end of the sample, on the scale of `watched_seconds`.
    seconds: f64,
    /// The items per second that each stage read, in the order of the stages.
    items_per_second: Vec<f64>,
}

impl History {
    pub fn new() -> History {
        History {
            started_at: Instant::now(),
            flows: Mutex::default(),
        }
    }

    /// Samples the flows periodically, without end.
    pub async fn sample_forever(self: Arc<Self>, content: Arc<dyn Content>) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (history, content) = (Arc::clone(&self), Arc::clone(&content));
            let sampled = tokio::task::spawn_blocking(move || {
                content.tick();
                history.sample(&*content);
            });
            // The panic hook has reported the panic; later requests report it again.
            if sampled.await.is_err() {
                pending::<()>().await;
            }
        }
    }

    fn sample(&self, content: &dyn Content) {
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

    /// Adds a sample. A flow that has ended retains its last samples.
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
    fn a_sample_is_the_rate_since_the_previous_sample() {
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
    fn the_newest_five_minutes_are_retained() {
        let mut track = Track::new(Duration::ZERO, vec![0]);
        for second in 1..=1_000 {
            track.add(second * SECOND, vec![u64::from(second)], false);
        }
        let seconds = track.samples.iter().map(|sample| sample.seconds as u32);
        assert!(seconds.eq(701..=1_000));
    }

    #[test]
    fn an_ended_flow_retains_its_last_samples() {
        let mut track = Track::new(Duration::ZERO, vec![0]);
        track.add(SECOND, vec![5], false);
        track.add(2 * SECOND, vec![8], true);
        track.add(3 * SECOND, vec![8], true);
        assert_eq!(track.samples.len(), 2);
        assert_eq!(track.samples[1].items_per_second, [3.0]);
    }
}
