//! Operators by key: all items of a key reach one owner, on one of the ranks.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use millstream_base::Timestamp;
use millstream_ring::Ring;

use crate::build::entry::Entry;
use crate::build::flow::Flow;
use crate::build::operators::Operators;
use crate::error::FlowError;
use crate::ranks::message::Message;
use crate::ranks::outlets::Outlets;
use crate::ranks::owners::{KeyOwners, Owner};
use crate::stage::chain::{Chain, Same};
use crate::stage::channel::{Channel, ChannelState};
use crate::stage::ends::exchange::Exchange;
use crate::stage::ends::flush_policy::FlushPolicy;
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::remote::Remote;
use crate::stage::ends::to_owner::ToOwner;
use crate::stage::ends::to_panes::{Absence, PaneCode, PendingFlush, ToPanes};
use crate::stage::ends::to_rank::ToRank;
use crate::stage::ends::to_ranks::ToRanks;
use crate::stage::ends::to_rings::{ToOne, ToRings};
use crate::stage::ends::to_windows::{Release, ToWindows};
use crate::stage::remote_input::RemoteInput;
use crate::stage::ring_input::RingInput;
use crate::stage::terminal::WritingInstance;
use crate::state::late::LateTo;
use crate::state::windowed::{WindowSpec, Windowed};
use crate::windows::{Aggregate, All, Combine, Key, LocalPanes, Partial, WindowResult};

/// Operators whose results are routed by a key.
#[must_use = "operators whose results go nowhere do not run"]
pub struct Keyed<I: Entry, C: Chain<I::Item, Out: Sized>, F> {
    pub(crate) operators: Operators<I, C>,
    pub(crate) key: F,
    late: LateItems<C::Out>,
}

/// The destination of items that arrive too late for their windows.
enum LateItems<T> {
    /// To the dead letters, if the flow keeps any.
    DeadLetters,
    Channel(Channel<T>),
    Drop,
}

impl<T> LateItems<T> {
    fn channel(&self) -> Option<&Channel<T>> {
        match self {
            LateItems::Channel(channel) => Some(channel),
            LateItems::DeadLetters | LateItems::Drop => None,
        }
    }

    /// Returns where they go in this flow.
    fn to(&self, flow: &Flow) -> LateTo {
        match self {
            LateItems::Channel(_) => LateTo::Channel,
            LateItems::DeadLetters if flow.settings.dead_letters.is_some() => LateTo::DeadLetters,
            LateItems::DeadLetters | LateItems::Drop => LateTo::Dropped,
        }
    }
}

/// A key function that gives every item the same key.
pub(super) type KeyOfAll<T> = fn(&T) -> All;

impl<I: Entry, C: Chain<I::Item>> Operators<I, C> {
    /// Routes the items by their key, so that all items of a key meet in one place.
    pub fn key_by<K, F>(self, key: F) -> Keyed<I, C, F>
    where
        C::Out: Sized,
        F: Fn(&C::Out) -> K + Send + Sync + 'static,
    {
        Keyed {
            operators: self,
            key,
            late: LateItems::DeadLetters,
        }
    }

