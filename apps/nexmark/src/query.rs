//! The input and the output of a query.

use std::fmt::Debug;

use millstream::log::Share;
use millstream::{Flow, Node, Pipeline, Raw, Topic, out_of_order, secs};

use crate::event::{Bid, Event};
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
}

/// A query that is being built: its flow, its events, and the topic of its results, which has the name of the flow.
pub struct Query {
    flow: Flow,
    node: Node,
    origin: Origin,
}

impl Query {
    /// Returns the query of an empty flow.
    pub fn new(flow: Flow, node: &Node, origin: Origin) -> Query {
        Query {
            flow,
            node: node.clone(),
            origin,
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

    /// Begins with all bids.
    pub fn bids(&self) -> Pipeline<Bid> {
        self.select(Event::bid)
    }

    /// Begins with all events.
    pub fn events(&self) -> Pipeline<Event> {
        self.select(|event| Some(event.clone()))
    }

    /// Begins with the items that `select` makes of the events; `None` leaves an event out.
    pub fn select<T, F>(&self, select: F) -> Pipeline<T>
    where
        T: Debug + Clone + Send + 'static,
        F: Fn(&Event) -> Option<T> + Send + Sync + 'static,
    {
        let late = out_of_order(secs(4));
        match self.origin.clone() {
            Origin::Topic(topic) => self
                .flow
                .read(self.node.topic(&topic).json::<Event>())
                .event_time(Event::time, late)
                .flat_map(select)
                .boxed(),
            Origin::Generated {
                generator,
                events,
                sources,
            } => {
                let rank = self.flow.share();
                let source = |index| {
                    let share = Share {
                        index: rank.index * sources + index,
                        of: rank.of * sources,
                    };
                    generator.source(events, share)
                };
                self.flow
                    .sources(&self.node, "events", (0..sources).map(source).collect())
                    .event_time(Event::time, late)
                    .flat_map(select)
                    .boxed()
            }
        }
    }
}
