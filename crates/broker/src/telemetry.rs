//! Metrics that clients report (KIP-714): the subscriptions that ask for them, and the pace of a client's reports.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_base::crc32c;
use millstream_wire::ResponseError;
use parking_lot::RwLock;

use crate::configs::ConfigStore;
use crate::configs::client_metrics::{self, INTERVAL_DEFAULT, Subscription};

/// The topic that gets the reports: the one that OpenTelemetry's collector reads from Kafka by default. No client is asked
/// for metrics while it does not exist.
pub const TOPIC: &str = "otlp_metrics";

/// The largest report.
pub const REPORT_BYTES_MAX: usize = 1 << 20;

/// The name that stands for all metrics.
const ALL: &str = "*";

/// The names and values by which subscriptions choose clients.
pub type Attributes = [(&'static str, String); 6];

/// The metrics that a client is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The time between two reports; without metrics, until the client asks again.
    pub interval: Duration,
    /// The beginnings of the names of the metrics.
    pub metrics: BTreeSet<String>,
}

impl Asked {
    /// Returns the demand for no metrics.
    pub fn nothing() -> Asked {
        Asked {
            interval: INTERVAL_DEFAULT,
            metrics: BTreeSet::new(),
        }
    }

    /// Returns a number that is another one for other metrics and for another interval.
    pub fn id(&self) -> i32 {
        let mut text = self.interval.as_millis().to_string();
        for name in &self.metrics {
            text = text + "," + name;
        }
        crc32c(text.as_bytes()) as i32
    }
}

/// The subscriptions to metrics, with their patterns compiled.
pub struct Subscriptions(RwLock<Vec<Subscription>>);

impl Subscriptions {
    /// Returns the stored subscriptions.
    pub fn new(configs: &ConfigStore) -> Subscriptions {
        Subscriptions(RwLock::new(client_metrics::subscriptions(configs)))
    }

    /// Takes the stored subscriptions over, after a change.
    pub fn renew(&self, configs: &ConfigStore) {
        let mut subscriptions = self.0.write();
        *subscriptions = client_metrics::subscriptions(configs);
    }

    /// Returns the number of metrics in all subscriptions, and the bytes of their names.
    pub fn metrics(&self) -> (usize, usize) {
        let subscriptions = self.0.read();
        let names = subscriptions.iter().flat_map(|it| &it.metrics);
        names.fold((0, 0), |(count, bytes), name| {
            (count + 1, bytes + name.len())
        })
    }

    /// Returns the metrics that a client is asked for: those of all subscriptions that choose it, at the shortest of their
    /// intervals.
    pub fn asked(&self, attributes: &Attributes) -> Asked {
        let subscriptions = self.0.read();
        let chosen = subscriptions.iter().filter(|it| it.chooses(attributes));
        let chosen: Vec<&Subscription> = chosen.filter(|it| !it.metrics.is_empty()).collect();
        let intervals = chosen.iter().map(|subscription| subscription.interval);
        let metrics = chosen.iter().flat_map(|subscription| &subscription.metrics);
        let metrics: BTreeSet<String> = metrics.cloned().collect();
        Asked {
            interval: intervals.min().unwrap_or(INTERVAL_DEFAULT),
            metrics: match metrics.contains(ALL) {
                true => [ALL.to_owned()].into(),
                false => metrics,
            },
        }
    }
}

/// The reports of one connection.
#[derive(Debug, Default)]
pub struct Reports {
    /// The time of the last report since the client asked for its subscriptions.
    reported_at: Option<Duration>,
    /// Whether the client has sent its last report.
    are_over: bool,
}

impl Reports {
    /// Notes that the client asks for its subscriptions: the next report may come at once.
    pub fn begin(&mut self) {
        self.reported_at = None;
    }

    /// Notes a report. Refuses it if it comes too early, or behind the last one. The last report may come early.
    pub fn add(
        &mut self,
        now: Duration,
        interval: Duration,
        is_last: bool,
    ) -> Result<(), ResponseError> {
        if self.are_over {
            return Err(ResponseError::InvalidRequest);
        }
        let is_early = self.reported_at.is_some_and(|at| now < at + interval);
        if is_early && !is_last {
            return Err(ResponseError::ThrottlingQuotaExceeded);
        }
        self.reported_at = Some(now);
        self.are_over = is_last;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn reports_keep_to_their_interval_except_the_last_one() {
        let mut reports = Reports::default();
        let mut report = |ms, is_last| reports.add(Duration::from_millis(ms), SECOND, is_last);
        assert_eq!(report(0, false), Ok(()));
        assert_eq!(
            report(999, false),
            Err(ResponseError::ThrottlingQuotaExceeded)
        );
        assert_eq!(report(1000, false), Ok(()));
        assert_eq!(report(1001, true), Ok(()));
        assert_eq!(report(5000, false), Err(ResponseError::InvalidRequest));
    }

    #[test]
    fn a_report_may_follow_a_question_at_once() {
        let mut reports = Reports::default();
        assert_eq!(reports.add(SECOND, SECOND, false), Ok(()));
        reports.begin();
        assert_eq!(reports.add(SECOND, SECOND, false), Ok(()));
    }

    #[test]
    fn the_id_depends_on_metrics_and_interval() {
        let asked = |interval, metrics: &[&str]| Asked {
            interval,
            metrics: metrics.iter().map(|name| (*name).to_owned()).collect(),
        };
        let id = asked(SECOND, &["a", "b"]).id();
        assert_eq!(asked(SECOND, &["b", "a"]).id(), id);
        assert_ne!(asked(SECOND, &["a"]).id(), id);
        assert_ne!(asked(2 * SECOND, &["a", "b"]).id(), id);
    }
}
