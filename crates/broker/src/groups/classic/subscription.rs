//! The topics that consumers of the classic protocol subscribe to.

use std::collections::BTreeSet;

use bytes::{Buf, Bytes};

use super::ClassicGroup;
use crate::groups::TopicName;

impl ClassicGroup {
    /// The topics that any member subscribes to; `None` if the members are no consumers, or the subscription of one of
    /// them cannot be read.
    pub(super) fn subscriptions(&self) -> Option<BTreeSet<TopicName>> {
        if !self.is_of_consumers() {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            topics.extend(read_topics(member.metadata(self.protocol.as_deref()))?);
        }
        Some(topics)
    }
}

/// Reads the topics of a subscription as Kafka's consumers write it: an i16 version, an i32 count, and the names, each
/// with an i16 length. The fields of later versions follow behind them.
fn read_topics(mut bytes: Bytes) -> Option<Vec<TopicName>> {
    if bytes.remaining() < 6 || bytes.get_i16() < 0 {
        return None;
    }
    let count = bytes.get_i32();
    let mut topics = Vec::new();
    for _ in 0..usize::try_from(count).ok()? {
        if bytes.remaining() < 2 {
            return None;
        }
        let length = usize::try_from(bytes.get_i16()).ok()?;
        if bytes.remaining() < length {
            return None;
        }
        let name = bytes.split_to(length);
        topics.push(TopicName::from(std::str::from_utf8(&name).ok()?));
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn topics_are_decoded_and_fields_of_later_versions_ignored() {
        let bytes = b"\x00\x03\x00\x00\x00\x02\x00\x06orders\x00\x01b\xff\xff\xff\xffmore";
        let topics = read_topics(Bytes::from_static(bytes));
        assert_eq!(topics, Some(vec!["orders".into(), "b".into()]));
    }

    #[test]
    fn a_count_beyond_the_bytes_is_refused() {
        let bytes = b"\x00\x00\x7f\xff\xff\xff\x00\x01a";
        assert_eq!(read_topics(Bytes::from_static(bytes)), None);
    }

    proptest! {
        #[test]
        fn random_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let length = bytes.len();
            let topics = read_topics(bytes.into()).unwrap_or_default();
            prop_assert!(2 * topics.len() <= length);
        }
    }
}
