//! The messages that consumers of a classic group exchange through the broker: subscriptions in JoinGroup,
//! assignments in SyncGroup. The broker forwards them without decoding them.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use kafka_protocol::protocol::{Decodable, Encodable, Message};

use crate::api::ApiKey;
use crate::error::{EncodeError, Malformed};
use crate::input::{FieldsMax, Input, Lengths, RESPONSE_FIELDS_MAX};

/// Decodes the metadata of a member. Of a newer version it reads the fields of the last known version, as
/// Kafka's consumers do.
///
/// # Errors
/// If the bytes are not a subscription.
pub fn decode_subscription(bytes: Bytes) -> Result<ConsumerProtocolSubscription, Malformed> {
    decode(bytes)
}

/// Decodes the assignment of a member. No bytes are an empty assignment.
///
/// # Errors
/// If the bytes are not an assignment.
pub fn decode_assignment(bytes: Bytes) -> Result<ConsumerProtocolAssignment, Malformed> {
    match bytes.is_empty() {
        true => Ok(ConsumerProtocolAssignment::default()),
        false => decode(bytes),
    }
}

/// Encodes the metadata of a member, in the last known version.
///
/// # Errors
/// If a name has more than 32767 bytes.
pub fn encode_subscription(
    subscription: &ConsumerProtocolSubscription,
) -> Result<Bytes, EncodeError> {
    encode(subscription, ApiKey::JoinGroup)
}

/// Encodes the assignment of a member, in the last known version.
///
/// # Errors
/// If a name has more than 32767 bytes.
pub fn encode_assignment(assignment: &ConsumerProtocolAssignment) -> Result<Bytes, EncodeError> {
    encode(assignment, ApiKey::SyncGroup)
}

fn decode<T: Decodable + Message>(bytes: Bytes) -> Result<T, Malformed> {
    let mut input = Input::new(bytes, Lengths::Fixed, FieldsMax(RESPONSE_FIELDS_MAX));
    let version = input.int16("version")?;
    if version < T::VERSIONS.min {
        return Err(input.malformed(format!("there is no version {version}")));
    }
    // The fields of later versions follow; skip them.
    input.message(version.min(T::VERSIONS.max))
}

fn encode<T: Encodable + Message>(message: &T, api: ApiKey) -> Result<Bytes, EncodeError> {
    let version = T::VERSIONS.max;
    let mut bytes = BytesMut::new();
    bytes.put_i16(version);
    let encoded = message.encode(&mut bytes, version);
    encoded.map_err(|error| EncodeError::Field {
        api,
        version,
        what: error.to_string(),
    })?;
    Ok(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::{
        TopicName, consumer_protocol_assignment as assignment,
        consumer_protocol_subscription as subscription,
    };

    use super::*;

    fn subscription() -> ConsumerProtocolSubscription {
        let owned = subscription::TopicPartition::default()
            .with_topic(TopicName("lines".into()))
            .with_partitions(vec![0, 3]);
        ConsumerProtocolSubscription::default()
            .with_topics(vec!["lines".into(), "words".into()])
            .with_user_data(Some(Bytes::from_static(b"data")))
            .with_owned_partitions(vec![owned])
            .with_generation_id(1 << 30)
            .with_rack_id(Some("r1".into()))
    }

    #[test]
    fn decoding_returns_the_encoded_metadata() {
        let sent = subscription();
        let bytes = encode_subscription(&sent).unwrap();
        assert_eq!(decode_subscription(bytes), Ok(sent));

        let partitions = assignment::TopicPartition::default()
            .with_topic(TopicName("lines".into()))
            .with_partitions(vec![1]);
        let sent = ConsumerProtocolAssignment::default().with_assigned_partitions(vec![partitions]);
        let bytes = encode_assignment(&sent).unwrap();
        assert_eq!(decode_assignment(bytes), Ok(sent));
        let nothing = ConsumerProtocolAssignment::default();
        assert_eq!(decode_assignment(Bytes::new()), Ok(nothing));
    }

    #[test]
    fn older_and_newer_versions_decode_to_the_known_fields() {
        let bytes = Bytes::from_static(b"\0\0\0\0\0\x01\0\x05lines\xff\xff\xff\xff");
        let oldest = ConsumerProtocolSubscription::default()
            .with_topics(vec!["lines".into()])
            .with_user_data(None);
        assert_eq!(decode_subscription(bytes), Ok(oldest));

        let mut future = BytesMut::from(&encode_subscription(&subscription()).unwrap()[..]);
        future[1] = 9;
        future.put_slice(b"more");
        assert_eq!(decode_subscription(future.freeze()), Ok(subscription()));
    }

    #[test]
    fn bad_bytes_are_refused() {
        for bytes in [
            &b""[..],
            b"\0",
            b"\xff\xff\0\0\0\0",
            b"\0\x01\x7f\xff\xff\xff",
            b"\0\x03\0\0\0\x01\0\x05li",
        ] {
            let bytes = Bytes::from_static(bytes);
            assert!(decode_subscription(bytes.clone()).is_err(), "{bytes:?}");
            assert!(bytes.is_empty() || decode_assignment(bytes).is_err());
        }
        let whole = encode_subscription(&subscription()).unwrap();
        for length in 0..whole.len() {
            assert!(decode_subscription(whole.slice(..length)).is_err());
        }
    }
}
