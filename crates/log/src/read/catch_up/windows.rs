//! Parts of groups' files in the catch-up memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use millstream_base::Position;
use millstream_base::disk::PAGE_BYTES;

use crate::group::Group;
use crate::memory::buffer::Slice;

/// The most bytes of a window, unless one chunk is larger.
pub const WINDOW_BYTES: usize = 1 << 20;

/// Windows that no reader has come to take at most this part of the catch-up memory.
pub const AHEAD_SHARE: usize = 2;

/// A window that was read ahead counts as abandoned when readers have come to this many others since.
const ABANDONED_AFTER: u64 = 64;

/// The windows that memory has or is about to have.
#[derive(Default)]
pub struct Windows {
    by_start: BTreeMap<WindowKey, Window>,
}

/// A group, by the address of the one that the window keeps alive, and the window's first position in it.
pub type WindowKey = (usize, Position);

pub fn key(group: &Arc<Group>, start: Position) -> WindowKey {
    (Arc::as_ptr(group) as usize, start)
}

pub struct Window {
    /// Held so that no other group gets its address.
    group: Arc<Group>,
    pub start: Position,
    pub end: Position,
    /// `None` while it is loaded.
    slice: Option<Slice>,
    /// Whether a reader has come to it.
    is_read: bool,
    /// The turn at which it was planned, or a reader came to it last.
    used: u64,
}

impl Window {
    /// Returns its bytes from a position in it on; `None` while it is loaded.
    pub fn read(&mut self, from: Position, turn: u64) -> Option<Slice> {
        let slice = self.slice.as_ref()?;
        (self.is_read, self.used) = (true, turn);
        Some(slice.slice((from.0 - self.start.0) as usize..slice.len()))
    }

    /// Whether nothing but the list of windows holds its memory.
    fn is_idle(&self) -> bool {
        self.slice.as_ref().is_some_and(Slice::is_only_one)
    }
}

/// The windows that may be dropped to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayGo {
    /// Any.
    All,
    /// Windows that a reader has reached, and windows that no reader will reach.
    ReadAndAbandoned,
    /// Windows that no reader will reach.
    Abandoned,
}

impl Windows {
    /// The window that holds a position.
    pub fn at(&mut self, group: &Arc<Group>, at: Position) -> Option<&mut Window> {
        let of_group = key(group, Position(0))..=key(group, at);
        let (_, window) = self.by_start.range_mut(of_group).next_back()?;
        (at < window.end).then_some(window)
    }

    /// Adds a window that is being loaded, and returns its range: it ends where another one begins.
    pub fn add(
        &mut self,
        group: &Arc<Group>,
        range: Range<Position>,
        is_read: bool,
        turn: u64,
    ) -> Range<Position> {
        let behind = key(group, range.start)..key(group, range.end);
        let next = self.by_start.range(behind).next();
        let end = next.map_or(range.end, |(_, next)| next.start);
        let window = Window {
            group: Arc::clone(group),
            start: range.start,
            end,
            slice: None,
            is_read,
            used: turn,
        };
        self.by_start.insert(key(group, range.start), window);
        range.start..end
    }

    /// Notes the loaded bytes of a window: perhaps fewer than planned.
    pub fn loaded(&mut self, key: &WindowKey, slice: Slice) {
        if let Some(window) = self.by_start.get_mut(key) {
            window.end = window.start.plus(slice.len() as u64);
            window.slice = Some(slice);
        }
    }

    /// Forgets a window that could not be loaded.
    pub fn remove_unloaded(&mut self, key: &WindowKey) {
        if self
            .by_start
            .get(key)
            .is_some_and(|window| window.slice.is_none())
        {
            self.by_start.remove(key);
        }
    }

    /// Forgets all that are loaded.
    pub fn clear(&mut self) {
        self.by_start.retain(|_, window| window.slice.is_none());
    }

    /// Forgets the windows of a group that are loaded.
    pub fn forget_group(&mut self, group: &Arc<Group>) {
        self.by_start
            .retain(|_, window| window.slice.is_none() || !Arc::ptr_eq(&window.group, group));
    }

    pub fn are_loading(&self) -> bool {
        self.by_start.values().any(|window| window.slice.is_none())
    }

    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Bytes of memory of windows that no reader has come to.
    pub fn unread_bytes(&self) -> usize {
        let windows = self.by_start.values();
        let unread = windows.filter(|window| !window.is_read);
        unread
            .map(|window| block_bytes(&(window.start..window.end)))
            .sum()
    }

    /// Forgets one of the windows that only this list holds: one that was read rather than one that was
    /// not, and of those the one that was used longest ago. `false` when there is none.
    pub fn forget_one(&mut self, which: MayGo, turn: u64) -> bool {
        let may_go = |window: &Window| match which {
            MayGo::All => true,
            _ if window.used + ABANDONED_AFTER < turn => true,
            MayGo::ReadAndAbandoned => window.is_read,
            MayGo::Abandoned => false,
        };
        let idle = self.by_start.iter();
        let idle = idle.filter(|(_, window)| window.is_idle() && may_go(window));
        let oldest = idle.min_by_key(|(_, window)| (!window.is_read, window.used));
        let Some(oldest) = oldest.map(|(key, _)| *key) else {
            return false;
        };
        self.by_start.remove(&oldest).is_some()
    }
}

/// The bytes of memory that a window takes: whole pages are read.
pub fn block_bytes(range: &Range<Position>) -> usize {
    let page = PAGE_BYTES as u64;
    let start = range.start.0 - range.start.0 % page;
    (range.end.0.next_multiple_of(page) - start) as usize
}
