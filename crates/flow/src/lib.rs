//! The dataflow engine: graph, stages, workers, event time, windows, state.
//!
//! A [`Flow`] is a graph of typed operators. Operators in a row are compiled into one *stage*;
//! stages are joined by rings; a pool of workers activates them in turn. Results go to a [`Sink`]
//! or into state, which can be read while the flow runs.
//!
//! # Counting words
//!
//! Items are passed on by reference, so that a word is a slice of the block that was read: nothing is copied or
//! allocated per line or word. Each instance counts into a share of its own.
//!
//! ```
//! use millstream_base::SystemDisk;
//! use millstream_base::text::is_white_space;
//! use millstream_flow::sources::{LineBlock, LineFiles, LineLimits};
//! use millstream_flow::{Counts, Emit, Flow};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("text");
//! # std::fs::write(&path, "an apple\nand a pear\nan\n")?;
//! let flow = Flow::new("words");
//! let counts = flow.partial::<Counts>("counts");
//! let files = LineFiles::open(&SystemDisk, [path], LineLimits::default())?;
//! flow.sources("read", files.split(2))
//!     .flat_map(|block: &LineBlock, emit: &mut Emit<[u8]>| {
//!         block.bytes.split(is_white_space).for_each(emit);
//!     })
//!     .filter(|word| word.starts_with(b"a"))
//!     .fold_local(&counts, |counts, word| counts.add(word, 1));
//! let running = flow.run()?;
//! running.join()?;
//! assert_eq!(counts.merged().top(2), [(b"an".as_slice(), 2), (b"a", 1)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Keeping a value per key
//!
//! Items go to the rank and partition that own their key, and change its value there. [`Keyed::update`] can also remove
//! the value and emit results.
//!
//! ```
//! use millstream_flow::Flow;
//! use millstream_flow::sources::Generator;
//!
//! let flow = Flow::new("orders");
//! let spent = flow.values::<String, u64>("spent");
//! let orders = [("ann", 5), ("ben", 2), ("ann", 4)];
//! flow.source("orders", Generator::new(move |number| orders[number as usize]).limit(3))
//!     .map(|(customer, amount)| (customer.to_string(), *amount))
//!     .key_by(|(customer, _)| customer.clone())
//!     .fold("add", &spent, |spent, (_, amount)| *spent += amount);
//! let running = flow.run()?;
//! running.join()?;
//! assert_eq!(spent.get(&"ann".to_owned()), Some(9));
//! // Over HTTP: `/state/orders/spent/ann`.
//! assert_eq!(running.state("spent").and_then(|state| state.get("ann")).unwrap(), 9);
//! # Ok::<(), millstream_flow::FlowError>(())
//! ```
//!
//! # Counting views and clicks per campaign in windows of ten seconds
//!
//! ```
//! use millstream_base::Timestamp;
//! use millstream_flow::sources::Generator;
//! use millstream_flow::windows::{fold, WindowResult, Windows};
//! use millstream_flow::{Flow, Watermarks};
//! # use millstream_flow::{BoxError, Sink};
//! use std::time::Duration;
//! # use std::task::Waker;
//! # struct Results;
//! # impl Sink<WindowResult<u32, AdCounts>> for Results {
//! #     fn push(&mut self, items: &[WindowResult<u32, AdCounts>], _: &Waker) -> Result<usize, BoxError> {
//! #         Ok(items.len())
//! #     }
//! #     fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> { Ok(true) }
//! # }
//!
//! #[derive(Debug, Clone, Copy, PartialEq)]
//! enum Kind { View, Click, Purchase }
//! #[derive(Debug, Clone)]
//! struct Event { kind: Kind, ad: u32, time: Timestamp }
//! #[derive(Clone, Default, serde::Serialize, serde::Deserialize)]
//! struct AdCounts { views: u64, clicks: u64 }
//!
//! let events = Generator::new(|number| Event {
//!     kind: [Kind::View, Kind::Click, Kind::Purchase][number as usize % 3],
//!     ad: number as u32 % 1000,
//!     time: Timestamp(number as i64),
//! });
//! let campaigns: Vec<u32> = (0..1000).map(|ad| ad / 10).collect();
//!
//! let flow = Flow::new("ads");
//! let count = fold(
//!     AdCounts::default,
//!     |counts: &mut AdCounts, (_, kind, _): &(u32, Kind, Timestamp)| match kind {
//!         Kind::View => counts.views += 1,
//!         _ => counts.clicks += 1,
//!     },
//!     |counts, other| {
//!         counts.views += other.views;
//!         counts.clicks += other.clicks;
//!     },
//! );
//! let counts = flow.windowed("campaign_counts", Windows::tumbling(10_000), count);
//! flow.source("events", events.limit(30_000))
//!     .watermarks(|event| event.time, Watermarks::bounded(Duration::from_secs(1)))
//!     .filter(|event| event.kind != Kind::Purchase)
//!     .map(move |event| (campaigns[event.ad as usize], event.kind, event.time))
//!     .key_by(|(campaign, _, _)| *campaign)
//!     .aggregate("count", &counts, |(_, _, time)| *time)
//!     .sink("results", Results);
//! let running = flow.run()?;
//! running.join()?;
//! let newest = running.state("campaign_counts").and_then(|state| state.get("7")).unwrap();
//! assert_eq!(newest["window_start"], 20_000);
//! assert_eq!(counts.totals().closed_events, 20_000);
//! # Ok::<(), millstream_flow::FlowError>(())
//! ```

