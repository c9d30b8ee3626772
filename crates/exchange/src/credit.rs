//! Credit: bounds the bytes in flight on a channel.

/// The largest message, in bytes. Split longer ones.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// The credit that a message costs beyond its own bytes: about its memory in queues. So the memory of many small
/// messages, even of empty ones, is bounded as well.
pub const MESSAGE_OVERHEAD_BYTES: u64 = 64;

/// The bytes that may be under way on a channel, or lie with its receiver. Both ends know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    bytes: u64,
}

impl Credit {
    pub fn new(bytes: u64) -> Credit {
        Credit { bytes }
    }

    /// Returns the credit that a message of `length` bytes costs.
    pub fn cost(length: usize) -> u64 {
        length as u64 + MESSAGE_OVERHEAD_BYTES
    }

    /// Returns the least amount that the receiver gives back at once, so that there are few messages of credit.
    pub fn batch(self) -> u64 {
        (self.bytes / 4).max(1)
    }

    /// Returns whether a message of this cost may be sent while `taken` of the credit is in use.
    ///
    /// The receiver may withhold up to a batch for ever. So when less than that is taken, every message is
    /// admitted: otherwise a message that costs nearly the whole credit or more could never be sent.
    pub fn admits(self, taken: u64, cost: u64) -> bool {
        taken.saturating_add(cost) <= self.bytes || taken < self.batch()
    }

    /// Returns the bytes of the largest message for which there is credit, while `taken` of it is in use.
    pub fn room(self, taken: u64) -> usize {
        let bytes = self
            .bytes
            .saturating_sub(taken.saturating_add(MESSAGE_OVERHEAD_BYTES));
        usize::try_from(bytes).map_or(MESSAGE_BYTES_MAX, |bytes| bytes.min(MESSAGE_BYTES_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_that_the_receiver_has_yet_to_return_never_blocks_an_admissible_message() {
        for bytes in [0, 1, 3, 4, 100, 1 << 20] {
            let credit = Credit::new(bytes);
            for cost in [64, bytes, bytes + 1, 10 * bytes + 64] {
                assert!(credit.admits(credit.batch() - 1, cost), "{bytes} {cost}");
            }
        }
    }

    #[test]
    fn a_sender_admits_a_message_that_fits_the_reported_room() {
        let credit = Credit::new(1000);
        assert_eq!(credit.room(0), 936);
        assert_eq!(credit.room(900), 36);
        assert!(credit.admits(900, Credit::cost(36)));
        assert!(!credit.admits(900, Credit::cost(37)));
        assert_eq!(credit.room(990), 0);
        assert!(!credit.admits(990, Credit::cost(0)));
        assert_eq!(credit.room(5000), 0);
    }
}