    /// Adds each item to the windows that `time` lies in, for all keys together: first to the partial results of this
    /// instance, which go from time to time to the one owner, on one rank. Else it is as [`Keyed::aggregate`], and
    /// its results have no key to speak of.
    ///
    /// ```
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::{Count, Windows};
    /// use millstream_flow::{Flow, Watermarks};
    /// use std::time::Duration;
    ///
    /// let flow = Flow::new("numbers");
    /// let sum = flow.partial::<u64>("sum");
    /// let counts = flow.windowed("counts", Windows::tumbling(10), Count);
    /// flow.source("numbers", Generator::new(|number| number).limit(100))
    ///     .watermarks(|number| Timestamp(*number as i64), Watermarks::bounded(Duration::ZERO))
    ///     .aggregate("count", &counts, |number| Timestamp(*number as i64))
    ///     .fold_local(&sum, |sum, window| *sum += window.value);
    /// let running = flow.run()?;
    /// running.join()?;
    /// assert_eq!(sum.merged(), 100);
    /// // Over HTTP: `/state/numbers/counts/all`.
    /// let newest = running.state("counts").and_then(|state| state.get("all")).unwrap();
    /// assert_eq!((newest["window_start"].as_i64(), newest["value"].as_u64()), (Some(90), Some(10)));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn aggregate<A, E>(
        self,
        name: &str,
        state: &Windowed<All, A>,
        time: E,
    ) -> Operators<RingInput<WindowResult<All, A::Out>>, Same>
    where
        C::Out: Clone + Debug + Send + Sized + 'static,
        A: Aggregate<C::Out>,
        E: Fn(&C::Out) -> Timestamp + Send + Sync + 'static,
    {
        self.all().aggregate(name, state, time)
    }

    /// As [`Keyed::late_to`], for windows over all items.
    pub fn late_to(self, channel: &Channel<C::Out>) -> Keyed<I, C, KeyOfAll<C::Out>>
    where
        C::Out: Clone + Debug + Send + Sized + 'static,
    {
        self.all().late_to(channel)
    }

    /// As [`Keyed::drop_late`], for windows over all items.
    pub fn drop_late(self) -> Keyed<I, C, KeyOfAll<C::Out>>
    where
        C::Out: Clone + Debug + Send + Sized + 'static,
    {
        self.all().drop_late()
    }

    /// Routes the items by a key that all items have.
    pub(super) fn all(self) -> Keyed<I, C, KeyOfAll<C::Out>>
    where
        C::Out: Sized,
    {
        Keyed {
            operators: self,
            key: |_| All,
            late: LateItems::DeadLetters,
        }
    }

    /// Ends the stage and begins another of this name, which gets the items of all ranks on one of them,
    /// and nothing on the others.
    pub fn gather(mut self, name: &str, rank: u32) -> Operators<RingInput<C::Out>, Same>
    where
        C::Out: Message + Clone + Sized,
    {
        let channel = self.flow.channel::<C::Out>(name);
        let agreed = format!("{name}: on rank {rank}");
        self.flow.plan().graph.agreed.push(agreed);
        let exchange_ends = self.exchange_ends::<C::Out>(name);
        if rank >= exchange_ends.ranks {
            let fault = FlowError::NoSuchRank {
                flow: self.flow.name(),
                operator: name.to_owned(),
                rank,
                ranks: exchange_ends.ranks,
            };
            self.flow.plan().faults.push(fault);
        }
        let label = self.label("gather");
        let channels = [channel.clone()];
        let flow = self.end(&[&channel.state], |writing| {
            let local = Outbox::of_channels(writing, &channels);
            let router = ToRank {
                owner: Owner { rank, partition: 0 },
                label: label.clone(),
            };
            ToRanks::new(exchange_ends.exchange(local, writing), router)
        });
        if let Some(received) = exchange_ends.received {
            flow.receive(&format!("{name}/received"), received)
                .end(&[&channel.state], |writing| ToRings {
                    outbox: Outbox::of_channels(writing, &channels),
                    partitioner: ToOne,
                });
        }
        flow.stage(name, &channel)
    }

    /// Returns the channels on which the operator `name` sends to other ranks and receives from them.
    pub(crate) fn exchange_ends<T: Message>(&mut self, name: &str) -> ExchangeEnds<T> {
        let (outlets, received) = self.flow.rank_channel(name).unzip();
        if outlets.is_some() && self.keeps_order() {
            // Items for other ranks have no turn in the order of a ring.
            self.inputs.truncate(1);
        }
        let ranks = &self.flow.settings.ranks;
        ExchangeEnds {
            outlets,
            received,
            rank: ranks.rank(),
            ranks: ranks.count(),
        }
    }
}

/// Both ends of an operator's channels to other ranks; none if there is no other.
pub(crate) struct ExchangeEnds<T> {
    outlets: Option<Arc<Outlets>>,
    pub received: Option<Vec<RemoteInput<T>>>,
    rank: u32,
    pub ranks: u32,
}

