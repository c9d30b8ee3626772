//! The metrics of the pool.

use std::collections::BTreeMap;

use millstream_flow::{MemberView, ObjectiveView, PoolView};

use crate::prometheus::{Metric, MetricKind, Sample, Value};

/// Returns the metrics of a pool, of its members, and of its objectives.
pub fn metrics(pool: &PoolView) -> Vec<Metric> {
    let whole = [
        whole(
            "pool_slots",
            pool.slots as f64,
            "Threads that may compute at once.",
        ),
        whole(
            "pool_best_effort_level_ratio",
            f64::from(pool.level) / 100.0,
            "The part of all slots that best-effort work may have; 1 unless an objective is missed.",
        ),
        Metric::new(
            "pool_stalls_total",
            MetricKind::Counter,
            pool.stalls,
            "Slots that were taken from blocked threads.",
        ),
    ];
    let members = |name, kind, value: fn(&MemberView) -> f64, help| {
        let samples = by_name(&pool.members, |member| &member.name, value);
        of(name, kind, "member", samples, help)
    };
    let objectives = |name, kind, value: fn(&ObjectiveView) -> f64, help| {
        let samples = by_name(&pool.objectives, |objective| &objective.name, value);
        of(name, kind, "work", samples, help)
    };
    use MetricKind::{Counter, Gauge};
    let of_members = [
        members(
            "pool_slot_seconds_total",
            Counter,
            |member| member.taken.as_secs_f64(),
            "The time for which the threads of a member have held slots.",
        ),
        members(
            "pool_waiting_threads",
            Gauge,
            |member| member.waiting as f64,
            "Threads of a member that wait for a slot.",
        ),
    ];
    let of_objectives = [
        objectives(
            "objective_seconds",
            Gauge,
            |it| it.objective.within.as_secs_f64(),
            "The time within which requests are to be answered.",
        ),
        objectives(
            "objective_latency_seconds",
            Gauge,
            |it| it.latency_seconds.unwrap_or(0.0),
            "The latency at the objective's percentile, of the last requests; 0 without any.",
        ),
        objectives(
            "objective_answered_total",
            Counter,
            |it| it.answered as f64,
            "Requests that were answered.",
        ),
        objectives(
            "objective_late_total",
            Counter,
            |it| it.late as f64,
            "Requests that were answered too late.",
        ),
        objectives(
            "objective_refused_total",
            Counter,
            |it| it.refused as f64,
            "Requests that were refused at once, since they would have been answered too late.",
        ),
        objectives(
            "objective_held_total",
            Counter,
            |it| it.held as f64,
            "How often a client of Kafka was held, since its next request would have been answered too late.",
        ),
    ];
    whole
        .into_iter()
        .chain(of_members)
        .chain(of_objectives)
        .collect()
}

/// The samples of a metric by name; those of the same name together, since Prometheus could not tell them apart.
fn by_name<T>(
    all: &[T],
    name: impl Fn(&T) -> &str,
    value: impl Fn(&T) -> f64,
) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for it in all {
        *sums.entry(name(it).to_owned()).or_default() += value(it);
    }
    sums
}

fn whole(name: &'static str, value: f64, help: &'static str) -> Metric {
    let sample = Sample {
        labels: Vec::new(),
        value: Value::Number(value),
    };
    Metric {
        name,
        help,
        kind: MetricKind::Gauge,
        samples: vec![sample],
    }
}

fn of(
    name: &'static str,
    kind: MetricKind,
    label: &'static str,
    values: BTreeMap<String, f64>,
    help: &'static str,
) -> Metric {
    let samples = values.into_iter().map(|(name, value)| Sample {
        labels: vec![(label, name)],
        value: Value::Number(value),
    });
    Metric {
        name,
        help,
        kind,
        samples: samples.collect(),
    }
}
