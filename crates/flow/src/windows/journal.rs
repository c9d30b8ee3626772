//! The entries of a window store that have changed since a checkpoint, for a changelog.
//!
//! A checkpoint cuts the store: the changes before it are written while the store goes on. An entry that changes before it
//! is written leaves its content at the cut behind. So the cut itself costs the same, however many entries have changed.

use std::hash::Hash;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use indexmap::map::Entry as Place;

use super::aggregate::Combine;
use super::cell::Cell;
use super::entry::{Entry, EntryId, Mark};

/// The changes of a window store, if they are noted. Each entry has a mark of the segment, the stretch between two cuts,
/// that it was changed in last.
#[derive(Debug)]
pub(super) struct Journal<K, S>(Option<Box<Changes<K, S>>>);

#[derive(Debug)]
struct Changes<K, S> {
    /// The number of the present segment, from 1 on.
    segment: Mark,
    /// The changelog has the changes of the segments before this one.
    unwritten_from: Mark,
    /// The last cut; of a run that resumed, at first the checkpoint that it resumed from.
    checkpoint: u64,
    /// The entries that have changed in the present segment.
    current: Noted<K, S>,
    /// The entries that have changed before the last cut, until they are written.
    writing: Noted<K, S>,
    /// The number of changes in the present segment, for workers.
    count: Arc<AtomicUsize>,
}

type Noted<K, S> = IndexMap<EntryId<K>, Note<S>, RandomState>;

#[derive(Debug)]
struct Note<S> {
    content: Content<S>,
    /// The changelog may have an entry, whatever the watermark.
    is_stale: bool,
}

/// Where a writer finds the content of an entry.
#[derive(Debug)]
enum Content<S> {
    /// In the store, if it is there.
    InStore,
    /// The entry has changed since the cut. `None` if it was not there.
    Former(Option<Entry<S>>),
    /// The entry has become part of another one, and does not change any more.
    Frozen(Entry<S>),
}

/// A change of an entry, for the changelog.
#[derive(Debug)]
pub(super) struct EntryChange<K, S> {
    pub id: EntryId<K>,
    /// `None` if the entry is not there.
    pub content: Option<Entry<S>>,
    /// The changelog may have the entry, whatever the watermark.
    pub is_stale: bool,
}

impl<K, S> Default for Journal<K, S> {
    fn default() -> Self {
        Self(None)
    }
}

/// Changes of a copy are not noted.
impl<K, S> Clone for Journal<K, S> {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl<K: Hash + Eq + Clone, S: Clone> Journal<K, S> {
    /// Notes changes from now on. Shows in `count` how many there are in the present segment.
    pub fn begin(&mut self, count: &Arc<AtomicUsize>) {
        self.0 = Some(Box::new(Changes {
            segment: 1,
            unwritten_from: 1,
            checkpoint: 0,
            current: Noted::default(),
            writing: Noted::default(),
            count: Arc::clone(count),
        }));
    }

    /// The run continues behind a checkpoint.
    pub fn resume(&mut self, checkpoint: u64) {
        if let Some(changes) = &mut self.0 {
            changes.checkpoint = checkpoint;
        }
    }

    /// Whether the changelog lacks changes before the last cut of this mark.
    pub fn is_unwritten(&self, mark: Mark) -> bool {
        let changes = self.0.as_ref();
        changes.is_some_and(|it| (it.unwritten_from..it.segment).contains(&mark))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the fragment of entries that are made now: no entry that is made behind another cut has the same.
    pub fn fragment(&self) -> u32 {
        self.0.as_ref().map_or(0, |it| it.checkpoint as u32)
    }

    /// Returns the mark of entries that change now; 0 if changes are not noted.
    pub fn segment(&self) -> Mark {
        self.0.as_ref().map_or(0, |it| it.segment)
    }

    /// An entry is about to change; `former` returns its content, `None` if it is made now.
    #[inline]
    pub fn changes(
        &mut self,
        mark: &mut Mark,
        id: impl FnOnce() -> EntryId<K>,
        former: impl FnOnce() -> Option<Entry<S>>,
    ) {
        if let Some(changes) = &mut self.0
            && *mark != changes.segment
        {
            changes.note(*mark, id(), former);
            *mark = changes.segment;
        }
    }

    /// An entry is removed since the watermark has passed its end; the changelog drops it by its own end.
    #[inline]
    pub fn ends(
        &mut self,
        mark: Mark,
        id: impl FnOnce() -> EntryId<K>,
        former: impl FnOnce() -> Entry<S>,
    ) {
        if let Some(changes) = &mut self.0
            && (changes.unwritten_from..changes.segment).contains(&mark)
        {
            changes.leave(mark, &id(), former);
        }
    }

    /// An entry is removed before its end.
    pub fn removes(
        &mut self,
        mark: Mark,
        id: impl FnOnce() -> EntryId<K>,
        former: impl FnOnce() -> Entry<S>,
    ) {
        if let Some(changes) = &mut self.0 {
            changes.note(mark, id(), || Some(former()));
        }
    }

    /// An entry becomes part of another one, which is restored from both.
    pub fn freezes<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        mark: Mark,
        id: impl FnOnce() -> EntryId<K>,
        cell: &Cell<S>,
    ) {
        let Some(changes) = self.0.as_mut().filter(|it| mark >= it.unwritten_from) else {
            return;
        };
        let noted = match mark == changes.segment {
            true => &mut changes.current,
            false => &mut changes.writing,
        };
        match noted.get_mut(&id()).map(|note| &mut note.content) {
            // Another entry of this name has become part of it before.
            Some(Content::Frozen(Entry::Cell(frozen))) => frozen.merge(aggregate, cell),
            Some(content) => *content = Content::Frozen(Entry::Cell(cell.clone())),
            None => {}
        }
    }

