//! Sources whose items come in several partitions, each in an order of its own.

use std::task::Waker;
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    BoxError, Flow, Output, PartitionId, Partitions, Source, SourcePartitions, SourceStatus,
    Watermarks,
};
use proptest::prelude::*;

use crate::support::{Collect, settings};

/// An event of a partition at a time.
type Event = (u64, i64);

/// Gives the events of its partitions in runs, one partition after the other.
struct Runs {
    events: Vec<Event>,
    /// How many events of each partition were given.
    given: Vec<u64>,
    next: usize,
    partitions: Partitions,
    run: usize,
}

impl Runs {
    /// A source that has found all events when it begins.
    fn new(events: Vec<Event>, partitions: u32, run: usize) -> Runs {
        let found = Partitions::default();
        for partition in 0..u64::from(partitions) {
            let end = events
                .iter()
                .filter(|(other, _)| *other == partition)
                .count();
            found.add(PartitionId(partition), Offset(0), Offset(end as u64));
        }
        Runs {
            events,
            given: vec![0; partitions as usize],
            next: 0,
            partitions: found,
            run,
        }
    }
}

impl Source for Runs {
    type Item = Event;

    fn partitions(&self) -> SourcePartitions<'_, Event> {
        SourcePartitions::Many {
            partition_of: |(partition, _)| PartitionId(*partition),
            partitions: &self.partitions,
        }
    }

    fn poll(
        &mut self,
        out: &mut Output<Event>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let end = (self.next + self.run).min(self.events.len());
        for event in &self.events[self.next..end] {
            out.push(*event);
            let given = &mut self.given[event.0 as usize];
            *given += 1;
            self.partitions.pass(PartitionId(event.0), Offset(*given));
        }
        self.next = end;
        Ok(match end == self.events.len() {
            true => SourceStatus::End,
            false => SourceStatus::Ready,
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_partition_far_ahead_makes_no_item_of_another_late(
        partitions in 1u32..5,
        run in 1usize..400,
        order in prop::collection::vec(0u64..5, 1..40),
    ) {
        // Each partition is in order, although its parts are given at different times.
        let mut next = vec![0i64; partitions as usize];
        let mut events: Vec<Event> = Vec::new();
        let all = (0..u64::from(partitions)).chain(order.into_iter().map(|partition| partition % u64::from(partitions)));
        for partition in all {
            for _ in 0..50 {
                events.push((partition, next[partition as usize]));
                next[partition as usize] += 3;
            }
        }
        let count = events.len() as u64;
        let (sink, results) = Collect::new();
        let flow = Flow::with_settings("partitions", settings(2, 16));
        let state = flow.windowed("counts", Windows::tumbling(20), Count);
        let source = Runs::new(events, partitions, run);
        flow.source("events", source)
            .watermarks(|(_, time)| Timestamp(*time), Watermarks::bounded(Duration::ZERO).ahead_max(None))
            .key_by(|_| 0u32)
            .aggregate("count", &state, |(_, time)| Timestamp(*time))
            .sink("results", sink);
        flow.run().unwrap().join().unwrap();
        prop_assert_eq!(state.late_events(), 0);
        let results = results.lock().unwrap();
        prop_assert_eq!(results.iter().map(|result| result.value).sum::<u64>(), count);
        let mut starts: Vec<i64> = results.iter().map(|result| result.start.0).collect();
        starts.dedup();
        prop_assert_eq!(starts.len(), results.len(), "a window gives one result");
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Gives an event of a partition.
    Give(Event),
    /// Finds a partition that holds some events.
    Find(u64, u64),
}

/// Takes one step with each call.
struct Steps {
    steps: std::vec::IntoIter<Step>,
    given: [u64; 3],
    partitions: Partitions,
}

impl Source for Steps {
    type Item = Event;

    fn partitions(&self) -> SourcePartitions<'_, Event> {
        SourcePartitions::Many {
            partition_of: |(partition, _)| PartitionId(*partition),
            partitions: &self.partitions,
        }
    }

    fn poll(
        &mut self,
        out: &mut Output<Event>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        match self.steps.next() {
            Some(Step::Find(partition, events)) => {
                self.partitions
                    .add(PartitionId(partition), Offset(0), Offset(events));
            }
            Some(Step::Give((partition, time))) => {
                out.push((partition, time));
                self.given[partition as usize] += 1;
                let next = Offset(self.given[partition as usize]);
                self.partitions.pass(PartitionId(partition), next);
            }
            None => return Ok(SourceStatus::End),
        }
        Ok(SourceStatus::Ready)
    }
}

/// The events of some steps that were late for windows of 20 ms.
fn late(steps: Vec<Step>) -> u64 {
    let (sink, _) = Collect::new();
    let flow = Flow::with_settings("partitions", settings(2, 16));
    let state = flow.windowed("counts", Windows::tumbling(20), Count);
    let source = Steps {
        steps: steps.into_iter(),
        given: [0; 3],
        partitions: Partitions::default(),
    };
    flow.source("events", source)
        .watermarks(
            |(_, time)| Timestamp(*time),
            Watermarks::bounded(Duration::ZERO).ahead_max(None),
        )
        .key_by(|_| 0u32)
        .aggregate("count", &state, |(_, time)| Timestamp(*time))
        .sink("results", sink);
    flow.run().unwrap().join().unwrap();
    state.late_events()
}

#[test]
fn a_partition_found_later_holds_the_watermark_until_its_end() {
    use Step::{Find, Give};
    let found = [Find(0, 1), Give((0, 100)), Find(1, 3), Give((0, 1000))];
    let in_time = [
        Give((1, 100)),
        Give((1, 500)),
        Give((0, 2000)),
        Give((1, 600)),
    ];
    let steps = [found, in_time].concat();
    assert_eq!(late(steps.clone()), 0);
    // Behind its end it is waited for like any other, and is not late by its own order.
    let behind = [Give((0, 3000)), Give((1, 700)), Give((1, 3000))];
    assert_eq!(late([&steps[..], &behind].concat()), 0);
}

#[test]
fn a_partition_found_empty_does_not_hold_the_watermark() {
    use Step::{Find, Give};
    let steps = [Find(0, 1), Give((0, 100)), Find(1, 0), Give((0, 1000))];
    let late_by_then = [Give((1, 100)), Give((0, 1000))];
    assert_eq!(late([&steps[..], &late_by_then].concat()), 1);
}
