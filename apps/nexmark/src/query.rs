//! The input and the output of a query.

use std::fmt::Debug;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use millstream::flow::{Boxed, Chain, Entry, Source};
use millstream::log::Share;
use millstream::{Event as Item, Flow, Node, Pipeline, Raw, Stream, Topic, out_of_order, secs};
use serde::Serialize;

use crate::event::{Bid, Event};
use crate::file::EventFile;
use crate::generator::EventGenerator;

/// The origin of a query's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A topic, whose records are events as JSON. They are out of order by at most four seconds in each partition.
    Topic(String),
    /// Generated events.
    Generated {
        /// Makes the events.
        generator: EventGenerator,
        /// The number of events.
        events: u64,
        /// The number of sources on each rank that generate them together. A flow resumes with the same number.
        sources: u32,
    },
    /// A file that [`write_events`](crate::write_events) has written.
    File {
        /// The file.
        path: PathBuf,
        /// The number of sources on each rank that read it together. A flow resumes with the same number.
        sources: u32,
    },
}

/// Counts the results of a query. A clone is another handle of the same count.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<[Stripe; STRIPES]>);

/// Threads count in different lines of the processors' caches.
const STRIPES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

impl Counter {
    /// Returns the count.
    pub fn count(&self) -> u64 {
        let stripes = self.0.iter();
        stripes.map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }

    fn add(&self) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static STRIPE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES;
        }
        let stripe = STRIPE.with(|stripe| *stripe);
        self.0[stripe].0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A query that is being built: its flow, its events, and the topic of its results, which has the name of the flow.
pub struct Query {
    flow: Flow,
    node: Node,
    origin: Origin,
    discards: Option<Counter>,
}

impl Query {
    /// Returns the query of an empty flow.
    pub fn new(flow: Flow, node: &Node, origin: Origin) -> Query {
        Query {
            flow,
            node: node.clone(),
            origin,
            discards: None,
        }
    }

    /// Counts the results, and drops them, in place of writing them to the topic.
    #[must_use]
    pub fn discard(self, counter: Counter) -> Query {
        Query {
            discards: Some(counter),
            ..self
        }
    }

    /// Returns the flow.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Returns the topic of the results.
    pub fn results(&self) -> Topic<Raw> {
        self.node.topic(self.flow.name())
    }

    /// Returns whether the results are dropped.
    pub fn is_discarded(&self) -> bool {
        self.discards.is_some()
    }

    /// Ends with the results.
    pub fn end<I, C, T>(&self, results: Stream<I, C, T>) -> Flow
    where
        I: Entry,
        C: Chain<I::Item, Out = Item<T>>,
        T: Serialize + Debug + 'static,
    {
        self.end_in(results, self.results())
    }

    /// Ends with the results, in a topic with settings of its own.
    pub fn end_in<I, C, T>(&self, results: Stream<I, C, T>, topic: Topic<Raw>) -> Flow
    where
        I: Entry,
        C: Chain<I::Item, Out = Item<T>>,
        T: Serialize + Debug + 'static,
    {
        match self.discards.clone() {
            None => results.write(topic.json::<T>()),
            // The compiler must not leave out the results because they are not used.
            Some(counter) => results.for_each("discard", move |result| {
                black_box(result);
                counter.add();
            }),
        }
    }

    /// Begins with all bids.
    pub fn bids(&self) -> Events<impl Chain<Item<Event>, Out = Item<Arc<Bid>>> + use<>, Arc<Bid>> {
        self.select(Event::bid)
    }

    /// Begins with all events.
    pub fn events(&self) -> Events<impl Chain<Item<Event>, Out = Item<Event>> + use<>, Event> {
        self.select(|event| Some(event.clone()))
    }

    /// Begins with the items that `select` makes of the events; `None` leaves an event out.
    pub fn select<T, F>(
        &self,
        select: F,
    ) -> Events<impl Chain<Item<Event>, Out = Item<T>> + use<T, F>, T>
    where
        T: Debug + Clone + Send + 'static,
        F: Fn(&Event) -> Option<T> + Send + Sync + 'static,
    {
        self.all().flat_map(move |event| select(event))
    }

    /// Begins with the events.
    fn all(&self) -> Pipeline<Event> {
        match self.origin.clone() {
            Origin::Topic(topic) => self
                .flow
                .read(self.node.topic(&topic).json::<Event>())
                .event_time(Event::time, out_of_order(secs(4)))
                .boxed(),
            Origin::Generated {
                generator,
                events,
                sources,
            } => self.read(
                self.shares(sources)
                    .map(|share| Box::new(generator.source(events, share)) as AnySource),
            ),
            Origin::File { path, sources } => self.read(
                self.shares(sources)
                    .map(|share| Box::new(EventFile::new(path.clone(), share)) as AnySource),
            ),
        }
    }

    /// Returns the shares of the sources of this rank.
    fn shares(&self, sources: u32) -> impl Iterator<Item = Share> {
        let rank = self.flow.share();
        (0..sources).map(move |index| Share {
            index: rank.index * sources + index,
            of: rank.of * sources,
        })
    }

    fn read(&self, sources: impl Iterator<Item = AnySource>) -> Pipeline<Event> {
        self.flow
            .sources(&self.node, "events", sources.collect())
            .event_time(Event::time, out_of_order(secs(4)))
            .boxed()
    }
}

/// Items of type `T` that the operators `C` make of the events.
pub type Events<C, T> = Stream<Boxed<Item<Event>>, C, T>;

type AnySource = Box<dyn Source<Item = Event>>;