impl<T: Message> ExchangeEnds<T> {
    /// The way of one instance, to this rank's rings and to other ranks.
    pub fn exchange(&self, local: Outbox<T>, writing: WritingInstance<'_>) -> Exchange<T> {
        let outlets = self.outlets.as_ref();
        Exchange {
            local,
            remote: outlets.map(|outlets| Remote::new(outlets, writing.writer)),
            rank: self.rank,
            ranks: self.ranks,
        }
    }
}

impl<I, C, T, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Clone + Debug + Send + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Items that come too late for their window go to `channel`; in Flink a side output of late data. Without this, they
    /// become [dead letters](crate::FlowSettings::dead_letters), with the records that they were made of where the flow
    /// knows them; a flow that keeps no dead letters leaves them out, and warns once. They are counted in any case, by
    /// [`Windowed::late_events`].
    pub fn late_to(self, channel: &Channel<T>) -> Self {
        Keyed {
            late: LateItems::Channel(channel.clone()),
            ..self
        }
    }

    /// Drops items that come too late for their window, also in a flow that keeps dead letters. They are counted, by
    /// [`Windowed::late_events`].
    ///
    /// ```
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::windows::{Count, Windows};
    /// use millstream_flow::{Flow, Watermarks};
    /// use std::time::Duration;
    ///
    /// let times = [5, 25, 6];
    /// let flow = Flow::new("numbers");
    /// let counts = flow.windowed("counts", Windows::tumbling(10), Count);
    /// let sum = flow.partial::<u64>("sum");
    /// flow.source("times", Generator::new(move |number| times[number as usize]).limit(3))
    ///     .watermarks(|time| Timestamp(*time), Watermarks::bounded(Duration::ZERO))
    ///     .key_by(|_| 0)
    ///     .drop_late()
    ///     .aggregate("count", &counts, |time| Timestamp(*time))
    ///     .fold_local(&sum, |sum, window| *sum += window.value);
    /// flow.run()?.join()?;
    /// assert_eq!((sum.merged(), counts.late_events()), (2, 1));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn drop_late(self) -> Self {
        Keyed {
            late: LateItems::Drop,
            ..self
        }
    }

    /// Adds each item to the windows of its key that `time` lies in: first to the partial results of this instance,
    /// which go from time to time to the key's owner. A stage of its own, named `name`; it gives the windows as event
    /// time passes their end.
    pub fn aggregate<A, E>(
        self,
        name: &str,
        state: &Windowed<K, A>,
        time: E,
    ) -> Operators<RingInput<WindowResult<K, A::Out>>, Same>
    where
        A: Aggregate<T>,
        E: Fn(&T) -> Timestamp + Send + Sync + 'static,
    {
        self.operators.flow.reserve(&state.spec, name);
        let panes = Panes::new(&self.operators.flow, name);
        let spec = Arc::clone(&state.spec);
        let flow = self.end_in_panes("aggregate", name, spec, &panes, time);
        panes.windows(&flow, name, state)
    }

    /// Ends the stage in panes, as the operator `kind`. The channel to other ranks is named `exchange`.
    pub(crate) fn end_in_panes<A, E>(
        self,
        kind: &str,
        exchange: &str,
        spec: Arc<WindowSpec<A>>,
        panes: &Panes<K, A::State>,
        time: E,
    ) -> Flow
    where
        A: Aggregate<T>,
        E: Fn(&T) -> Timestamp + Send + Sync + 'static,
    {
        let Keyed {
            mut operators,
            key,
            late,
        } = self;
        let late_to = late.to(&operators.flow);
        spec.late.lead(late_to);
        let is_late_expected = !matches!(late, LateItems::DeadLetters);
        let late = late.channel();
        let Panes { rings, channel } = panes;
        let received_name = format!("{exchange}/received");
        let clock = Arc::clone(&operators.flow.settings.clock);
        let plan = operators.flow.plan();
        let step = plan.graph.step.clone();
        drop(plan);
        let exchange_ends = operators.exchange_ends::<Partial<K, A::State>>(exchange);
        let owners = KeyOwners::new(exchange_ends.ranks, rings.len());
        let is_in_turn = operators.keeps_order() && operators.inputs.len() > 1;
        let code = Arc::new(PaneCode {
            key,
            time,
            label: operators.label(kind),
        });
        let outputs: Vec<&Arc<ChannelState>> = [channel]
            .into_iter()
            .chain(late.map(|late| &late.state))
            .collect();
        let flow = operators.end(&outputs, |writing: WritingInstance<'_>| {
            let panes = LocalPanes::new(spec.windows);
            ToPanes {
                flush_policy: FlushPolicy::new(|bytes, few| panes.max_within(bytes, few)),
                panes,
                spec: Arc::clone(&spec),
                code: Arc::clone(&code),
                exchange: exchange_ends
                    .exchange(Outbox::of_rings(writing, rings, channel), writing),
                owners: owners.clone(),
                late_to,
                is_late_expected,
                late: late.map(|late| Outbox::of_channels(writing, std::slice::from_ref(late))),
                late_items: Vec::new(),
                step: step.clone(),
                is_in_turn,
                clock: Arc::clone(&clock),
                waiting: PendingFlush::default(),
                stamp: 0,
                has_ended: false,
                absence: Absence::default(),
                item: PhantomData,
            }
        });
        if let Some(received) = exchange_ends.received {
            flow.receive(&received_name, received)
                .end(&[channel], |writing| ToRings {
                    outbox: Outbox::of_rings(writing, rings, channel),
                    partitioner: ToOwner {
                        owners: owners.clone(),
                        label: code.label.clone(),
                    },
                });
        }
        flow
    }
}

