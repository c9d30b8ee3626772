//! Metrics in the text format of Prometheus, version 0.0.4.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Write};
use std::sync::Arc;

use millstream_flow::{CheckpointCounts, Latency, Running, StageMetrics, StateElement};

use self::MetricKind::{Counter, Gauge};

/// A metric of the program that belongs to no flow.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// The name without the prefix `millstream_`. It ends with the unit, and a counter's name with `_total`.
    pub name: &'static str,
    /// The description of the metric, in one line.
    pub help: &'static str,
    /// The type of the metric.
    pub kind: MetricKind,
    /// The current values, one for each set of labels.
    pub samples: Vec<Sample>,
}

/// A value with the labels that distinguish it from others of the same name.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The labels, as names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The current value.
    pub value: Value,
}

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// Any other number.
    Number(f64),
    /// Durations, of a metric of the kind [`MetricKind::Histogram`].
    Histogram {
        /// The upper bound of each bucket in seconds, rising, and the number of durations in it, without those of
        /// lower buckets.
        buckets: Vec<(f64, u64)>,
        /// The number of all durations, including those above the highest bound.
        count: u64,
        /// The sum of all durations, in seconds.
        sum: f64,
    },
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It counts from the start of the program, and never falls.
    Counter,
    /// It rises and falls.
    Gauge,
    /// It counts durations by their length.
    Histogram,
}

impl Metric {
    /// Returns a metric without labels.
    pub fn new(name: &'static str, kind: MetricKind, value: u64, help: &'static str) -> Metric {
        let sample = Sample {
            labels: Vec::new(),
            value: Value::Count(value),
        };
        Metric {
            name,
            help,
            kind,
            samples: vec![sample],
        }
    }
}

/// A metric of every `T`; a `T` without it has no sample.
struct Family<T> {
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    value: fn(&T) -> Option<f64>,
}

const fn family<T>(
    name: &'static str,
    kind: MetricKind,
    value: fn(&T) -> Option<f64>,
    help: &'static str,
) -> Family<T> {
    Family {
        name,
        help,
        kind,
        value,
    }
}

#[rustfmt::skip]
const OF_FLOWS: [Family<Running>; 6] = [
    family("flow_finished", Gauge, |flow| Some(f64::from(u8::from(flow.is_finished()))),
        "1 when the flow has ended, and 0 before."),
    family("flow_workers", Gauge, |flow| Some(flow.workers() as f64),
        "Workers that exist now, including sleeping ones."),
    family("flow_workers_replaced_total", Counter, |flow| Some(flow.workers_replaced() as f64),
        "Workers that died and were replaced."),
    family("flow_lost_wakeups_total", Counter, |flow| Some(flow.lost_wakeups() as f64),
        "Sleeps of all workers that a timer ended although a stage had input and room; 0 unless the engine has a fault."),
    family("flow_lag_records", Gauge, |flow| Some(flow.lag_records()? as f64),
        "Offsets of its streams, of records and of markers of transactions, that the flow could read and has not read."),
    family("flow_waiting_sources", Gauge, |flow| Some(flow.waits().len() as f64),
        "Sources that hold back event time, and so delay windows."),
];

#[rustfmt::skip]
const OF_CHECKPOINTS: [Family<CheckpointCounts>; 10] = [
    family("flow_checkpoints_total", Counter, |counts| Some(counts.kept as f64),
        "Shards of checkpoints that this rank has stored."),
    family("flow_checkpoint_failures_total", Counter, |counts| Some(counts.failed as f64),
        "Shards of checkpoints that this rank failed to store."),
    family("flow_checkpoint_interval_seconds", Gauge, |counts| Some(counts.interval_seconds),
        "The time from one checkpoint to the next; it may adapt to their cost."),
    family("flow_checkpoint_last_number", Gauge, |counts| Some(counts.last?.number as f64),
        "The number of the last checkpoint of which this rank has stored its shard."),
    family("flow_checkpoint_last_age_seconds", Gauge, |counts| counts.last?.age_seconds,
        "The age of that shard; absent if an earlier run stored it."),
    family("flow_checkpoint_last_duration_seconds", Gauge, |counts| counts.last?.seconds,
        "The time to write that shard."),
    family("flow_checkpoint_last_pause_seconds", Gauge, |counts| counts.last?.pause_seconds,
        "The time for which the sources paused before."),
    family("flow_checkpoint_last_bytes", Gauge, |counts| Some(counts.last?.bytes? as f64),
        "The size of that shard."),
    family("flow_checkpoint_last_changes", Gauge, |counts| Some(counts.last?.changes? as f64),
        "The changes of state elements that it has in changelogs."),
    family("flow_checkpoint_last_change_bytes", Gauge, |counts| Some(counts.last?.change_bytes? as f64),
        "The bytes of the keys and values of these changes."),
];

