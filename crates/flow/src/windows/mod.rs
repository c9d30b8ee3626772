//! Event-time windows: their kinds, the aggregates over their items, and the stores of both.
//!
//! This folder knows no threads, rings or I/O. Items are added up by pane and key where they arise, in
//! [`LocalPanes`]; the partial results come together in the [`WindowStore`] of the partition that owns the key, and
//! it releases a window when the watermark reaches the window's end. The result of an [`Aggregate`] does not depend
//! on how items are spread over instances or in which order they come.
//!
//! ```
//! use millstream_base::Timestamp;
//! use millstream_flow::windows::{Arrival, Count, LocalPanes, WindowStore, Windows};
//!
//! let windows = Windows::tumbling(10_000);
//! let mut local = LocalPanes::new(windows);
//! let mut store = WindowStore::new(windows, 1_000);
//!
//! let mut newest = i64::MIN;
//! for (campaign, time) in [(7, 1_000), (8, 9_500), (7, 12_000), (7, 2_000)] {
//!     newest = newest.max(time);
//!     let watermark = Timestamp(newest.saturating_sub(1_000));
//!     let arrival = local.add(&Count, campaign, Timestamp(time), watermark, &());
//!     // The last item is late: its window ended when the watermark was at 11 s.
//!     assert_eq!(arrival == Arrival::Late, time == 2_000);
//! }
//!
//! let watermark = Timestamp(11_000);
//! local.flush(watermark, &mut |partial| {
//!     assert_eq!(store.merge(&Count, partial), Arrival::OnTime);
//! });
//! let mut counts = Vec::new();
//! store.advance(&Count, watermark, &mut |result| counts.push((result.key, result.value)));
//! counts.sort();
//! assert_eq!(counts, [(7, 1), (8, 1)]);
//! ```

mod aggregate;
mod cell;
mod collected;
mod distinct;
mod distinct_values;
mod entry;
mod global;
mod grid;
mod joined;
mod journal;
mod kept;
mod key;
mod key_sessions;
mod local;
mod local_items;
mod local_panes;
mod local_sessions;
mod map;
mod numbers;
mod of_value;
mod open;
mod pane_table;
mod pending;
mod quantiles;
mod released;
mod retract;
mod sessions;
mod shown;
mod size;
mod sliding;
mod spec;
mod store;
mod table;
mod top;
mod top_updated;
mod tumbling;
mod two_stacks;

pub use aggregate::{Aggregate, Combine, Count, Fold, Reduce, fold, reduce};
pub use collected::WindowEvents;
pub(crate) use collected::{EventStore, TimeOf};
pub use distinct::{Distinct, DistinctSketch};
pub use distinct_values::{DistinctValues, ExactDistinct};
pub(crate) use entry::EntryId;
pub(crate) use grid::{SlidingGrid, clamp};
pub(crate) use joined::OneSide;
pub use joined::{Joined, Side};
pub use key::{All, Key};
pub(crate) use key::{of_text, text_of};
pub use local::{Arrival, LocalPanes, Partial};
pub use numbers::{Max, Mean, Min, Number, Sum};
pub use quantiles::{QuantileBins, Quantiles};
pub use released::WindowResult;
pub use retract::{Retract, RetractableMax, RetractableMin, ValueCounts};
pub(crate) use shown::{ShownEntry, shown};
pub use size::TableSize;
pub(crate) use size::owned_bytes;
pub(crate) use spec::ClockWindows;
pub use spec::{Trigger, Windows};
pub(crate) use store::{StoreChange, StoreCursor, StoreHead};
pub use store::{WindowStore, WindowTotals};
pub(crate) use top::put as put_score;
pub use top::{Top, top};
pub(crate) use top_updated::{Ranked, TopWindows};
