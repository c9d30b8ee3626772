//! Runs a query of the Nexmark benchmark, over events that it generates or over those of a topic.
//!
//! The results are in the topic `nexmark.<query>`, and the flow's state answers at `/state/nexmark.<query>/…`.
//!
//! ```text
//! nexmark --query q5 --events 1000000 --data DIR
//! nexmark --query q5 --topic auctions --server localhost:9092
//! ```

use std::num::NonZeroU64;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use millstream_nexmark::{Definition, EventGenerator, Origin, QUERIES, Query, START};

/// The options beside those that every application has.
#[derive(Debug, Args)]
#[command(about = None)]
struct Options {
    /// The query; its results are in the topic `nexmark.<QUERY>`
    #[arg(long, value_parser = query())]
    query: Definition,
    /// Read the events of this topic, as the query `events` writes them, in place of generated ones
    #[arg(long, conflicts_with_all = ["events", "rate", "seed", "sources"])]
    topic: Option<String>,
    /// The number of events to generate; one in fifty is a person, three are auctions, the others bids
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    events: u64,
    /// The events per second of event time; they are generated as fast as the query takes them
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    rate: NonZeroU64,
    /// The seed of the events: other events for each number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The sources of each rank that generate the events together, on a core each; a resumed run needs the same number
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    sources: u32,
}

/// Reads the name of a query, and describes all of them in the help.
fn query() -> impl TypedValueParser<Value = Definition> {
    let names = QUERIES.map(|query| PossibleValue::new(query.name).help(query.about));
    PossibleValuesParser::new(names).map(|name| {
        let mut queries = QUERIES.into_iter();
        let query = queries.find(|query| query.name == name);
        query.expect("the parser has checked it")
    })
}

impl Options {
    fn origin(&self) -> Origin {
        match &self.topic {
            Some(topic) => Origin::Topic(topic.clone()),
            None => Origin::Generated {
                generator: EventGenerator {
                    seed: self.seed,
                    start: START,
                    rate: self.rate,
                },
                events: self.events,
                sources: self.sources,
            },
        }
    }
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    millstream::main_with(|app, options: &Options| {
        let flow = app.flow(&format!("nexmark.{}", options.query.name));
        let query = Query::new(flow, app.node(), options.origin());
        Ok((options.query.build)(&query))
    })
}
