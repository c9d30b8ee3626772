//! Messages between ranks: items, control events and barriers, in the order in which they were written.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::time::control_event::ControlEvent;

/// An item that can go to other ranks.
pub trait Message: Serialize + DeserializeOwned + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Message for T {}

#[derive(Serialize, Deserialize)]
pub enum Element<T> {
    Item(T),
    Event(ControlEvent),
    /// Everything that was sent before is part of this snapshot, and nothing that comes after.
    Barrier(u64),
    /// Nothing more comes: its input has ended, or was stopped.
    End {
        is_stopped: bool,
    },
}

/// Serialized like the value it refers to.
pub struct ByRef<'a, T>(pub &'a T);

impl<T: Serialize> Serialize for ByRef<'_, T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}
