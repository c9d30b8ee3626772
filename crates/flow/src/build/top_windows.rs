//! The windows with the highest scores among those that end at one moment.

use std::fmt::Debug;

use millstream_base::Timestamp;
use serde_json::Value;

use crate::build::entry::Entry;
use crate::build::operators::Operators;
use crate::error::BoxError;
use crate::ranks::message::Message;
use crate::stage::chain::{Chain, Map, Same};
use crate::stage::ring_input::RingInput;
use crate::state::partial::StateReader;
use crate::state::size::StateSize;
use crate::state::windowed::{REMEMBERED_KEYS, Windowed};
use crate::windows::{self, All, Combine, Key, Ranked, TopWindows, WindowResult, Windows};

/// The results of windows with the highest scores.
type TopResult<K, O> = WindowResult<All, Vec<WindowResult<K, O>>>;

/// A stage that gives them.
type TopOperators<K, O> = Operators<RingInput<RankedResult<K, O>>, SinceFirst<K, O>>;

type RankedResult<K, O> = WindowResult<All, Ranked<K, O>>;

type SinceFirst<K, O> = Map<Same, fn(&RankedResult<K, O>) -> TopResult<K, O>, TopResult<K, O>>;

impl<I, C, K, O> Operators<I, C>
where
    I: Entry,
    C: Chain<I::Item, Out = WindowResult<K, O>>,
    K: Key + Debug,
    O: Message + Clone + Debug,
{
    /// Gives the `count` windows with the highest scores among those that end at the same moment, the highest first:
    /// the keys with the most in a window. Scores are compared as by [`top`](crate::windows::top). A stage of its
    /// own, named `name`, and a state element of this name, which has the newest result under the key `all`. Each
    /// instance and each rank sends on only the highest of its own.
    ///
    /// A result is emitted when event time has passed the end of its windows. Its `events` is the number of windows it was
    /// made of, and its `start` is the earliest start of the windows in it. It suits windows that end by event time: for
    /// global windows that count their items, it is emitted at the end of the input.
    ///
    /// Where windows of the flow [come again](WindowResult::is_update), so does this, updated: the last result of
    /// each window counts. All windows that end at one moment are then retained until their updates are over, and not
    /// only the highest. A session that has grown counts at its new end, and still at the one before.
    ///
    /// ```
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::{Count, Windows};
    /// use millstream_flow::{Flow, Watermarks};
    /// use std::time::Duration;
    ///
    /// // In each second, word `n` comes `n` times.
    /// let words = (0..40).map(|number| ["tea", "milk", "milk", "air"][number % 4]);
    /// let words: Vec<_> = words.map(str::to_owned).zip((0..).step_by(250)).collect();
    ///
    /// let flow = Flow::new("busiest");
    /// let counts = flow.windowed("counts", Windows::tumbling(1_000), Count);
    /// let milk = flow.partial::<u64>("milk");
    /// flow.source("words", Generator::new(move |number| words[number as usize].clone()).limit(40))
    ///     .watermarks(|(_, time)| Timestamp(*time), Watermarks::bounded(Duration::ZERO))
    ///     .key_by(|(word, _)| word.clone())
    ///     .aggregate("count", &counts, |(_, time)| Timestamp(*time))
    ///     .top("busiest", 1, |window| window.value)
    ///     .filter(|busiest| busiest.value[0].key == "milk")
    ///     .fold_local(&milk, |milk, _| *milk += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(milk.merged(), 10);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn top<S, F>(self, name: &str, count: usize, score: F) -> TopOperators<K, O>
    where
        S: Clone + PartialOrd + Message,
        F: Fn(&WindowResult<K, O>) -> S + Clone + Send + Sync + 'static,
    {
        let flow = &self.flow;
        let mut plan = flow.plan();
        plan.graph
            .agreed
            .push(format!("{name}: the highest {count}"));
        // Windows that end at one moment end in one millisecond.
        let updates_for_ms = plan.updates_for_ms;
        drop(plan);
        let moments = Windows::tumbling(1).allowed_lateness(updates_for_ms);
        let highest = TopWindows::new(count, score, updates_for_ms > 0);
        let highest = flow.windows(name, moments, highest, REMEMBERED_KEYS);
        flow.add_state(name, TopState(highest.clone()));
        let last_moment = |window: &WindowResult<K, O>| Timestamp(window.end.0.saturating_sub(1));
        let highest = self.aggregate(name, &highest, last_moment);
        highest.map(since_first as fn(&_) -> _)
    }
}

/// It begins when the first of its windows does.
fn since_first<K: Clone, O: Clone>(ranked: &RankedResult<K, O>) -> TopResult<K, O> {
    let Ranked { highest, windows } = &ranked.value;
    let starts = highest.iter().map(|window| window.start);
    WindowResult {
        key: ranked.key,
        start: starts.min().unwrap_or(ranked.start),
        end: ranked.end,
        value: highest.clone(),
        events: *windows,
        time_max: ranked.time_max,
        is_update: ranked.is_update,
    }
}

/// Says of the newest result when its windows begin.
struct TopState<A: Combine>(Windowed<All, A>);

impl<K, O, S, F> StateReader for TopState<TopWindows<K, O, S, F>>
where
    K: Key,
    O: Message + Clone,
    S: Clone + PartialOrd + Message,
    F: Send + Sync + 'static,
{
    fn get(&self, key: &str) -> Option<Value> {
        let newest = self.0.find(key)?;
        windows::shown(&since_first(&newest)).ok()
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        self.0.keys(limit)
    }

    fn size(&self) -> StateSize {
        StateSize {
            kind: "top",
            ..self.0.size()
        }
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        self.0.save()
    }

    fn types(&self) -> String {
        self.0.types()
    }

    fn restore(&self, saved: &[u8]) -> Result<(), BoxError> {
        self.0.restore(saved)
    }
}