mod build;
pub mod changes;
mod checkpoint;
mod clocked;
pub mod counted;
mod doorbell;
mod error;
mod graph;
mod joins;
mod parts;
mod pause;
mod ranks;
mod run;
pub mod serving;
pub mod sinks;
pub mod sources;
mod stage;
mod state;
#[cfg(test)]
mod still;
mod time;
mod topology;
pub mod windows;

#[doc(hidden)]
pub use build::at_owner::WithValue;
pub use build::boxed::{Boxed, Pipeline};
pub use build::collecting::Collecting;
pub use build::connected::{Connected, Side};
pub use build::entry::Entry;
pub use build::flow::Flow;
pub use build::gathered::gathered;
pub use build::keyed::Keyed;
pub use build::keyed_rows::KeyedRows;
pub use build::operators::Operators;
pub use build::row_join::RowJoin;
pub use build::window_join::WindowJoin;
pub use changes::{RowChange, Upsert};
pub use checkpoint::changelog::Changelog;
pub use checkpoint::counts::{CheckpointCounts, LastCheckpoint};
pub use checkpoint::store::{
    CheckpointRecords, Checkpointing, Checkpoints, Resume, ShardKey, StoreLock,
};
pub use checkpoint::trail::CheckpointView;
pub use checkpoint::write_error::{FinalError, PassingError};
pub use counted::CountWindow;
pub use error::{BoxError, FlowError};
#[doc(hidden)]
pub use joins::change_item::{Around, ChangeItem};
pub use joins::late::{BehindWatermark, InTime, OrLate};
pub use joins::versions::Version;
pub use millstream_pool::{
    Class, Decision, Measured, MemberView, Meter, Objective, ObjectiveView, Pool, PoolView,
};
pub use parts::{Flatten, Parts};
pub use ranks::asking::AskError;
pub use ranks::message::Message;
pub use ranks::plain::Plain;
pub use run::elements::{ElementStorage, StateElement};
pub use run::running::{LateEvents, LateSource, Running, Summary};
pub use run::scheduler::{Pick, Priority, RoundRobin, Scheduler, StageView, Stages};
pub use run::settings::{FlowSettings, Order};
pub use run::state_reads::Asked;
pub use run::state_request::{Progress, StateAnswer, StateRequest};
pub use run::waits::Wait;
pub use sinks::dead_letter::{DeadLetter, DeadLetters, Origin};
pub use sinks::sink::{Sink, SinkStart};
pub use sources::positions::{Position, Positions};
pub use sources::source::{Output, Source, SourceStatus};
pub use stage::chain::{Chain, Emit, Same};
pub use stage::channel::Channel;
#[doc(hidden)]
pub use stage::ends::keyed_item::KeyedItem;
pub use stage::metrics::{Latency, StageMetrics};
pub use stage::ring_input::RingInput;
pub use stage::row::RowStart;
pub use stage::source_input::SourceInput;
pub use state::change::Change;
pub use state::changelog_reader::{ChangelogReader, RestoreChange, ValuePage};
pub use state::collected::Collected;
pub use state::counters::{CounterOf, Counters};
pub use state::element::{Element, PartialElement};
pub use state::greatest::{
    Greatest, GreatestEntries, GreatestQuery, SearchError, VALUES_BYTES_MAX,
};
pub use state::late::LateTo;
pub use state::lists::{ListOf, Lists};
#[doc(hidden)]
pub use state::lockable::Lockable;
pub use state::lookups::{KeyLookup, Lookups};
pub use state::maps::{MapOf, Maps};
pub use state::matrices::{Matrices, RowOf};
pub use state::memory::StateMemory;
pub use state::ordered::{OrderedState, ReadLevel, StateEntry, StatePage, StateValue, WouldWait};
pub use state::ordered_maps::{OrderedMapOf, OrderedMaps};
pub use state::partial::{Counts, Partial, PartialState, StateReader};
pub use state::partial_map::PartialMap;
pub use state::partial_matrix::{PartialMatrix, PartialMatrixOf};
pub use state::sets::{SetOf, Sets};
pub use state::size::StateSize;
pub use state::table::Table;
pub use state::timers::{Fired, TimeDomain, Timers, TimersOf};
pub use state::tops::{Score, TopOf, Tops};
pub use state::values::{Value, Values};
pub use state::vectors::{VectorOf, Vectors};
pub use state::watched::{
    ChangelogWatch, NotWatched, ShownChange, WatchError, WatchFuture, WatchedChangelog,
    WatchedElement,
};
pub use state::windowed::Windowed;
pub use time::partitions::{PartitionId, Partitions, SourcePartitions};
pub use time::watermarks::Watermarks;
pub use windows::Key;
