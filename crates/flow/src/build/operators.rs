//! Operators in a row, up to the end of their stage.

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use millstream_base::Timestamp;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::error::BoxError;
use crate::parts::{Flatten, Parts};
use crate::run::settings::Order;
use crate::sources::source::Source;
use crate::stage::chain::{Chain, Each, Emit, Filter, Flat, FlatMap, Join, Map, Same, SeeTime};
use crate::stage::channel::ChannelState;
use crate::stage::source_input::SourceInput;
use crate::stage::user_code::Label;
use crate::state::table::Table;
use crate::time::watermarks::Watermarks;

/// The end of a graph that is being built: a stage that reads `I` and hands the results of its operators `C` to the
/// operator that is added next.
///
/// An end, such as [`sink`](Operators::sink), returns the flow, so that the next row of operators or
/// [`run`](Flow::run) can follow in one chain.
///
/// Operators get their items by reference. All operators up to the next
/// [`boundary`](Operators::boundary), [`key_by`](Operators::key_by) or end are compiled into one
/// loop.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Operators<I: Entry, C: Chain<I::Item>> {
    pub(crate) flow: Flow,
    pub(crate) stage: String,
    /// The channel that the inputs are rings of; none for a source.
    pub(crate) channel: Option<Arc<ChannelState>>,
    pub(crate) inputs: Vec<I>,
    /// Whether they share one ring.
    pub(crate) is_shared: bool,
    pub(crate) chain: C,
    /// The number of operators in the stage.
    pub(crate) operators: usize,
    pub(crate) watermarks: Option<Watermarks>,
    /// Whether it emits watermarks, being the first stage.
    pub(crate) emits_watermarks: bool,
}

impl<I: Entry> Operators<I, Same>
where
    I::Item: 'static,
{
    pub(crate) fn begin(
        flow: &Flow,
        stage: &str,
        channel: Option<Arc<ChannelState>>,
        inputs: Vec<I>,
    ) -> Self {
        flow.plan().open.push(stage.to_owned());
        Operators {
            flow: flow.clone(),
            stage: stage.to_owned(),
            channel,
            is_shared: I::IS_SHARED,
            inputs,
            chain: Same,
            operators: 0,
            watermarks: None,
            emits_watermarks: false,
        }
    }
}

impl<S: Source, C: Chain<S::Item>> Operators<SourceInput<S>, C> {
    /// Makes the source emit watermarks: its items have the times that `time` gives, and are out of order by as much
    /// as `watermarks` allows. Windows further on close by that.
    pub fn watermarks<F>(
        mut self,
        time: F,
        watermarks: Watermarks,
    ) -> Operators<SourceInput<S>, SeeTime<C, F>>
    where
        C::Out: Debug,
        F: Fn(&C::Out) -> Timestamp + Send + Sync + 'static,
    {
        self.watermarks = Some(watermarks);
        self.emits_watermarks = true;
        self.add("watermarks", |before, label| SeeTime {
            before,
            function: time,
            label,
        })
    }
}

impl<I: Entry, C: Chain<I::Item>> Operators<I, C> {
    /// Turns each item into another.
    pub fn map<U, F>(self, function: F) -> Operators<I, Map<C, F, U>>
    where
        C::Out: Debug,
        F: Fn(&C::Out) -> U + Send + Sync + 'static,
        U: 'static,
    {
        self.add("map", |before, label| Map {
            before,
            function,
            label,
            result: PhantomData,
        })
    }

    /// Lets pass the items for which `function` holds.
    pub fn filter<F>(self, function: F) -> Operators<I, Filter<C, F>>
    where
        C::Out: Debug,
        F: Fn(&C::Out) -> bool + Send + Sync + 'static,
    {
        self.add("filter", |before, label| Filter {
            before,
            function,
            label,
        })
    }

