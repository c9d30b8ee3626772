//! The age of an entry.

/// The last change of an entry, and whether the entry was used since the hand has passed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64);

const USED: u64 = 1 << 63;

impl Stamp {
    /// The changelog has had the value since before the run, and it was not used.
    pub const CLEAN: Stamp = Stamp(0);

    /// A scan has read the value, which may not be the newest one. Once a scan has ended well, it is as good as clean.
    pub const STAGED: Stamp = Stamp(USED - 1);

    /// The entry is used now, and has changed in the segment of the history that has this number.
    pub fn changed_in(number: u64) -> Stamp {
        Stamp(number | USED)
    }

    /// The value was read from the changelog now.
    pub fn loaded() -> Stamp {
        Stamp(USED)
    }

    /// Returns the number of the segment of the last change; 0 for none.
    pub fn number(self) -> u64 {
        match self {
            Stamp::STAGED => 0,
            Stamp(bits) => bits & !USED,
        }
    }

    /// The hand passes. Returns whether the entry was used since it has passed before.
    pub fn pass(&mut self) -> bool {
        let was_used = self.0 & USED != 0;
        self.0 &= !USED;
        was_used
    }
}
