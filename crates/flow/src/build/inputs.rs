//! The beginnings of stages: sources, channels, and channels between ranks.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::Waker;

use millstream_ring::{Ring, RingConfig};

use crate::build::flow::Flow;
use crate::build::operators::Operators;
use crate::build::rank_channel::RankChannel;
use crate::ranks::message::Message;
use crate::ranks::outlets::Outlets;
use crate::run::settings::Order;
use crate::sources::source::{Output, Source};
use crate::stage::chain::Same;
use crate::stage::channel::{AnyRing, Channel, ChannelState};
use crate::stage::remote_input::RemoteInput;
use crate::stage::ring_input::RingInput;
use crate::stage::source_input::SourceInput;
use crate::stage::user_code::Label;

/// Room of a ring at first.
const RING_ITEMS_MIN: usize = 8;

/// Memory of a ring at most, so that items are still in the cache when they are read. However few items that is,
/// there is room for `RING_ITEMS_MIN`.
const RING_BYTES_MAX: usize = 1 << 20;

impl Flow {
    /// Begins a stage that reads `source`.
    pub fn source<S: Source>(&self, name: &str, source: S) -> Operators<SourceInput<S>, Same> {
        self.sources(name, [source])
    }

    /// Begins a stage that reads several sources; as many workers can be in it at once.
    pub fn sources<S: Source>(
        &self,
        name: &str,
        sources: impl IntoIterator<Item = S>,
    ) -> Operators<SourceInput<S>, Same> {
        let plan = self.plan();
        let doorbell = Arc::clone(&plan.graph.doorbell);
        let (stopping, pause) = (
            Arc::clone(&plan.graph.stopping),
            Arc::clone(&plan.graph.pause),
        );
        drop(plan);
        let inputs = sources
            .into_iter()
            .map(|source| SourceInput {
                source,
                label: Label(name.into()),
                doorbell: Arc::clone(&doorbell),
                waker: Waker::from(Arc::clone(&doorbell)),
                stopping: Arc::clone(&stopping),
                pause: Arc::clone(&pause),
                clock: Arc::clone(&self.settings.clock),
                output: Output::default(),
                stamp: 0,
                unsampled: 0,
                usual: 0,
                ended: false,
            })
            .collect();
        Operators::begin(self, name, None, inputs)
    }

    /// A channel that stages can write to and one stage reads: for graphs that are merged, split, or
    /// led back.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("merge");
    /// let sum = flow.partial::<u64>("sum");
    /// let [even, odd, both] = ["even", "odd", "both"].map(|name| flow.channel::<u64>(name));
    /// flow.source("numbers", Generator::new(|number| number).limit(10))
    ///     .split(&[even.clone(), odd.clone()], |number| (number % 2) as usize);
    /// flow.stage("halve", &even).map(|number| number / 2).to(&both);
    /// flow.stage("keep", &odd).to(&both);
    /// flow.stage("add", &both).fold_local(&sum, |sum, number| *sum += number);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), (0 + 1 + 2 + 3 + 4) + (1 + 3 + 5 + 7 + 9));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    ///
    /// A channel is written and read with one type:
    ///
    /// ```compile_fail
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::Flow;
    ///
    /// let flow = Flow::new("merge");
    /// let numbers = flow.channel::<u64>("numbers");
    /// flow.source("one", Generator::new(|number| number)).to(&numbers);
    /// flow.source("other", Generator::new(|number| number.to_string())).to(&numbers);
    /// ```
    pub fn channel<T: Send + 'static>(&self, name: &str) -> Channel<T> {
        let (mut rings, state) = self.rings(name, 1);
        Channel {
            ring: rings.remove(0),
            state,
        }
    }

    /// Begins a stage that reads a channel.
    pub fn stage<T: Send + 'static>(
        &self,
        name: &str,
        channel: &Channel<T>,
    ) -> Operators<RingInput<T>, Same> {
        let readers = self.settings.workers.get();
        let inputs = (0..readers).map(|_| RingInput::new(&channel.ring, &channel.state, 0));
        let state = Some(Arc::clone(&channel.state));
        Operators::begin(self, name, state, inputs.collect())
    }

    /// The two ends of a channel between this rank and each other one; none if there is no other.
    pub(crate) fn rank_channel<T: Message>(
        &self,
        operator: &str,
    ) -> Option<(Arc<Outlets>, Vec<RemoteInput<T>>)> {
        if self.settings.ranks.count() == 1 {
            return None;
        }
        let mut plan = self.plan();
        let rank_channel = RankChannel {
            ranks: &self.settings.ranks,
            channel: self.settings.ranks.next_channel(),
            operator: operator.into(),
            clock: &self.settings.clock,
            doorbell: &plan.graph.doorbell,
            stopping: &plan.graph.stopping,
            pause: &plan.graph.pause,
            references: plan.references.as_ref(),
        };
        let outlets = rank_channel.outlets();
        let inputs = rank_channel.inputs(&outlets);
        plan.graph.exits.push(Arc::clone(&outlets));
        Some((outlets, inputs))
    }

    /// Begins a stage that reads the items of other ranks.
    pub(crate) fn receive<T: Message>(
        &self,
        name: &str,
        inputs: Vec<RemoteInput<T>>,
    ) -> Operators<RemoteInput<T>, Same> {
        let mut operators = Operators::begin(self, name, None, inputs);
        operators.emits_watermarks = true;
        operators
    }

    /// Makes `count` rings of one channel.
    pub(crate) fn rings<T: Send + 'static>(
        &self,
        name: &str,
        count: usize,
    ) -> (Vec<Arc<Ring<T>>>, Arc<ChannelState>) {
        let items_min = NonZeroUsize::new(RING_ITEMS_MIN).expect("not zero");
        let of_memory = NonZeroUsize::new(RING_BYTES_MAX / Ring::<T>::SLOT_BYTES);
        let capacity_max = of_memory
            .unwrap_or(items_min)
            .max(items_min)
            .min(self.settings.ring_items_max);
        let config = RingConfig {
            capacity_min: items_min.min(capacity_max),
            capacity_max,
            lanes: match self.settings.order {
                Order::Kept => NonZeroUsize::MIN,
                Order::Free => self.settings.workers,
            },
        };
        let rings: Vec<_> = (0..count).map(|_| Ring::new(config)).collect();
        let erased = rings
            .iter()
            .map(|ring| -> Arc<dyn AnyRing> { Arc::new(Arc::clone(ring)) });
        let state = ChannelState::new(name, erased.collect());
        self.plan().graph.channels.push(Arc::clone(&state));
        (rings, state)
    }
}