/// The rings in which the partial results of all instances and ranks meet that this rank owns: one for each partition
/// of keys.
pub(crate) struct Panes<K, S> {
    rings: Vec<Arc<Ring<Partial<K, S>>>>,
    channel: Arc<ChannelState>,
}

impl<K, S> Clone for Panes<K, S> {
    fn clone(&self) -> Self {
        Panes {
            rings: self.rings.clone(),
            channel: Arc::clone(&self.channel),
        }
    }
}

impl<K: Key, S: Clone + Send + 'static> Panes<K, S> {
    pub fn new(flow: &Flow, name: &str) -> Self {
        let partitions = flow.settings.workers.get();
        let (rings, channel) = flow.rings(name, partitions);
        Panes { rings, channel }
    }

    /// Begins the stage that merges them and gives the windows of `state` as they end.
    pub fn windows<A: Combine<State = S>>(
        &self,
        flow: &Flow,
        name: &str,
        state: &Windowed<K, A>,
    ) -> Operators<RingInput<WindowResult<K, A::Out>>, Same> {
        let Panes { rings, channel } = self;
        let inputs = rings.iter().enumerate();
        let inputs = inputs.map(|(index, ring)| RingInput::new(ring, channel, index));
        let inputs = inputs.collect();
        let mut partitioned = Operators::begin(flow, name, Some(Arc::clone(channel)), inputs);
        partitioned.is_shared = false;
        let results_name = format!("{name}/results");
        let results = partitioned.flow.channel(&results_name);
        let clock = Arc::clone(&partitioned.flow.settings.clock);
        let label = partitioned.label("aggregate");
        let has_dead_letters = partitioned.flow.settings.dead_letters.is_some();
        let channels = [results.clone()];
        let flow = partitioned.end(&[&results.state], |writing| ToWindows {
            spec: Arc::clone(&state.spec),
            store: state.add_partition(),
            label: label.clone(),
            outbox: Outbox::of_channels(writing, &channels),
            has_dead_letters,
            clock: Arc::clone(&clock),
            release: Release::default(),
            stamp: 0,
        });
        flow.stage(&results_name, &results)
    }
}
