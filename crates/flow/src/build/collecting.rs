//! Windows with all of their events, for functions that cannot continue from a partial result.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

use millstream_base::Timestamp;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::operators::Operators;
use crate::parts::Parts;
use crate::stage::chain::{Chain, Same};
use crate::stage::channel::{Channel, ChannelState};
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::to_collected::{Late, LateFunction, ToCollected};
use crate::stage::ring_input::RingInput;
use crate::stage::terminal::WritingInstance;
use crate::state::collected::{Collected, Retained};
use crate::state::late::LateTo;
use crate::windows::{EventStore, TimeOf, WindowEvents, Windows};

/// Operators whose results are about to be collected in windows.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Collecting<I: Entry, C: Chain<I::Item, Out: Parts + Sized>, L> {
    operators: Operators<I, C>,
    collected: Collected,
    late: Option<LateChannel<C::Out, L>>,
    drops_late: bool,
}

struct LateChannel<T: Parts, L> {
    channel: Channel<L>,
    function: Arc<LateFunction<T, L>>,
}

impl Flow {
    /// Adds a state element that is readable under `name`: the figures of windows that have all of their events.
    ///
    /// # Panics
    /// When the windows are neither tumbling nor sliding.
    pub fn collected(&self, name: &str, windows: Windows) -> Collected {
        assert!(
            windows.size_and_slide_ms().is_some(),
            "events are collected in tumbling or sliding windows alone"
        );
        let collected = Collected {
            windows,
            state: Arc::default(),
        };
        self.add_state(name, collected.clone());
        collected
    }
}

impl<I, C, T> Operators<I, C>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Parts + Clone + Debug + Send + Sync,
{
    /// Retains all events of windows, for functions that need all of them: an item is a handle of many events, and
    /// the items are retained. On several ranks each rank has windows of its own items.
    ///
    /// ```
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::{WindowEvents, Windows};
    /// use millstream_flow::{Emit, Flow, Parts, Watermarks};
    /// # use millstream_flow::{BoxError, Sink};
    /// # use std::sync::{Arc, Mutex};
    /// # use std::task::Waker;
    /// use std::time::Duration;
    /// # struct Medians(Arc<Mutex<Vec<u64>>>);
    /// # impl Sink<u64> for Medians {
    /// #     fn push(&mut self, items: &[u64], _: &Waker) -> Result<usize, BoxError> {
    /// #         self.0.lock().unwrap().extend_from_slice(items);
    /// #         Ok(items.len())
    /// #     }
    /// #     fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> { Ok(true) }
    /// # }
    /// # let medians = Arc::default();
    /// # let sink = Medians(Arc::clone(&medians));
    ///
    /// /// Events that came together; a clone is another handle of them.
    /// #[derive(Debug, Clone)]
    /// struct Batch(std::sync::Arc<[(Timestamp, u64)]>);
    /// impl Parts for Batch {
    ///     type Part<'a> = (Timestamp, u64);
    ///     fn for_each_part(&self, visit: impl FnMut(&(Timestamp, u64))) {
    ///         self.0.iter().for_each(visit);
    ///     }
    /// }
    ///
    /// // A batch has ten events, one in each millisecond.
    /// let batch = |number| Batch((10 * number..10 * number + 10).map(|n| (Timestamp(n as i64), n)).collect());
    /// let flow = Flow::new("medians");
    /// let recent = flow.collected("recent", Windows::sliding(100, 20));
    /// flow.source("batches", Generator::new(batch).limit(20))
    ///     .watermarks(|Batch(events)| events[events.len() - 1].0, Watermarks::bounded(Duration::ZERO))
    ///     .over(&recent)
    ///     .collect("windows", |(time, _)| *time)
    ///     .flat_map(|window: &WindowEvents<Batch>, emit: &mut Emit<u64>| {
    ///         let mut values = Vec::new();
    ///         window.for_each_part(|(_, value)| values.push(*value));
    ///         values.sort_unstable();
    ///         emit(&values[values.len() / 2]);
    ///     })
    ///     .sink("medians", sink);
    /// flow.run()?.join()?;
    /// // Those at both ends have fewer events.
    /// assert_eq!(
    ///     *medians.lock().unwrap(),
    ///     [10, 20, 30, 40, 50, 70, 90, 110, 130, 150, 160, 170, 180, 190]
    /// );
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn over(self, collected: &Collected) -> Collecting<I, C, Infallible> {
        Collecting {
            operators: self,
            collected: collected.clone(),
            late: None,
            drops_late: false,
        }
    }
}

