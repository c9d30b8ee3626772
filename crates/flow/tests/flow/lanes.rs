//! Sources whose items come in several lanes, each in an order of its own.

use std::task::Waker;
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    BoxError, Flow, LaneId, Lanes, Output, Source, SourceLanes, SourceStatus, Watermarks,
};
use proptest::prelude::*;

use crate::support::{Collect, settings};

/// An event of a lane at a time.
type Event = (u64, i64);

/// Gives the events of its lanes in runs, one lane after the other.
struct Runs {
    events: Vec<Event>,
    /// How many events of each lane were given.
    given: Vec<u64>,
    next: usize,
    lanes: Lanes,
    run: usize,
}

impl Runs {
    /// A source that has found all events when it begins.
    fn new(events: Vec<Event>, lanes: u32, run: usize) -> Runs {
        let found = Lanes::default();
        for lane in 0..u64::from(lanes) {
            let end = events.iter().filter(|(other, _)| *other == lane).count();
            found.add(LaneId(lane), Offset(0), Offset(end as u64));
        }
        Runs {
            events,
            given: vec![0; lanes as usize],
            next: 0,
            lanes: found,
            run,
        }
    }
}

impl Source for Runs {
    type Item = Event;

    fn lanes(&self) -> SourceLanes<'_, Event> {
        SourceLanes::Many {
            lane_of: |(lane, _)| LaneId(*lane),
            lanes: &self.lanes,
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
            self.lanes.pass(LaneId(event.0), Offset(*given));
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
    fn a_lane_that_is_far_ahead_makes_nothing_of_another_late(
        lanes in 1u32..5,
        run in 1usize..400,
        order in prop::collection::vec(0u64..5, 1..40),
    ) {
        // Each lane is in order, whatever part of which is given when.
        let mut next = vec![0i64; lanes as usize];
        let mut events: Vec<Event> = Vec::new();
        let all = (0..u64::from(lanes)).chain(order.into_iter().map(|lane| lane % u64::from(lanes)));
        for lane in all {
            for _ in 0..50 {
                events.push((lane, next[lane as usize]));
                next[lane as usize] += 3;
            }
        }
        let count = events.len() as u64;
        let (sink, results) = Collect::new();
        let mut flow = Flow::with_settings("lanes", settings(2, 16));
        let state = flow.windowed("counts", Windows::tumbling(20), Count);
        let source = Runs::new(events, lanes, run);
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
