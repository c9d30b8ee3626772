//! The sizes of count windows, and the arithmetic of their fragments.

use serde::{Deserialize, Serialize};

/// The number of items in a count window, and the number of items from the end of one window to the end of the next.
///
/// The items between two ends of windows, or between an end and the next beginning of a window, are a fragment. There are at
/// most two for each slide: the "paired windows" of Krishnamurthy, Wu and Franklin, "On-the-fly sharing for streamed
/// aggregation" (SIGMOD 2006), section 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountSizes {
    /// At least 1.
    size: u64,
    /// At least 1.
    slide: u64,
}

impl CountSizes {
    pub(crate) const ONE: CountSizes = CountSizes { size: 1, slide: 1 };

    /// Returns the sizes; `None` if one of them is 0.
    pub fn new(size: u64, slide: u64) -> Option<CountSizes> {
        (size > 0 && slide > 0).then_some(CountSizes { size, slide })
    }

    /// Whether windows have no items in common.
    pub(super) fn are_apart(self) -> bool {
        self.size <= self.slide
    }

    /// Whether the item behind `items` items is in a window, where windows are apart.
    pub(super) fn has_next(self, items: u64) -> bool {
        items % self.slide >= self.slide - self.size
    }

    /// Whether a window ends behind `items` items.
    pub(super) fn ends_at(self, items: u64) -> bool {
        items.is_multiple_of(self.slide)
    }

    /// Returns the number of items of the window that ends behind `items` items.
    pub(super) fn events(self, items: u64) -> u64 {
        items.min(self.size)
    }

    /// Returns the number of whole fragments of the first `items` items.
    pub(super) fn fragments(self, items: u64) -> u64 {
        let (slides, rest) = (items / self.slide, items % self.slide);
        match self.size % self.slide {
            0 => slides,
            cut => 2 * slides + u64::from(rest >= self.slide - cut),
        }
    }

    /// Returns the number of the first fragment of the window that ends behind `items` items.
    pub(super) fn first_fragment(self, items: u64) -> u64 {
        self.fragments(items.saturating_sub(self.size))
    }

    /// Returns the most fragments of a window.
    pub(super) fn fragments_max(self) -> u64 {
        let slides = self.size / self.slide;
        match self.size % self.slide {
            0 => slides,
            _ => slides.saturating_mul(2).saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_consist_of_whole_fragments() {
        for size in 1..20 {
            for slide in 1..size {
                let sizes = CountSizes::new(size, slide).unwrap();
                for items in (0..200).filter(|items| sizes.ends_at(*items)) {
                    // A fragment ends where the number of whole ones grows.
                    let is_edge =
                        |at: u64| at == 0 || sizes.fragments(at) > sizes.fragments(at - 1);
                    let begin = items.saturating_sub(size);
                    assert!(is_edge(items) && is_edge(begin), "{sizes:?} at {items}");
                    let fragments = sizes.fragments(items) - sizes.first_fragment(items);
                    assert!(fragments <= sizes.fragments_max());
                    assert!(fragments <= 2 * sizes.events(items).div_ceil(slide));
                }
            }
        }
    }

    #[test]
    fn sizes_of_zero_are_none_and_large_ones_do_not_overflow() {
        assert_eq!(CountSizes::new(0, 1), None);
        assert_eq!(CountSizes::new(1, 0), None);
        let sizes = CountSizes::new(u64::MAX, 2).unwrap();
        assert_eq!(sizes.fragments_max(), u64::MAX);
        assert_eq!(
            (sizes.first_fragment(1_000), sizes.fragments(1_000)),
            (0, 1_000)
        );
    }
}
