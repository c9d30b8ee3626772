//! Producer ids, of which each is given once.

use millstream_base::ProducerId;

use super::TransactionError;
use super::config::PRODUCER_ID_BLOCK;

/// Gives out producer ids. The log holds only the end of the reserved ids, so each block of ids takes one record; a
/// restart skips the unused ids of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ProducerIds {
    next: i64,
    reserved_end: i64,
}

impl ProducerIds {
    /// Continues at the end of the reserved ids.
    pub fn restore(reserved_end: ProducerId) -> Self {
        ProducerIds {
            next: reserved_end.0,
            reserved_end: reserved_end.0,
        }
    }

    /// The first id that is not reserved.
    pub fn reserved_end(&self) -> ProducerId {
        ProducerId(self.reserved_end)
    }

    /// A new id, and whether more had to be [reserved](Self::reserved_end) for it.
    pub fn next(&mut self) -> Result<(ProducerId, bool), TransactionError> {
        let is_reserving = self.next == self.reserved_end;
        if is_reserving {
            let end = self.reserved_end.checked_add(PRODUCER_ID_BLOCK);
            self.reserved_end = end.ok_or(TransactionError::UnknownServerError)?;
        }
        let id = ProducerId(self.next);
        self.next += 1;
        Ok((id, is_reserving))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_reserved_in_blocks() {
        let mut ids = ProducerIds::default();
        let given: Vec<_> = (0..=PRODUCER_ID_BLOCK)
            .map(|_| ids.next().unwrap())
            .collect();
        let reserving = given.iter().filter(|(_, is_reserving)| *is_reserving);
        let reserving: Vec<_> = reserving.map(|(id, _)| id.0).collect();
        assert_eq!(reserving, [0, PRODUCER_ID_BLOCK]);
        assert!(given.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(ids.reserved_end(), ProducerId(2 * PRODUCER_ID_BLOCK));
    }

    #[test]
    fn exhausted_producer_ids_are_an_error() {
        let mut ids = ProducerIds::restore(ProducerId(i64::MAX - 1));
        assert_eq!(ids.next(), Err(TransactionError::UnknownServerError));
        assert_eq!(ids.next(), Err(TransactionError::UnknownServerError));
    }
}
