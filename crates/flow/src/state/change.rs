//! A change of a state element, as its changelog keeps it.

/// A change of a key of a state element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key, in its canonical encoding; it may be empty.
    pub key: Vec<u8>,
    /// The encoded value; `None` deletes the key.
    pub value: Option<Vec<u8>>,
    /// The checkpoint that the change belongs to. The changelog keeps it beside the change.
    pub checkpoint: u64,
    /// The event time, in milliseconds, from which on no run needs the change; `None` if a run may always need it. The
    /// changelog may drop it once that has [passed](crate::Changelog::passed).
    pub expires: Option<i64>,
}

impl Change {
    /// Returns the bytes of its key and value.
    pub(crate) fn bytes(&self) -> u64 {
        let value = self.value.as_ref().map_or(0, Vec::len);
        (self.key.len() + value) as u64
    }
}