/// A metric of every state element.
#[rustfmt::skip]
const OF_ELEMENTS: [Family<StateElement>; 2] = [
    family("flow_state_entries", Gauge, |element| Some(element.entries? as f64),
        "Entries of a state element on this rank: keys, or windows of keys."),
    family("flow_state_memory_bytes", Gauge, |element| Some(element.memory_bytes? as f64),
        "The memory of a state element on this rank, by estimate."),
];

/// All of [`StageMetrics`].
#[rustfmt::skip]
const OF_STAGES: [Family<StageMetrics>; 19] = [
    family("stage_items_in_total", Counter, |stage| Some(stage.items_in as f64),
        "Items that the stage has read."),
    family("stage_items_out_total", Counter, |stage| Some(stage.items_out as f64),
        "Items that the stage has passed on."),
    family("stage_activations_total", Counter, |stage| Some(stage.activations as f64),
        "Times that a worker activated the stage."),
    family("stage_blocked_activations_total", Counter, |stage| Some(stage.blocked as f64),
        "Activations that found no room downstream."),
    family("stage_idle_activations_total", Counter, |stage| Some(stage.idle as f64),
        "Activations that found nothing to read."),
    family("stage_busy_seconds_total", Counter, |stage| Some(stage.busy_seconds),
        "Time that workers have spent in the stage."),
    family("stage_dead_letters_total", Counter, |stage| Some(stage.dead_letters as f64),
        "Items, or parts of items, that became dead letters."),
    family("stage_readable_items", Gauge, |stage| Some(stage.readable as f64),
        "Items that the stage can read now; for a source, its recent number of items per activation."),
    family("stage_room_items", Gauge, |stage| Some(stage.room? as f64),
        "Free room in the rings that the stage writes."),
    family("stage_capacity_items", Gauge, |stage| Some(stage.capacity? as f64),
        "The capacity of the rings that the stage reads."),
    family("stage_items_per_second", Gauge, |stage| Some(stage.throughput),
        "Items read per second, over the last interval of the scheduler."),
    family("stage_selectivity_ratio", Gauge, |stage| Some(stage.selectivity),
        "Results per item, averaged over the last slices."),
    family("stage_item_seconds", Gauge, |stage| Some(stage.item_ns / 1e9),
        "Time per item, averaged over the last slices; 0 before the first."),
    family("stage_target_items", Gauge, |stage| Some(stage.target),
        "The number of results that the scheduler wants from the stage."),
    family("stage_priority", Gauge, |stage| Some(stage.priority),
        "The stage's priority at the scheduler's last decision."),
    family("stage_watermark_timestamp_seconds", Gauge, |stage| Some(stage.watermark_ms? as f64 / 1e3),
        "The stage's watermark, since 1970; absent before the first item with an event time."),
    family("stage_watermark_lag_seconds", Gauge, |stage| stage.watermark_lag_seconds,
        "The clock's lead over the stage's watermark."),
    family("stage_silent_seconds", Gauge, |stage| stage.silent_seconds,
        "The time since the last item of a source with event time; absent while items arrive."),
    family("stage_lag_records", Gauge, |stage| Some(stage.lag_records? as f64),
        "Offsets, of records and of markers of transactions, that the stage's sources could read and have not read."),
];