impl<I, C, T, L> Collecting<I, C, L>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Parts + Clone + Debug + Send + Sync,
    L: Send + 'static,
{
    /// Events that come too late for their window go to `channel`, as `function` turns them. Without this, they become
    /// [dead letters](crate::FlowSettings::dead_letters); a flow that keeps none leaves them out, and warns once. They are
    /// counted in any case, by [`Collected::late_events`].
    pub fn late_to<M, F>(self, channel: &Channel<M>, function: F) -> Collecting<I, C, M>
    where
        M: Send + 'static,
        F: Fn(&T::Part<'_>) -> M + Send + Sync + 'static,
    {
        Collecting {
            operators: self.operators,
            collected: self.collected,
            late: Some(LateChannel {
                channel: channel.clone(),
                function: Arc::new(function),
            }),
            drops_late: false,
        }
    }

    /// Drops events that come too late for their window, also in a flow that keeps dead letters. They are counted, by
    /// [`Collected::late_events`].
    pub fn drop_late(self) -> Collecting<I, C, L> {
        Collecting {
            late: None,
            drops_late: true,
            ..self
        }
    }

    /// Retains the items until the windows are over that their events lie in by `time`, and gives the windows. An
    /// event is late if the watermark before its item was read had closed all of its windows; else it is in those
    /// that were open.
    pub fn collect<F>(self, name: &str, time: F) -> Operators<RingInput<WindowEvents<T>>, Same>
    where
        F: Fn(&T::Part<'_>) -> Timestamp + Send + Sync + 'static,
    {
        let Collecting {
            operators,
            collected,
            late,
            drops_late,
        } = self;
        let late_to = match &late {
            Some(_) => LateTo::Channel,
            None if !drops_late && operators.flow.settings.dead_letters.is_some() => {
                LateTo::DeadLetters
            }
            None => LateTo::Dropped,
        };
        collected.state.late.lead(late_to);
        let results = operators.flow.channel(&format!("{name}/results"));
        let collect = Collect {
            collected,
            late_to,
            is_late_expected: drops_late || late.is_some(),
            late,
            time: Arc::new(time),
            results: results.clone(),
        };
        // A single instance collects; several instances may run the operators before it.
        let flow = match operators.is_shared && I::BEGINS_STAGE && operators.operators == 0 {
            true => collect.end(operators),
            false => collect.end(operators.boundary(name)),
        };
        flow.stage(&results.state.name, &results)
    }
}

/// An end of a stage.
struct Collect<T: Parts, L> {
    collected: Collected,
    late_to: LateTo,
    is_late_expected: bool,
    late: Option<LateChannel<T, L>>,
    time: TimeOf<T>,
    results: Channel<WindowEvents<T>>,
}

impl<T, L> Collect<T, L>
where
    T: Parts + Clone + Debug + Send + Sync,
    L: Send + 'static,
{
    fn end<I, C>(self, mut operators: Operators<I, C>) -> Flow
    where
        I: Entry,
        C: Chain<I::Item, Out = T>,
    {
        operators.inputs.truncate(1);
        let label = operators.label("collect");
        let outputs: Vec<&Arc<ChannelState>> = [&self.results.state]
            .into_iter()
            .chain(self.late.as_ref().map(|late| &late.channel.state))
            .collect();
        let results = std::slice::from_ref(&self.results);
        operators.end(&outputs, |writing: WritingInstance<'_>| ToCollected {
            state: Arc::clone(&self.collected.state),
            store: EventStore::new(self.collected.windows, Arc::clone(&self.time)),
            outbox: Outbox::of_channels(writing, results),
            late_to: self.late_to,
            is_late_expected: self.is_late_expected,
            late: self.late.as_ref().map(|late| Late {
                outbox: Outbox::of_channels(writing, std::slice::from_ref(&late.channel)),
                function: Arc::clone(&late.function),
                waiting: Vec::new(),
                event: None,
            }),
            label: label.clone(),
            waiting: None,
            sent: 0,
            published: Retained::default(),
            stamp: 0,
            has_ended: false,
        })
    }
}
