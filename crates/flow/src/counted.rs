//! Count windows: aggregates of the last items of each key, by their number.
//!
//! [`Keyed::count_windows`](crate::Keyed::count_windows) emits them as [`CountWindow`]. The rest of this module is its work,
//! for libraries over this one.

mod records;
mod sizes;
mod step;

use serde::{Deserialize, Serialize};

pub use records::{CountHead, CountRecord};
pub use sizes::CountSizes;
pub use step::CountStep;

use crate::windows::All;

/// The result of a count window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "K: Serialize + 'static, O: Serialize"))]
pub struct CountWindow<K, O> {
    /// The key. Serialized it is left out where it is [`All`], which carries no information.
    #[serde(skip_serializing_if = "All::is")]
    pub key: K,
    /// The aggregate's result.
    pub value: O,
    /// The number of items in the window: its size, or fewer while the key has not had as many.
    pub events: u64,
    /// The number of the window's last item among all items of the key, counted from 1.
    pub last: u64,
}
