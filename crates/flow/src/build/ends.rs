//! The ends of a row of operators: channels, states and sinks.

use std::fmt::Debug;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::operators::Operators;
use crate::checkpoint::participants::SinkParticipant;
use crate::error::FlowError;
use crate::sinks::sink::Sink;
use crate::stage::chain::{Chain, Emit, Same};
use crate::stage::channel::{Channel, ChannelState};
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::to_replica::ToReplica;
use crate::stage::ends::to_rings::{Route, ToAll, ToOne, ToRings};
use crate::stage::ends::to_sink::{PendingItems, ToSink};
use crate::stage::ends::to_state::ToState;
use crate::stage::ring_input::RingInput;
use crate::stage::row::Row;
use crate::stage::terminal::{Terminal, WritingInstance};
use crate::stage::user_code::Label;
use crate::state::element::PartialElement;
use crate::state::partial::{Partial, PartialState};
use crate::time::control_event::WriterId;

impl<I: Entry, C: Chain<I::Item>> Operators<I, C> {
    /// Ends the stage and begins another of this name, joined by a ring.
    pub fn boundary(self, name: &str) -> Operators<RingInput<C::Out>, Same>
    where
        C::Out: Clone + Send + Sized + 'static,
    {
        let channel = self.flow.channel(name);
        self.end_in(&channel).stage(name, &channel)
    }

    /// Ends the stage in a channel.
    pub fn to(self, channel: &Channel<C::Out>) -> Flow
    where
        C::Out: Clone + Send + Sized + 'static,
    {
        self.end_in(channel)
    }

    /// Ends the stage in several channels: each item goes to the one whose index `route` gives. Without any channel, the flow
    /// does not begin ([`FlowError::NoOutputs`]).
    pub fn split<F>(self, channels: &[Channel<C::Out>], route: F) -> Flow
    where
        C::Out: Clone + Debug + Send + Sized + 'static,
        F: Fn(&C::Out) -> usize + Send + Sync + 'static,
    {
        let route = Arc::new(route);
        let label = self.label("split");
        self.check_outputs(&label, channels.len());
        let states: Vec<_> = channels.iter().map(|channel| &channel.state).collect();
        self.end(&states, |writing| ToRings {
            outbox: Outbox::of_channels(writing, channels),
            partitioner: Route {
                function: Arc::clone(&route),
                label: label.clone(),
            },
        })
    }

    /// Ends the stage in several channels, each of which gets every item: for several operators over the
    /// same items. Items that are handles of something larger are the cheaper. Without any channel, the flow does not begin
    /// ([`FlowError::NoOutputs`]).
    pub fn to_all(self, channels: &[Channel<C::Out>]) -> Flow
    where
        C::Out: Clone + Send + Sized + 'static,
    {
        let states: Vec<_> = channels.iter().map(|channel| &channel.state).collect();
        let label = self.label("to_all");
        self.check_outputs(&label, channels.len());
        self.end(&states, |writing| ToRings {
            outbox: Outbox::of_channels(writing, channels),
            partitioner: ToAll {
                label: label.clone(),
            },
        })
    }

    /// Ends the graph in a partial state: `step` adds each item to the share of the instance.
    pub fn fold_local<S, F>(self, state: &Partial<S>, step: F) -> Flow
    where
        C::Out: Debug,
        S: PartialState,
        F: Fn(&mut S, &C::Out) + Send + Sync + 'static,
    {
        let step = Arc::new(step);
        let label = self.label("fold_local");
        self.end(&[], |_| ToState {
            part: state.add_part(),
            step: Arc::clone(&step),
            label: label.clone(),
        })
    }

