//! Windows as readers see them, also those of a changelog.

use millstream_base::key::decode_key;
use serde::Serialize;
use serde_json::{Value, json};

use super::aggregate::Combine;
use super::cell::Cell;
use super::entry::{Entry, EntryId, Window};
use super::grid::{Grid, SlidingGrid, clamp};
use super::key::Key;
use super::released::WindowResult;
use super::sessions;
use super::spec::{Kind, Trigger, When, Windows};
use crate::error::BoxError;

/// An entry of a changelog.
pub(crate) struct ShownEntry<K> {
    pub key: K,
    /// Names the entry among those of its key.
    pub entry: Value,
    /// Its content; `None` if it was deleted.
    pub value: Option<Value>,
}

/// The first moment of a pane or window, and the first one after it.
type Span = (i64, i64);

/// Of windows without an end.
const FOR_EVER: Span = (i64::MIN, i64::MAX);

/// Returns a window for readers.
///
/// # Errors
/// When JSON cannot hold its result.
pub(crate) fn shown<K, O: Serialize>(window: &WindowResult<K, O>) -> serde_json::Result<Value> {
    // `json!` would panic at a result that JSON cannot hold.
    let value = serde_json::to_value(&window.value)?;
    Ok(json!({
        "window_start": window.start,
        "window_end": window.end,
        "value": value,
        "events": window.events,
    }))
}

impl Windows {
    /// Decodes an entry of a changelog of these windows.
    pub(crate) fn show<K: Key, A: Combine>(
        &self,
        aggregate: &A,
        id: &[u8],
        content: Option<&[u8]>,
    ) -> Result<ShownEntry<K>, BoxError> {
        let id: EntryId<K> = decode_key(id)?;
        let span = self.span(&id);
        let content = content.map(postcard::from_bytes).transpose()?;
        let value = content.map(|content| self.content(aggregate, span, &content));
        let value = value.transpose()?;
        let entry = self.name(&id, span);
        let (EntryId::Pane { key, .. }
        | EntryId::Kept { key, .. }
        | EntryId::Key { key }
        | EntryId::Released { key }) = id;
        Ok(ShownEntry { key, entry, value })
    }

    /// Returns the time of a pane or window that an entry names.
    fn span<K>(&self, id: &EntryId<K>) -> Span {
        let of_grid = |pane_ms: i64, index: i64| {
            let grid = Grid { pane_ms };
            (grid.start(index), grid.end(index))
        };
        match (self.kind, id) {
            (
                Kind::Tumbling { size_ms },
                EntryId::Pane { pane: index, .. } | EntryId::Kept { window: index, .. },
            ) => of_grid(size_ms, *index),
            (Kind::Sliding { size_ms, slide_ms }, EntryId::Pane { pane, .. }) => {
                of_grid(SlidingGrid::new(size_ms, slide_ms).panes.pane_ms, *pane)
            }
            (Kind::Sliding { size_ms, slide_ms }, EntryId::Kept { window, .. }) => {
                let grid = SlidingGrid::new(size_ms, slide_ms);
                (clamp(grid.start(*window)), clamp(grid.end(*window)))
            }
            (
                Kind::Global(Trigger {
                    when: When::EveryMs(period_ms),
                    ..
                }),
                EntryId::Pane { pane, .. },
            ) => of_grid(period_ms, *pane),
            _ => FOR_EVER,
        }
    }

    fn name<K>(&self, id: &EntryId<K>, (start, end): Span) -> Value {
        match (self.kind, id) {
            // Parts of one pane, for windows from different ones on.
            (
                Kind::Sliding { .. },
                EntryId::Pane {
                    first, fragment, ..
                },
            ) => {
                json!({ "kind": "pane", "start": start, "end": end, "first_window": first, "fragment": fragment })
            }
            (_, EntryId::Pane { .. }) => json!({ "kind": "open", "start": start, "end": end }),
            (_, EntryId::Kept { .. }) => json!({ "kind": "kept", "start": start, "end": end }),
            (Kind::Session { .. }, EntryId::Key { .. }) => json!({ "kind": "sessions" }),
            (_, EntryId::Key { .. }) => json!({ "kind": "all" }),
            (_, EntryId::Released { .. }) => json!({ "kind": "last" }),
        }
    }

    fn content<A: Combine>(
        &self,
        aggregate: &A,
        span: Span,
        content: &Entry<A::State>,
    ) -> serde_json::Result<Value> {
        let of = |window: &Window<A::State>| shown(&window.result(aggregate, ()));
        let of_cell = |cell: &Cell<A::State>| of(&window(span, cell));
        match content {
            Entry::Cell(cell) => of_cell(cell),
            Entry::Kept(kept) => of_cell(&kept.cell),
            Entry::Running(running) => of_cell(&running.cell),
            Entry::Released(window) => of(window),
            Entry::Sessions(all) => {
                let gap_ms = match self.kind {
                    Kind::Session { gap_ms } => gap_ms,
                    _ => 0,
                };
                let all = all.iter().map(|it| of(&sessions::window(it, gap_ms)));
                all.collect::<serde_json::Result<_>>()
            }
            // Panes that a run without a changelog has added up: the sum is not one of a window.
            Entry::Panes(_) => Ok(Value::Null),
        }
    }
}

fn window<S: Clone>((start, end): Span, cell: &Cell<S>) -> Window<S> {
    Window {
        start,
        end,
        cell: cell.clone(),
        is_update: false,
        mark: 0,
    }
}
