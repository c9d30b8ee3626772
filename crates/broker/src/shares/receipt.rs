//! Acknowledgements in a transaction, as the metadata of a committed offset names them.
//!
//! Every client with transactions can commit an offset with a text. For a share group this text says which records the
//! transaction acknowledges, and the offset has no meaning:
//!
//! ```text
//! 17@1,18-20@2,21@1:reject
//! ```
//!
//! Each part is a record or a range of records, the delivery count that the member received, and the verdict: without
//! one, the records are accepted.

use millstream_base::{Offset, ProducerId};

use super::Refused;
use super::partition::Prepared;

/// Kafka's default bound of the metadata of an offset.
const TEXT_BYTES_MAX: usize = 4096;

/// The acknowledgement of consecutive records that were delivered equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The first record.
    pub first: Offset,
    /// The last record.
    pub last: Offset,
    /// The delivery count that the member received with the records.
    pub deliveries: u16,
    /// The records are accepted, or rejected.
    pub is_accepted: bool,
}

impl Receipt {
    /// The state of the records in a producer's transaction.
    pub(super) fn prepared(&self, producer: ProducerId) -> Prepared {
        Prepared {
            producer,
            deliveries: self.deliveries,
            is_accepted: self.is_accepted,
        }
    }

    /// Reads the receipts of a text, which are in growing order.
    ///
    /// # Errors
    /// When the text is empty or too long, does not have this form, or names a record twice.
    pub fn parse(text: &str) -> Result<Vec<Receipt>, Refused> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Refused::InvalidRequest);
        }
        let mut receipts: Vec<Receipt> = Vec::new();
        for part in text.split(',') {
            let receipt = Receipt::parse_one(part.trim()).ok_or(Refused::InvalidRequest)?;
            let before = receipts.last();
            if before.is_some_and(|before| receipt.first <= before.last) {
                return Err(Refused::InvalidRequest);
            }
            receipts.push(receipt);
        }
        Ok(receipts)
    }

    fn parse_one(part: &str) -> Option<Receipt> {
        let (part, verdict) = part.split_once(':').unwrap_or((part, "accept"));
        let is_accepted = match verdict {
            "accept" => true,
            "reject" => false,
            _ => return None,
        };
        let (records, deliveries) = part.split_once('@')?;
        let (first, last) = records.split_once('-').unwrap_or((records, records));
        let (first, last) = (number(first)?, number(last)?);
        let deliveries = u16::try_from(number(deliveries)?).ok()?;
        // The offset behind the last record is a number, too.
        let is_valid = first <= last && last < u64::MAX && deliveries > 0;
        is_valid.then_some(Receipt {
            first: Offset(first),
            last: Offset(last),
            deliveries,
            is_accepted,
        })
    }
}

/// A number of digits alone.
fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(first: u64, last: u64, deliveries: u16, is_accepted: bool) -> Receipt {
        Receipt {
            first: Offset(first),
            last: Offset(last),
            deliveries,
            is_accepted,
        }
    }

    #[test]
    fn a_text_names_records_deliveries_and_verdicts() {
        let parsed = Receipt::parse("17@1, 18-20@2,21@1:reject,22@1:accept").unwrap();
        let expected = [
            receipt(17, 17, 1, true),
            receipt(18, 20, 2, true),
            receipt(21, 21, 1, false),
            receipt(22, 22, 1, true),
        ];
        assert_eq!(parsed, expected);
    }

    #[test]
    fn a_text_of_another_form_is_refused() {
        for text in [
            "",
            ",",
            "17",
            "@1",
            "17@",
            "17@0",
            "17@-1",
            "+17@1",
            "17@65536",
            "20-18@1",
            "17@1,17@1",
            "17-19@1,18@1",
            "18@1,17@1",
            "17@1:release",
            "17@1:accept:reject",
            "18446744073709551615@1",
            "99999999999999999999@1",
        ] {
            assert_eq!(Receipt::parse(text), Err(Refused::InvalidRequest), "{text}");
        }
        let long = "1@1,".repeat(TEXT_BYTES_MAX);
        assert_eq!(Receipt::parse(&long), Err(Refused::InvalidRequest));
    }
}
