//! The join of two streams by key and event time.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use millstream_base::Timestamp;

use crate::build::connected::{Connected, Side};
use crate::build::flow::Flow;
use crate::build::operators::Operators;
use crate::error::FlowError;
use crate::joins::interval::Reach;
use crate::joins::late::{InTime, LateItems, OrLate};
use crate::ranks::message::Message;
use crate::stage::chain::{Emit, Same};
use crate::stage::ends::steps::Steps;
use crate::stage::ring_input::RingInput;
use crate::state::late::LateTo;
use crate::windows::Key;

/// A stage that joins, and makes dead letters of the items that came too late.
pub(super) type Joined<T, O> = Operators<RingInput<OrLate<T, O>>, InTime<Same>>;

impl<K, L, R> Connected<K, L, R>
where
    K: Key,
    L: Message + Clone + Debug,
    R: Message + Clone + Debug,
{
    /// Joins each item of the first stream, at the time `t`, with those of the second stream of the same key whose times lie from
    /// `t + interval.start()` to `t + interval.end()`, in milliseconds, both included. In Flink it is `intervalJoin`. `function`
    /// makes an item of each pair, as soon as both are there. A stage of its own, named `name`.
    ///
    /// Both streams need [watermarks](Operators::watermarks). An item is late when it comes behind the watermark of the operator,
    /// the lower one of both streams. A late item has no partners and becomes a
    /// [dead letter](crate::FlowSettings::dead_letters); a flow that keeps none leaves it out, and warns once. The state element
    /// `<name>.late` counts late items, under the key `count`, and [`Running::late_events`](crate::Running::late_events) has them.
    ///
    /// The state elements `<name>.first` and `<name>.second` have the items that may still get partners, as entries of
    /// [ordered maps](Flow::ordered_maps). An item is removed when the watermark has passed the time of its last possible
    /// partner, by a sixteenth of the interval's length and the disorder of its stream at most. A stream that stands still holds
    /// the watermark back, and with it all items of the other one, unless it is [idle](crate::Watermarks::idle_after).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flow, Watermarks};
    ///
    /// // Each user sees a page every 100 ms, and clicks on every third 30 ms later.
    /// let flow = Flow::new("pages");
    /// let clicked = flow.partial::<u64>("clicked");
    /// let in_order = Watermarks::bounded(Duration::ZERO);
    /// let time = |(_, time): &(u64, i64)| Timestamp(*time);
    /// let clicks = flow
    ///     .source("clicks", Generator::new(|number| (number % 2, number as i64 / 2 * 300 + 30)).limit(10))
    ///     .watermarks(time, in_order)
    ///     .key_by(|(user, _)| *user);
    /// flow.source("views", Generator::new(|number| (number % 2, number as i64 / 2 * 100)).limit(30))
    ///     .watermarks(time, in_order)
    ///     .key_by(|(user, _)| *user)
    ///     .connect(clicks)
    ///     .interval_join("clicked", 0..=50, time, time, |view, click| click.1 - view.1)
    ///     .fold_local(&clicked, |clicked, delay| *clicked += u64::from(*delay == 30));
    /// flow.run()?.join()?;
    /// assert_eq!(clicked.merged(), 10);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn interval_join<E, G, O, F>(
        self,
        name: &str,
        interval: RangeInclusive<i64>,
        first_time: E,
        second_time: G,
        function: F,
    ) -> Joined<Side<L, R>, O>
    where
        E: Fn(&L) -> Timestamp + Send + Sync + 'static,
        G: Fn(&R) -> Timestamp + Send + Sync + 'static,
        O: Clone + Send + 'static,
        F: Fn(&L, &R) -> O + Send + Sync + 'static,
    {
        let flow = self.flow().clone();
        flow.check_interval(name, &interval);
        let flow = flow.without_lifetime();
        let state = (
            flow.of_operator()
                .ordered_maps::<K, _, L>(&format!("{name}.first")),
            flow.of_operator()
                .ordered_maps::<K, _, R>(&format!("{name}.second")),
        );
        let timers = flow.timers::<K, u8>(&format!("{name}.timers"));
        let late = flow.late_items(name, "interval_join");
        let label = late.label();
        let [first_reach, second_reach] = Reach::of_sides(&interval);
        let partitions = flow.partitions_of(name, &state);
        flow.reserve_timers(name, &timers, partitions);
        let results = self.exchange(name, partitions).process_in_steps(
            name,
            &state,
            &timers,
            move |_: &K,
                  (mut firsts, mut seconds),
                  timers,
                  item: &Side<L, R>,
                  steps: &mut Steps<_>,
                  emit: &mut Emit<'_, OrLate<Side<L, R>, O>>| {
                let time = match item {
                    Side::First(first) => first_time(first),
                    Side::Second(second) => second_time(second),
                };
                let watermark = timers.watermark();
                if time < watermark {
                    return late.add(
                        || item.clone(),
                        time,
                        watermark,
                        |item, late| emit(&OrLate::Late(item, late)),
                    );
                }
                match item {
                    Side::First(first) => {
                        first_reach.partners(time, &seconds, steps, |second| {
                            emit(&OrLate::Result(function(first, second)));
                        });
                        if steps.rest.is_none() {
                            first_reach.keep(time, first, &mut firsts, timers);
                        }
                    }
                    Side::Second(second) => {
                        second_reach.partners(time, &firsts, steps, |first| {
                            emit(&OrLate::Result(function(first, second)));
                        });
                        if steps.rest.is_none() {
                            second_reach.keep(time, second, &mut seconds, timers);
                        }
                    }
                }
            },
            move |_, (mut firsts, mut seconds), timers, fired, _| match first_reach.is_of(fired.tag)
            {
                true => first_reach.remove_some(fired.time, &mut firsts, timers),
                false => second_reach.remove_some(fired.time, &mut seconds, timers),
            },
            true,
        );
        results.add("in_time", |before, _| InTime { before, label })
    }
}

impl Flow {
    /// Adds the state element with the late items of the join `name`.
    pub(super) fn late_items(&self, name: &str, kind: &str) -> LateItems {
        let to = match self.settings.dead_letters {
            Some(_) => LateTo::DeadLetters,
            None => LateTo::Dropped,
        };
        let late = LateItems::new(&format!("{name}/0.{kind}"), to);
        self.add_state(&format!("{name}.late"), late.clone());
        late
    }

    /// Notes a fault if the interval of the join `name` ends before it begins. All ranks have to have the same.
    fn check_interval(&self, name: &str, interval: &RangeInclusive<i64>) {
        self.agree(format!("{name}: joined within {interval:?} ms"));
        if interval.is_empty() {
            let fault = FlowError::JoinInterval {
                flow: self.name(),
                operator: name.to_owned(),
                lower: *interval.start(),
                upper: *interval.end(),
            };
            self.plan().faults.push(fault);
        }
    }
}
