//! Operators in a row behind a type that can be named.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;
use std::{any, iter};

use crate::build::entry::{Entry, RegisterRow};
use crate::build::operators::Operators;
use crate::build::plan::Plan;
use crate::stage::chain::{Chain, Same};
use crate::stage::channel::ChannelState;
use crate::stage::ends::fork::{self, Arm, ToFork};
use crate::stage::ends::to_rings::Route;
use crate::stage::row::{Row, RowStart};
use crate::stage::terminal::Terminal;

/// Operators that give `T`, of a type that can be named: [`Operators::boxed`] makes it, so that functions can return
/// and take it.
pub type Pipeline<T> = Operators<Boxed<T>, Same>;

/// The start of the operators behind a [`Pipeline`], within the stage of those before.
pub struct Boxed<T> {
    item: PhantomData<fn() -> T>,
}

/// Ends the operators of a stage before the box in those behind it, one for each instance.
pub(crate) type EndBefore<T> =
    Box<dyn FnOnce(&mut Plan, Vec<Box<dyn Arm<T>>>, Vec<Arc<ChannelState>>) + Send>;

impl<T: Send + 'static> RowStart for Boxed<T> {
    type Item = T;

    /// Like the stage that it is in.
    const IS_SHARED: bool = false;

    const BEGINS_STAGE: bool = false;
}

impl<T: Send + 'static> RegisterRow<T> for Boxed<T> {
    fn end<C: Chain<T>, E: Terminal<C::Out>>(plan: &mut Plan, row: Row<Self, C, E>) {
        let code = any::type_name::<(C, E)>();
        plan.graph
            .agreed
            .push(format!("{} behind a box: {code}", row.name));
        // The operators behind the last box of a stage end first.
        let before = plan.boxed.get_mut(&row.name).and_then(Vec::pop);
        let before = before.and_then(|before| before.downcast::<EndBefore<T>>().ok());
        let before = before.expect("the operators before a box wait for the operators behind it");
        let terminals = row.instances.into_iter().map(|(_, terminal)| terminal);
        let arms = fork::arms(row.name, row.chain, terminals).collect();
        before(plan, arms, row.outputs);
    }
}

impl<I: Entry, C: Chain<I::Item>> Operators<I, C> {
    /// Hides the types of these operators, so that a function can return them as a [`Pipeline`]. The operators behind
    /// the box are still in the same stage. The price: each item is cloned into a batch, and each batch, of up to 256
    /// items and 8 KiB, is one virtual call; the operators before the box and those behind it are compiled into a
    /// loop each, not into one together.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flow, Pipeline};
    ///
    /// fn squares(flow: &Flow, count: u64) -> Pipeline<u64> {
    ///     flow.source("numbers", Generator::new(|number| number).limit(count))
    ///         .map(|number| number * number)
    ///         .boxed()
    /// }
    ///
    /// fn even(numbers: Pipeline<u64>) -> Pipeline<u64> {
    ///     numbers.filter(|number| number % 2 == 0).boxed()
    /// }
    ///
    /// let flow = Flow::new("squares");
    /// let sum = flow.partial::<u64>("sum");
    /// even(squares(&flow, 5)).fold_local(&sum, |sum, number| *sum += number);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 0 + 4 + 16);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn boxed(self) -> Pipeline<C::Out>
    where
        C::Out: Clone + Debug + Send + Sized + 'static,
    {
        let label = self.label("boxed");
        let keeps_order = self.keeps_order();
        let Operators {
            flow,
            stage,
            channel,
            inputs,
            is_shared,
            chain,
            operators,
            watermarks,
            emits_watermarks,
        } = self;
        let entries = inputs.iter().map(|_| Boxed { item: PhantomData });
        let (entries, name, input) = (entries.collect(), stage.clone(), channel.clone());
        let end: EndBefore<C::Out> = Box::new(move |plan, arms, outputs| {
            let function = Arc::new(|_: &C::Out| 0);
            let instances = inputs.into_iter().zip(arms).map(|(input, arm)| {
                let (function, label) = (Arc::clone(&function), label.clone());
                (
                    input,
                    ToFork::new(iter::once(arm), Route { function, label }),
                )
            });
            let instances = instances.collect();
            let row = Row {
                name: stage,
                channel,
                chain,
                instances,
                keeps_order,
                watermarks,
                emits_watermarks,
                outputs,
            };
            I::end(plan, row);
        });
        let mut plan = flow.plan();
        let boxes = plan.boxed.entry(name.clone()).or_default();
        boxes.push(Box::new(end));
        drop(plan);
        Operators {
            flow,
            stage: name,
            channel: input,
            inputs: entries,
            is_shared,
            chain: Same,
            operators,
            watermarks: None,
            emits_watermarks: false,
        }
    }
}
