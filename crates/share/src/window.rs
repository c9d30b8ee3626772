//! Tracks which of the published descriptors are finished.

/// The finished descriptors of a ring, in any order. Progress goes up to the first unfinished one.
#[derive(Debug)]
pub struct Window {
    /// All descriptors before this one are finished.
    progress: u64,
    /// A bit for each of the `entries` descriptors from `progress` on, at its sequence modulo `entries`:
    /// whether it is finished. The ring cannot hand out more at one time.
    finished: Box<[u64]>,
    entries: u64,
}

/// The length of the finished prefix, before and now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub before: u64,
    pub now: u64,
}

impl Window {
    /// Creates the window of a ring with `entries` descriptors, a power of two.
    pub fn new(entries: u32) -> Window {
        Window {
            progress: 0,
            finished: vec![0; entries.div_ceil(u64::BITS) as usize].into(),
            entries: u64::from(entries),
        }
    }

    /// Finishes a descriptor, once. Returns the progress if it moved; `None` while an earlier descriptor is
    /// unfinished.
    pub fn finish(&mut self, sequence: u64) -> Option<Moved> {
        let (word, bit) = self.place(sequence);
        self.finished[word] |= bit;
        let before = self.progress;
        loop {
            let (word, bit) = self.place(self.progress);
            if self.finished[word] & bit == 0 {
                break;
            }
            self.finished[word] &= !bit;
            self.progress += 1;
        }
        let now = self.progress;
        (now > before).then_some(Moved { before, now })
    }

    fn place(&self, sequence: u64) -> (usize, u64) {
        let index = sequence & (self.entries - 1);
        let bits = u64::from(u64::BITS);
        ((index / bits) as usize, 1 << (index % bits))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn progress_counts_the_longest_finished_prefix() {
        let mut window = Window::new(4);
        assert_eq!(window.finish(1), None);
        assert_eq!(window.finish(3), None);
        assert_eq!(window.finish(0), Some(Moved { before: 0, now: 2 }));
        assert_eq!(window.finish(4), None);
        assert_eq!(window.finish(2), Some(Moved { before: 2, now: 5 }));
    }

    proptest! {
        #[test]
        fn a_window_equals_a_model_set_for_any_order_of_finishing(
            entries_log in 0u32..9,
            choices in prop::collection::vec(any::<prop::sample::Index>(), 1..500),
        ) {
            let entries = 1u32 << entries_log;
            let mut window = Window::new(entries);
            let mut held = BTreeSet::new();
            let (mut next, mut progress) = (0u64, 0u64);
            for choice in choices {
                // Fills the ring, as a busy broker does.
                held.extend(next..progress + u64::from(entries));
                next = progress + u64::from(entries);
                let sequence = *choice.get(&held.iter().copied().collect::<Vec<_>>());
                held.remove(&sequence);
                let expected = held.first().copied().unwrap_or(next);
                let moved = (expected > progress).then_some(Moved { before: progress, now: expected });
                prop_assert_eq!(window.finish(sequence), moved);
                progress = expected;
            }
        }
    }
}
