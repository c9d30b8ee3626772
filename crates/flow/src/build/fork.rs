//! Branches within a stage.

use std::any;
use std::fmt::Debug;
use std::mem;
use std::sync::Arc;

use crate::build::entry::{Entry, RegisterRow};
use crate::build::flow::Flow;
use crate::build::operators::Operators;
use crate::build::plan::Plan;
use crate::stage::chain::{Chain, Same};
use crate::stage::ends::fork::{self, Branch, ToFork};
use crate::stage::ends::to_rings::Route;
use crate::stage::row::Row;
use crate::stage::terminal::Terminal;

impl<T: Send + 'static> RegisterRow<T> for Branch<T> {
    fn end<C: Chain<T>, E: Terminal<C::Out>>(plan: &mut Plan, row: Row<Self, C, E>) {
        let code = any::type_name::<(C, E)>();
        plan.graph.agreed.push(format!("{}: {code}", row.name));
        // This includes the branches of a stage without instances.
        plan.branch_outputs.insert(row.name.clone(), row.outputs);
        let (entries, terminals): (Vec<_>, Vec<_>) = row.instances.into_iter().unzip();
        let built = fork::arms(row.name, row.chain, terminals);
        for (Branch { arms }, arm) in entries.into_iter().zip(built) {
            arms.lock().push(arm);
        }
    }
}

impl<I: Entry, C: Chain<I::Item>> Operators<I, C> {
    /// Ends the operators in branches, which go on within the stage: each item goes to the branch whose index `route`
    /// gives. `build` is called for each branch, and returns the flow of its end. Several workers at once may process items that are
    /// `split` to channels; items that go to a branch pass no ring. Where only one instance can end a branch, as with
    /// a sink that keeps the order of a ring, the whole stage has one instance. Without any branch, the flow does not begin
    /// ([`FlowError::NoOutputs`](crate::FlowError::NoOutputs)).
    ///
    /// ```
    /// use millstream_flow::Flow;
    /// use millstream_flow::sources::Generator;
    ///
    /// let flow = Flow::new("parity");
    /// let [even, odd] = ["even", "odd"].map(|name| flow.partial::<u64>(name));
    /// flow.source("numbers", Generator::new(|number| number).limit(10))
    ///     .fork(&["even", "odd"], |number| (number % 2) as usize, |branch, numbers| match branch {
    ///         0 => numbers.map(|number| number / 2).fold_local(&even, |sum, number| *sum += number),
    ///         _ => numbers.fold_local(&odd, |sum, number| *sum += number),
    ///     });
    /// flow.run()?.join()?;
    /// assert_eq!((even.merged(), odd.merged()), (0 + 1 + 2 + 3 + 4, 1 + 3 + 5 + 7 + 9));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn fork<F>(
        mut self,
        names: &[&str],
        route: F,
        mut build: impl FnMut(usize, Operators<Branch<C::Out>, Same>) -> Flow,
    ) -> Flow
    where
        C::Out: Clone + Debug + Send + Sized + 'static,
        F: Fn(&C::Out) -> usize + Send + Sync + 'static,
    {
        let route = Arc::new(route);
        let label = self.label("fork");
        self.check_outputs(&label, names.len());
        let (mut branches, mut outputs) = (Vec::new(), Vec::new());
        for (number, name) in names.iter().enumerate() {
            let (entries, arms) = fork::branch(self.inputs.len());
            let name = format!("{}/{name}", self.stage);
            let mut operators = Operators::begin(&self.flow, &name, self.channel.clone(), entries);
            operators.is_shared = self.is_shared;
            build(number, operators);
            let arms = mem::take(&mut *arms.lock());
            // A branch with one instance leaves one to the stage.
            self.inputs.truncate(arms.len().max(1));
            branches.push(arms.into_iter());
            let written = self.flow.plan().branch_outputs.remove(&name);
            outputs.extend(written.unwrap_or_default());
        }
        let instances = mem::take(&mut self.inputs).into_iter().map(|input| {
            let arms = branches.iter_mut().filter_map(Iterator::next);
            let function = Arc::clone(&route);
            let label = label.clone();
            (input, ToFork::new(arms, Route { function, label }))
        });
        let instances = instances.collect();
        self.end_with(instances, outputs)
    }
}