    /// Notes an entry that does not change any more.
    pub fn note_frozen(&mut self, id: EntryId<K>, entry: Entry<S>) {
        self.insert(id, Content::Frozen(entry), false);
    }

    /// The changelog has this entry, which may be another one in the store, or none.
    pub fn note_stale(&mut self, id: EntryId<K>) {
        self.insert(id, Content::InStore, true);
    }

    fn insert(&mut self, id: EntryId<K>, content: Content<S>, is_stale: bool) {
        if let Some(changes) = &mut self.0 {
            changes.current.insert(id, Note { content, is_stale });
            changes.count_current();
        }
    }

    /// Changes from now on are behind the checkpoint. It has the changes of one that failed, too.
    pub fn cut(&mut self, checkpoint: u64) {
        if let Some(changes) = &mut self.0 {
            changes.cut(checkpoint);
        }
    }

    /// Returns the change at this place, of those before the last cut; `None` behind the last one. `find` finds an entry in
    /// the store.
    pub fn change(
        &self,
        place: usize,
        find: impl FnOnce(&EntryId<K>) -> Option<Entry<S>>,
    ) -> Option<EntryChange<K, S>> {
        let (id, note) = self.0.as_ref()?.writing.get_index(place)?;
        let content = match &note.content {
            Content::InStore => find(id),
            Content::Former(former) => former.clone(),
            Content::Frozen(entry) => Some(entry.clone()),
        };
        Some(EntryChange {
            id: id.clone(),
            content,
            is_stale: note.is_stale,
        })
    }

    /// The changelog has the changes before the last cut. The caller drops the result, which may take long, where nothing
    /// waits for it.
    pub fn written(&mut self) -> impl Sized + use<K, S> {
        self.0.as_mut().map(|changes| {
            changes.unwritten_from = changes.segment;
            mem::take(&mut changes.writing)
        })
    }
}

impl<K: Hash + Eq + Clone, S: Clone> Changes<K, S> {
    fn note(&mut self, mark: Mark, id: EntryId<K>, former: impl FnOnce() -> Option<Entry<S>>) {
        if (mark == 0 || mark >= self.unwritten_from)
            && let Some(note) = self.writing.get_mut(&id)
            && let Content::InStore = note.content
        {
            note.content = Content::Former(former());
        }
        self.current.entry(id).or_insert(Note {
            content: Content::InStore,
            is_stale: false,
        });
        self.count_current();
    }

    /// Leaves the content of an entry at the cut to the writer.
    fn leave(&mut self, mark: Mark, id: &EntryId<K>, former: impl FnOnce() -> Entry<S>) {
        debug_assert!(mark < self.segment, "it has not changed since the cut");
        if let Some(note) = self.writing.get_mut(id)
            && let Content::InStore = note.content
        {
            note.content = Content::Former(Some(former()));
        }
    }

    fn cut(&mut self, checkpoint: u64) {
        for (id, failed) in mem::take(&mut self.writing) {
            match self.current.entry(id) {
                Place::Occupied(mut newer) => newer.get_mut().is_stale |= failed.is_stale,
                Place::Vacant(place) => {
                    let content = match failed.content {
                        Content::Former(_) => Content::InStore,
                        content => content,
                    };
                    place.insert(Note { content, ..failed });
                }
            }
        }
        self.writing = mem::take(&mut self.current);
        self.segment += 1;
        self.checkpoint = checkpoint;
        self.count_current();
    }

    fn count_current(&self) {
        self.count.store(self.current.len(), Ordering::Relaxed);
    }
}
