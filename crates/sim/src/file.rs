//! The content of one file: the cached state, the durable state, and the unsynced changes between them.
//!
//! A sector on the medium holds one of the states that it had in memory since the last sync: when a
//! change of a sector survives, so do the earlier changes of the same sector. Beyond that, sectors
//! are written back in any order. Changes of length and reservation are metadata and survive in the
//! order in which they were made; a write that extends the file brings its own length with it.

use std::ops::Range;
use std::sync::Arc;

use crate::Rng;

/// The size of a sector, which a disk writes wholly or not at all.
pub const SECTOR_BYTES: usize = 512;

/// The bytes of a file, and the length for which room is reserved.
#[derive(Debug, Clone, Default)]
pub(crate) struct Content {
    /// Shared by the cached state, the durable state and all images, until one of them changes it.
    bytes: Arc<Vec<u8>>,
    reserved: usize,
}

impl Content {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes that the content takes of the disk. Holes take room too.
    pub(crate) fn room(&self) -> usize {
        self.bytes.len().max(self.reserved)
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { at, bytes } => self.write(*at, bytes),
            Change::SetLen { len, .. } => self.set_len(*len),
            Change::Reserve { len } => self.reserved = self.reserved.max(*len),
        }
    }

    fn write(&mut self, at: usize, part: &[u8]) {
        let bytes = Arc::make_mut(&mut self.bytes);
        if bytes.len() <= at {
            bytes.resize(at, 0);
            bytes.extend_from_slice(part);
        } else {
            let end = at + part.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[at..end].copy_from_slice(part);
        }
    }

    fn set_len(&mut self, len: usize) {
        if len < self.bytes.len() {
            self.reserved = self.reserved.min(len);
        }
        Arc::make_mut(&mut self.bytes).resize(len, 0);
    }
}

/// A change of a file that is not durable yet.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Write { at: usize, bytes: Arc<Vec<u8>> },
    SetLen { len: usize, shrinks: bool },
    Reserve { len: usize },
}

impl Change {
    /// The room that `content` takes once it is changed.
    pub(crate) fn room_after(&self, content: &Content) -> usize {
        match self {
            Change::Write { at, bytes } => content.room().max(at + bytes.len()),
            Change::SetLen { len, shrinks: true } => *len,
            Change::SetLen { len, .. } | Change::Reserve { len } => content.room().max(*len),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct File {
    /// The content for readers.
    cached: Content,
    /// The content of the medium after the last sync.
    durable: Content,
    /// The changes of `cached` since then, in order.
    unsynced: Vec<Change>,
}

/// The fate of one unsynced change in a crash.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Survives,
    /// Some sectors survive, possibly none.
    Torn,
}

impl File {
    /// A file whose content is durable.
    pub(crate) fn durable(content: Content) -> Self {
        File {
            cached: content.clone(),
            durable: content,
            unsynced: Vec::new(),
        }
    }

    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Self {
        File::durable(Content {
            bytes: Arc::new(bytes),
            reserved: 0,
        })
    }

    pub(crate) fn cached(&self) -> &Content {
        &self.cached
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.unsynced.is_empty()
    }

    pub(crate) fn change(&mut self, change: Change) {
        self.cached.apply(&change);
        self.unsynced.push(change);
    }

    pub(crate) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            self.durable.apply(&change);
        }
    }

    /// Fails a sync as Linux does: the changes stay visible but count as written, so no later sync
    /// writes them. This decides how much of them the medium has.
    pub(crate) fn fail_sync(&mut self, rng: &mut Rng) {
        self.durable = self.after_crash(rng);
        self.unsynced.clear();
    }