    /// Calls `function` for each item, with the instance's replica of a partial state element, such as a
    /// [`PartialMap`](crate::PartialMap). The function may read and change the replica, and emit results. Items stay in the
    /// instance that has them: no exchange precedes this. The results begin a stage of their own, named `name`.
    ///
    /// Several operators may change one element; each of their instances has a replica. A panic of `function` fails the
    /// flow, since the replica may be half changed.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("words");
    /// let longest = flow.partial_map::<char, String>("longest", |longest, other| {
    ///     if other.len() > longest.len() {
    ///         longest.clone_from(other);
    ///     }
    /// });
    /// let changes = flow.partial::<u64>("changes");
    /// let words = ["an", "apple", "be", "bees", "ant"];
    /// flow.source("words", Generator::new(move |number| words[number as usize]).limit(5))
    ///     .update_local("keep", &longest, |mut longest, word, emit: &mut Emit<u64>| {
    ///         let first = word.chars().next().unwrap();
    ///         if longest.get(&first).is_none_or(|present| present.len() < word.len()) {
    ///             longest.insert(&first, word.to_string());
    ///             emit(&1);
    ///         }
    ///     })
    ///     .fold_local(&changes, |sum, change| *sum += change);
    /// let running = flow.run()?;
    /// running.join()?;
    /// assert_eq!(longest.get(&'a').as_deref(), Some("apple"));
    /// // Over HTTP: `/state/words/longest/b`.
    /// assert_eq!(running.state("longest").and_then(|state| state.get("b")).unwrap(), "bees");
    /// assert_eq!(changes.merged(), 4);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn update_local<E, O, F>(
        self,
        name: &str,
        element: &E,
        function: F,
    ) -> Operators<RingInput<O>, Same>
    where
        C::Out: Debug,
        E: PartialElement,
        O: Clone + Send + 'static,
        F: Fn(E::Content<'_>, &C::Out, &mut Emit<'_, O>) + Send + Sync + 'static,
    {
        let results = self.flow.channel(name);
        let channels = [results.clone()];
        let function = Arc::new(function);
        let label = self.label("update_local");
        let flow = self.end(&[&results.state], |writing| {
            let replica = element.add_replica();
            ToReplica {
                element: element.clone(),
                replica: replica.number,
                table: replica.table,
                function: Arc::clone(&function),
                label: label.clone(),
                outbox: Outbox::of_channels(writing, &channels),
            }
        });
        flow.stage(name, &results)
    }

    /// Ends the graph in a sink.
    pub fn sink<K>(mut self, name: &str, sink: K) -> Flow
    where
        C::Out: Clone + Send + Sized + 'static,
        K: Sink<C::Out>,
    {
        let sink = Arc::new(Mutex::new(sink));
        let label = Label(name.into());
        let waker = self.flow.waker();
        let shared = SinkParticipant::<C::Out, K>::new(Arc::clone(&sink), label.clone());
        self.flow.plan().graph.sinks.push(Arc::new(shared));
        if self.keeps_order() {
            // A single worker at a time brings the items, in order.
            self.inputs.truncate(1);
        }
        self.end(&[], |_| ToSink {
            sink: Arc::clone(&sink),
            waker: waker.clone(),
            label: label.clone(),
            waiting: PendingItems::default(),
            unflushed: false,
            has_progress: false,
        })
    }

    fn end_in(self, channel: &Channel<C::Out>) -> Flow
    where
        C::Out: Clone + Send + Sized + 'static,
    {
        let channels = [channel.clone()];
        self.end(
            &channels.each_ref().map(|channel| &channel.state),
            |writing| ToRings {
                outbox: Outbox::of_channels(writing, &channels),
                partitioner: ToOne,
            },
        )
    }

    /// Notes the fault of an operator that has no outputs.
    pub(crate) fn check_outputs(&self, label: &Label, outputs: usize) {
        if outputs == 0 {
            let fault = FlowError::NoOutputs {
                flow: self.flow.name(),
                operator: label.0.to_string(),
            };
            self.flow.plan().faults.push(fault);
        }
    }

    /// Adds the stage to the flow, with a terminal for each of its instances.
    pub(crate) fn end<T: Terminal<C::Out>>(
        mut self,
        outputs: &[&Arc<ChannelState>],
        mut terminal: impl FnMut(WritingInstance<'_>) -> T,
    ) -> Flow {
        let count = match self.is_shared {
            true => 1,
            false => self.inputs.len() as WriterId,
        };
        let mut plan = self.flow.plan();
        let first = plan.writers;
        plan.writers += count;
        drop(plan);
        let writers: Vec<_> = (first..first + count).collect();
        outputs
            .iter()
            .for_each(|channel| channel.add_writer(&writers));
        let inputs = mem::take(&mut self.inputs).into_iter();
        let instances = inputs.zip(writers.iter().cycle()).map(|(input, writer)| {
            let writing = WritingInstance {
                input: self.channel.as_ref(),
                writer: *writer,
            };
            (input, terminal(writing))
        });
        let instances = instances.collect();
        let outputs = outputs.iter().map(|channel| Arc::clone(channel)).collect();
        self.end_with(instances, outputs)
    }

    /// Adds them to the flow with both ends of each instance, and all channels that they write.
    pub(crate) fn end_with<T: Terminal<C::Out>>(
        self,
        instances: Vec<(I, T)>,
        outputs: Vec<Arc<ChannelState>>,
    ) -> Flow {
        let keeps_order = self.keeps_order();
        self.flow.plan().open.retain(|open| *open != self.stage);
        let row = Row {
            name: self.stage,
            channel: self.channel,
            chain: self.chain,
            instances,
            keeps_order,
            watermarks: self.watermarks,
            emits_watermarks: self.emits_watermarks,
            outputs,
        };
        I::end(&mut self.flow.plan(), row);
        self.flow
    }
}