/// Upper bounds of the latency's buckets in microseconds, with their texts in seconds.
const BUCKETS: [(f64, &str); 25] = [
    (1e0, "0.000001"),
    (2.5e0, "0.0000025"),
    (5e0, "0.000005"),
    (1e1, "0.00001"),
    (2.5e1, "0.000025"),
    (5e1, "0.00005"),
    (1e2, "0.0001"),
    (2.5e2, "0.00025"),
    (5e2, "0.0005"),
    (1e3, "0.001"),
    (2.5e3, "0.0025"),
    (5e3, "0.005"),
    (1e4, "0.01"),
    (2.5e4, "0.025"),
    (5e4, "0.05"),
    (1e5, "0.1"),
    (2.5e5, "0.25"),
    (5e5, "0.5"),
    (1e6, "1"),
    (2.5e6, "2.5"),
    (5e6, "5"),
    (1e7, "10"),
    (2.5e7, "25"),
    (5e7, "50"),
    (1e8, "100"),
];

/// A flow with the labels of its metrics.
struct Labeled<'a> {
    flow: &'a Running,
    /// If the process has several ranks of the flow.
    rank: Option<String>,
}

impl<'a> Labeled<'a> {
    /// Leaves out flows on the same rank of the same flow as an earlier one, since Prometheus could not distinguish them.
    fn all(flows: &'a [Arc<Running>]) -> Vec<Labeled<'a>> {
        let mut ranks: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        let mut first: Vec<&Running> = Vec::new();
        for flow in flows {
            if ranks.entry(flow.name()).or_default().insert(flow.rank()) {
                first.push(flow);
            }
        }
        let labeled = first.into_iter().map(|flow| Labeled {
            flow,
            rank: (ranks[flow.name()].len() > 1).then(|| flow.rank().to_string()),
        });
        labeled.collect()
    }

    /// Returns the labels that name the flow, and others.
    fn labels<'b>(&'b self, others: &[(&'b str, &'b str)]) -> Vec<(&'b str, &'b str)> {
        let rank = self.rank.iter().map(|rank| ("rank", rank.as_str()));
        let flow = [("flow", self.flow.name())].into_iter().chain(rank);
        flow.chain(others.iter().copied()).collect()
    }
}

/// Returns all metrics of the program and of the flows. If the process has several ranks of a flow, each has the label
/// `rank`.
pub fn text(program: &[Metric], flows: &[Arc<Running>]) -> String {
    let flows = Labeled::all(flows);
    let mut page = Page::default();
    for metric in program {
        page.head(metric.name, metric.kind.text(), metric.help);
        for sample in &metric.samples {
            page.sample(metric.name, sample);
        }
    }
    for family in &OF_FLOWS {
        page.head(family.name, family.kind.text(), family.help);
        for flow in &flows {
            if let Some(value) = (family.value)(flow.flow) {
                page.line(family.name, "", &flow.labels(&[]), value);
            }
        }
    }
    let checkpoints: Vec<_> = flows
        .iter()
        .filter_map(|flow| Some((flow, flow.flow.checkpoints()?)))
        .collect();
    for family in &OF_CHECKPOINTS {
        page.head(family.name, family.kind.text(), family.help);
        for (flow, counts) in &checkpoints {
            if let Some(value) = (family.value)(counts) {
                page.line(family.name, "", &flow.labels(&[]), value);
            }
        }
    }
    page.elements(&flows);
    page.late_events(&flows);
    page.streams(&flows);
    let stages = flows.iter().flat_map(|flow| {
        let stages = flow.flow.metrics().into_iter();
        stages.map(move |stage| (flow, stage))
    });
    page.stages(&stages.collect::<Vec<_>>());
    let latencies = flows
        .iter()
        .map(|flow| (flow.labels(&[]), flow.flow.latency()));
    page.latencies(&latencies.collect::<Vec<_>>());
    page.text
}