    /// The content of the medium after a crash.
    pub(crate) fn after_crash(&self, rng: &mut Rng) -> Content {
        if self.unsynced.is_empty() {
            return self.durable.clone();
        }
        let mut fates = draw_fates(self.unsynced.len(), rng);

        // Step 1: the version of each sector. 0 is the durable one, n the one after change n.
        let mut versions = vec![0; self.sectors_max()];
        let mut torn_ends = vec![None; fates.len()];
        let mut metadata_survives = true;
        let mut lost_cut = usize::MAX;
        for (index, change) in self.unsynced.iter().enumerate() {
            let fate = fates[index];
            if let Change::Write { at, bytes } = change {
                // If a truncation is lost, the sectors behind it still have their old content.
                let end = (at + bytes.len()).min(lost_cut.max(*at));
                let chance = rng.u8(..);
                for sector in sectors(*at..end) {
                    if fate == Fate::Survives || fate == Fate::Torn && rng.u8(..) < chance {
                        versions[sector] = index + 1;
                    }
                }
                let extended = fate == Fate::Torn && end == at + bytes.len() && rng.bool();
                torn_ends[index] = extended.then_some(end);
                continue;
            }
            metadata_survives &= fate != Fate::Lost;
            fates[index] = if metadata_survives {
                Fate::Survives
            } else {
                Fate::Lost
            };
            if let Change::SetLen { len, shrinks: true } = change {
                if metadata_survives {
                    let cut = len.div_ceil(SECTOR_BYTES).min(versions.len());
                    versions[cut..].fill(index + 1);
                } else {
                    lost_cut = lost_cut.min(len.next_multiple_of(SECTOR_BYTES));
                }
            }
        }

        // Step 2: apply the changes as far as the versions go.
        let mut content = self.durable.clone();
        for (index, change) in self.unsynced.iter().enumerate() {
            let survives = |sector: &usize| versions[*sector] > index;
            match change {
                Change::Write { at, bytes } => {
                    let range = *at..at + bytes.len();
                    for sector in sectors(range.clone()).filter(survives) {
                        let part = part_in(sector, &range);
                        content.write(part.start, &bytes[part.start - at..part.end - at]);
                    }
                    if let Some(end) = torn_ends[index]
                        && end > content.bytes.len()
                    {
                        content.set_len(end);
                    }
                }
                _ if fates[index] == Fate::Survives => content.apply(change),
                Change::SetLen { len, shrinks: true } => {
                    // The sector with the new end was written later, with zeros behind the end.
                    let rest = *len..len.next_multiple_of(SECTOR_BYTES);
                    let rest = rest.start..rest.end.min(content.bytes.len());
                    if !rest.is_empty() && survives(&(len / SECTOR_BYTES)) {
                        Arc::make_mut(&mut content.bytes)[rest].fill(0);
                    }
                }
                Change::SetLen { .. } | Change::Reserve { .. } => {}
            }
        }

        // Step 3: blocks that were allocated and never written show their former content.
        if rng.u8(..4) == 0 {
            self.fill_with_garbage(&mut content, &versions, rng);
        }
        content
    }

    /// Puts garbage where a lost write would have extended the file, as far as the file reaches.
    fn fill_with_garbage(&self, content: &mut Content, versions: &[usize], rng: &mut Rng) {
        let durable_end = self.durable.bytes.len().next_multiple_of(SECTOR_BYTES);
        let bytes = Arc::make_mut(&mut content.bytes);
        for change in &self.unsynced {
            let Change::Write { at, bytes: written } = change else {
                continue;
            };
            let range = (*at).max(durable_end)..(at + written.len()).min(bytes.len());
            for sector in sectors(range.clone()).filter(|sector| versions[*sector] == 0) {
                rng.fill(&mut bytes[part_in(sector, &range)]);
            }
        }
    }

    /// The largest number of sectors since the last sync.
    fn sectors_max(&self) -> usize {
        let ends = self.unsynced.iter().map(|change| match change {
            Change::Write { at, bytes } => at + bytes.len(),
            Change::SetLen { len, .. } => *len,
            Change::Reserve { .. } => 0,
        });
        let end = ends.max().unwrap_or(0).max(self.durable.bytes.len());
        end.div_ceil(SECTOR_BYTES)
    }
}

/// Draws fates that are often simple: no change survives, or all, or all up to a moment; otherwise each
/// change has its own fate.
fn draw_fates(count: usize, rng: &mut Rng) -> Vec<Fate> {
    let until = match rng.u8(..6) {
        0 => 0,
        1 => count,
        2 | 3 => rng.usize(..count),
        _ => {
            let fates = [Fate::Lost, Fate::Survives, Fate::Torn];
            return (0..count).map(|_| fates[rng.usize(..3)]).collect();
        }
    };
    let torn = until > 0 || rng.bool();
    (0..count)
        .map(|index| match index.cmp(&until) {
            std::cmp::Ordering::Less => Fate::Survives,
            std::cmp::Ordering::Equal if torn => Fate::Torn,
            _ => Fate::Lost,
        })
        .collect()
}

/// The sectors that a range of bytes touches.
fn sectors(range: Range<usize>) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES)
}

/// The part of `range` that lies in `sector`.
fn part_in(sector: usize, range: &Range<usize>) -> Range<usize> {
    let start = sector * SECTOR_BYTES;
    start.max(range.start)..(start + SECTOR_BYTES).min(range.end)
}
