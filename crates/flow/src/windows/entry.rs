//! The entries of a window store, as a changelog has them.

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::key_sessions::KeySessions;
use super::two_stacks::TwoStacks;

/// Names an entry of a window store. Encoded, those of a pane or window are together, in the order of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum EntryId<K> {
    /// The partial result of a key in a pane.
    Pane {
        pane: i64,
        /// The first window that counts it; of windows that are panes, the pane.
        first: i64,
        /// Tells panes apart that are the same but for the time at which they were made: see [`fragment`].
        ///
        /// [`fragment`]: super::journal::Journal::fragment
        fragment: u32,
        key: K,
    },
    /// A window of a key that was released, and is retained for late items.
    Kept { window: i64, key: K },
    /// The content of a key beside panes: its sessions, or its items since the beginning.
    Key { key: K },
    /// The window of a key that was released last.
    Released { key: K },
}

impl<K> EntryId<K> {
    /// Names an entry of a pane that is a window.
    pub fn whole_pane(pane: i64, key: K) -> Self {
        EntryId::Pane {
            pane,
            first: pane,
            fragment: 0,
            key,
        }
    }

    pub fn key(&self) -> &K {
        match self {
            EntryId::Pane { key, .. }
            | EntryId::Kept { key, .. }
            | EntryId::Key { key }
            | EntryId::Released { key } => key,
        }
    }
}

/// The content of an entry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Entry<S> {
    Cell(Cell<S>),
    Kept(KeptCell<S>),
    Sessions(KeySessions<S>),
    /// Of a run that noted no changes of them.
    Panes(TwoStacks<S>),
    Running(Running<S>),
    Released(Window<S>),
}

/// The segment of an entry's last change; 0 if it is new, or as the changelog has it.
pub(super) type Mark = u32;

/// The sum of a key's items since the beginning, in windows without an end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Running<S> {
    pub cell: Cell<S>,
    /// Items since the last result.
    pub since: u64,
    /// Of its last change.
    #[serde(skip)]
    pub mark: Mark,
}

/// The partial result of a key in a window that was released.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KeptCell<S> {
    pub cell: Cell<S>,
    /// A result was given, so the next one is an update.
    pub is_given: bool,
    /// Of its last change.
    #[serde(skip)]
    pub mark: Mark,
}

/// A window of a key, with the partial result of its items.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Window<S> {
    pub start: i64,
    pub end: i64,
    pub cell: Cell<S>,
    /// A result was given before, of the window or of a part of it.
    pub is_update: bool,
    /// Of the segment in which it was released.
    #[serde(skip)]
    pub mark: Mark,
}