impl MetricKind {
    fn text(self) -> &'static str {
        match self {
            Counter => "counter",
            Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn sample(&mut self, name: &str, Sample { labels, value }: &Sample) {
        let labels: Vec<(&str, &str)> = labels
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        match value {
            Value::Count(count) => self.line(name, "", &labels, count),
            Value::Number(number) => self.line(name, "", &labels, number),
            Value::Histogram {
                buckets,
                count,
                sum,
            } => {
                let mut up_to = 0;
                for (bound, durations) in buckets {
                    up_to += durations;
                    let bound = bound.to_string();
                    let labels = [&labels[..], &[("le", bound.as_str())]].concat();
                    self.line(name, "_bucket", &labels, up_to);
                }
                let all = [&labels[..], &[("le", "+Inf")]].concat();
                self.line(name, "_bucket", &all, count);
                self.line(name, "_sum", &labels, sum);
                self.line(name, "_count", &labels, count);
            }
        }
    }

    fn stages(&mut self, stages: &[(&Labeled<'_>, StageMetrics)]) {
        for family in &OF_STAGES {
            self.head(family.name, family.kind.text(), family.help);
            for (flow, stage) in stages {
                let labels = flow.labels(&[("stage", &stage.stage)]);
                if let Some(value) = (family.value)(stage) {
                    self.line(family.name, "", &labels, value);
                }
            }
        }
    }

    fn elements(&mut self, flows: &[Labeled<'_>]) {
        let elements = flows.iter().flat_map(|flow| {
            let elements = flow.flow.elements().into_iter();
            elements.map(move |element| (flow, element))
        });
        let elements: Vec<_> = elements.collect();
        for family in &OF_ELEMENTS {
            self.head(family.name, family.kind.text(), family.help);
            for (flow, element) in &elements {
                let StateElement {
                    name, kind, stored, ..
                } = element;
                let others =
                    [("state", name), ("kind", kind)].map(|(label, text)| (label, text.as_str()));
                let others = [&others[..], &[("stored", stored.name())]].concat();
                if let Some(value) = (family.value)(element) {
                    self.line(family.name, "", &flow.labels(&others), value);
                }
            }
        }
    }

    fn late_events(&mut self, flows: &[Labeled<'_>]) {
        const NAME: &str = "flow_late_events_total";
        let help = "Items that came too late for their window, by state element.";
        self.head(NAME, Counter.text(), help);
        for flow in flows {
            for late in flow.flow.late_events() {
                let labels = flow.labels(&[("state", &late.state)]);
                self.line(NAME, "", &labels, late.late_events);
            }
        }
    }

    /// The lag by stream: partitions may be many.
    fn streams(&mut self, flows: &[Labeled<'_>]) {
        const NAME: &str = "flow_stream_lag_records";
        let help = "Offsets of a stream, of records and of markers of transactions, that the flow could read and has not read.";
        self.head(NAME, Gauge.text(), help);
        for flow in flows {
            let mut lags: BTreeMap<String, u64> = BTreeMap::new();
            for position in flow.flow.positions() {
                let lag = position.lag_records();
                *lags.entry(position.stream).or_default() += lag;
            }
            for (stream, lag) in &lags {
                self.line(NAME, "", &flow.labels(&[("stream", stream)]), lag);
            }
        }
    }

    fn latencies(&mut self, latencies: &[(Vec<(&str, &str)>, Latency)]) {
        const NAME: &str = "flow_latency_seconds";
        let help = "How long records took from source to end, of one in a hundred.";
        self.head(NAME, "histogram", help);
        for (flow, latency) in latencies {
            let mut steps = latency.histogram.iter().peekable();
            let mut count = 0;
            for (bound_us, bound) in BUCKETS {
                while let Some((_, samples)) = steps.next_if(|(us, _)| *us <= bound_us) {
                    count += samples;
                }
                let labels = [&flow[..], &[("le", bound)]].concat();
                self.line(NAME, "_bucket", &labels, count);
            }
            let labels = [&flow[..], &[("le", "+Inf")]].concat();
            self.line(NAME, "_bucket", &labels, latency.samples);
            // A step is at most 1 % wide.
            let steps = latency.histogram.iter();
            let sum_us: f64 = steps.map(|(us, samples)| us * *samples as f64).sum();
            self.line(NAME, "_sum", flow, sum_us / 1e6);
            self.line(NAME, "_count", flow, latency.samples);
        }
    }

    /// Writes the header of a metric. Writing into a string does not fail.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(
            self.text,
            "# HELP millstream_{name} {help}\n# TYPE millstream_{name} {kind}"
        );
    }

    fn line(&mut self, name: &str, part: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels = Labels(labels);
        let _ = writeln!(self.text, "millstream_{name}{part}{labels} {value}");
    }
}

/// Names and values, as they are written behind a figure's name.
struct Labels<'a>(&'a [(&'a str, &'a str)]);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut opening = '{';
        for (name, value) in self.0 {
            write!(f, "{opening}{name}=\"")?;
            for char in value.chars() {
                match char {
                    '\\' => f.write_str("\\\\")?,
                    '"' => f.write_str("\\\"")?,
                    '\n' => f.write_str("\\n")?,
                    _ => f.write_char(char)?,
                }
            }
            f.write_char('"')?;
            opening = ',';
        }
        match self.0 {
            [] => Ok(()),
            _ => f.write_char('}'),
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_flow::Flow;
    use millstream_flow::sources::Generator;

    use super::*;

    #[test]
    fn every_figure_of_a_stage_is_there_and_ends_with_its_unit() {
        let flow = Flow::new("all");
        let count = flow.partial::<u64>("count");
        flow.source("numbers", Generator::new(|number| number).limit(1))
            .boundary("count")
            .fold_local(&count, |count, _| *count += 1);
        let running = flow.run().expect("threads");
        running.join().expect("the end");
        let stage = serde_json::to_value(&running.metrics()[0]).expect("JSON");
        // All but the name, which is a label.
        let figures = stage.as_object().expect("an object").len() - 1;
        assert_eq!(OF_STAGES.len(), figures, "{stage}");
        for family in &OF_STAGES {
            let is_counter = family.kind == Counter;
            assert_eq!(family.name.ends_with("_total"), is_counter);
        }
    }

    #[test]
    fn labels_are_escaped_as_prometheus_reads_them() {
        let labels = [("flow", "a\"b"), ("stage", "c\\d\ne{}, é")];
        let text = Labels(&labels).to_string();
        assert_eq!(text, r#"{flow="a\"b",stage="c\\d\ne{}, é"}"#);
        assert_eq!(Labels(&[]).to_string(), "");
    }

    #[test]
    fn each_bucket_counts_latencies_up_to_its_bound() {
        for (us, text) in BUCKETS {
            let seconds: f64 = text.parse().expect("a number");
            assert!((seconds * 1e6 / us - 1.0).abs() < 1e-9, "{text}");
        }
        let latency = Latency {
            samples: 10,
            p50_us: None,
            p90_us: None,
            p99_us: None,
            p999_us: None,
            max_us: 0.0,
            histogram: vec![(0.5, 1), (1.0, 2), (400.0, 3), (5e8, 4)],
        };
        let mut page = Page::default();
        page.latencies(&[(vec![("flow", "x")], latency)]);
        let value = |line: &str| {
            let line = page.text.lines().find_map(|text| text.strip_prefix(line));
            line.expect("a line").trim().to_owned()
        };
        let bucket = |le: &str| {
            value(&format!(
                "millstream_flow_latency_seconds_bucket{{flow=\"x\",le=\"{le}\"}}"
            ))
        };
        assert_eq!(bucket("0.000001"), "3");
        assert_eq!(bucket("0.00025"), "3");
        assert_eq!(bucket("0.0005"), "6");
        assert_eq!(bucket("100"), "6");
        assert_eq!(bucket("+Inf"), "10");
        assert_eq!(
            value("millstream_flow_latency_seconds_count{flow=\"x\"}"),
            "10"
        );
        let sum: f64 = value("millstream_flow_latency_seconds_sum{flow=\"x\"}")
            .parse()
            .expect("a number");
        assert!((sum - 2_000.001_202_5).abs() < 1e-3, "{sum}");
    }
}