    /// Turns each item into any number of others, which may be slices of it: `U` may be `[u8]`.
    pub fn flat_map<U, F>(self, function: F) -> Operators<I, FlatMap<C, F, U>>
    where
        C::Out: Debug,
        F: Fn(&C::Out, &mut Emit<'_, U>) + Send + Sync + 'static,
        U: ?Sized + 'static,
    {
        self.add("flat_map", |before, label| FlatMap {
            before,
            function,
            label,
            result: PhantomData,
        })
    }

    /// Takes each item apart: as [`flat_map`](Operators::flat_map), where the items themselves visit the items in
    /// them, so that all operators that follow are compiled into one loop with it.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flatten, Flow};
    ///
    /// #[derive(Debug)]
    /// struct Pair([u64; 2]);
    ///
    /// impl Flatten for Pair {
    ///     type Item = u64;
    ///
    ///     fn for_each_item<'a>(&'a self, visit: impl FnMut(&'a u64)) {
    ///         self.0.iter().for_each(visit);
    ///     }
    /// }
    ///
    /// let flow = Flow::new("pairs");
    /// let sum = flow.partial::<u64>("sum");
    /// flow.source("pairs", Generator::new(|number| Pair([number, 1])).limit(10))
    ///     .flatten()
    ///     .fold_local(&sum, |sum, number| *sum += number);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 45 + 10);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn flatten(self) -> Operators<I, Flat<C>>
    where
        C::Out: Flatten + Debug,
    {
        self.add("flatten", |before, label| Flat { before, label })
    }

    /// Turns each part of each item into any number of items, as [`flat_map`](Operators::flat_map) does with whole
    /// items. A part that makes `function` panic twice, or for which it returns an error, becomes a dead letter; the
    /// other parts are processed. Side effects of `function` may happen again for the parts before one that it panics
    /// on.
    ///
    /// ```
    /// use millstream_base::SystemDisk;
    /// use millstream_flow::sources::{LineFiles, LineLimits};
    /// use millstream_flow::{BoxError, DeadLetter, DeadLetters, Emit, Flow, FlowSettings};
    /// use std::sync::{Arc, Mutex};
    ///
    /// #[derive(Default)]
    /// struct Letters(Mutex<Vec<DeadLetter>>);
    /// impl DeadLetters for Letters {
    ///     fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
    ///         self.0.lock().unwrap().extend_from_slice(letters);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("text");
    /// # std::fs::write(&path, "1\ntwo\n3\n")?;
    /// let files = LineFiles::open(&SystemDisk, [path], LineLimits::default())?;
    /// let letters = Arc::new(Letters::default());
    /// let flow = Flow::with_settings("sum", FlowSettings {
    ///     dead_letters: Some(letters.clone()),
    ///     ..FlowSettings::default()
    /// });
    /// let sum = flow.partial::<u64>("sum");
    /// flow.source("read", files)
    ///     .each(|line, emit: &mut Emit<u64>| {
    ///         emit(&str::from_utf8(line)?.parse()?);
    ///         Ok(())
    ///     })
    ///     .fold_local(&sum, |sum, number| *sum += number);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 4);
    /// let letter = &letters.0.lock().unwrap()[0];
    /// assert_eq!(letter.item, "two");
    /// assert_eq!(letter.error, "invalid digit found in string");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn each<U, F>(self, function: F) -> Operators<I, Each<C, F, U>>
    where
        C::Out: Parts + Debug,
        F: Fn(&<C::Out as Parts>::Part<'_>, &mut Emit<'_, U>) -> Result<(), BoxError>
            + Send
            + Sync
            + 'static,
        U: ?Sized + 'static,
    {
        self.add("each", |before, label| Each {
            before,
            function,
            label,
            result: PhantomData,
        })
    }

    /// Joins each item with the row of a table that `key` leads to. Items without one are dropped.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flow, Table};
    ///
    /// let prices = Table::new([("tea", 3), ("milk", 2)]);
    /// let flow = Flow::new("bill");
    /// let sum = flow.partial::<u64>("sum");
    /// flow.source("orders", Generator::new(|number| ["tea", "milk", "air"][number as usize % 3]).limit(6))
    ///     .join(&prices, |order| *order, |_, price| *price)
    ///     .fold_local(&sum, |sum, price| *sum += price);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 2 * (3 + 2));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn join<K, V, U, F, G>(
        self,
        table: &Table<K, V>,
        key: F,
        function: G,
    ) -> Operators<I, Join<C, K, V, F, G, U>>
    where
        C::Out: Debug,
        K: Hash + Eq + Send + Sync + 'static,
        V: Send + Sync + 'static,
        F: Fn(&C::Out) -> K + Send + Sync + 'static,
        G: Fn(&C::Out, &V) -> U + Send + Sync + 'static,
        U: 'static,
    {
        let table = table.clone();
        self.add("join", |before, label| Join {
            before,
            table,
            key,
            function,
            label,
            result: PhantomData,
        })
    }

    pub(crate) fn add<D: Chain<I::Item>>(
        mut self,
        kind: &str,
        fuse: impl FnOnce(C, Label) -> D,
    ) -> Operators<I, D> {
        self.operators += 1;
        let label = self.label(kind);
        Operators {
            flow: self.flow,
            stage: self.stage,
            channel: self.channel,
            inputs: self.inputs,
            is_shared: self.is_shared,
            chain: fuse(self.chain, label),
            operators: self.operators,
            watermarks: self.watermarks,
            emits_watermarks: self.emits_watermarks,
        }
    }

    /// Names an operator by its stage and its place in it.
    pub(crate) fn label(&self, kind: &str) -> Label {
        Label(format!("{}/{}.{kind}", self.stage, self.operators).into())
    }

    /// Whether the instances share a ring whose order counts.
    pub(crate) fn keeps_order(&self) -> bool {
        self.is_shared && self.flow.settings.order == Order::Kept
    }
}
