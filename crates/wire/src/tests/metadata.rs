//! The response to Metadata equals the generated encoder's.

use bytes::BytesMut;
use kafka_protocol::messages::{BrokerId, MetadataResponse as GeneratedResponse};
use kafka_protocol::protocol::Encodable;
use proptest::prelude::*;

use super::round_trips::{body, header};
use crate::forge::{Forge, Forged};
use crate::{ApiKey, Brokers, MetadataResponse, encode_response};

proptest! {
    #[test]
    fn metadata_responses_equal_the_generated_encoders_bytes(seed: u64) {
        for version in ApiKey::Metadata.versions() {
            let mut forge = Forge::new(seed);
            let Some(mut generated) = GeneratedResponse::forge(&mut forge, version) else {
                continue;
            };
            // Millstream never sends these.
            generated.unknown_tagged_fields.clear();
            for topic in &mut generated.topics {
                topic.unknown_tagged_fields.clear();
                for partition in &mut topic.partitions {
                    partition.unknown_tagged_fields.clear();
                }
            }
            let mut expected = BytesMut::new();
            generated.encode(&mut expected, version).unwrap();
            let response = MetadataResponse::from(generated);
            let frame = encode_response(&header(ApiKey::Metadata, version), &response.into());
            let frame = body(frame.unwrap());
            prop_assert!(frame.ends_with(&expected), "version {}", version);
            let header_bytes = if version >= 9 { 5 } else { 4 };
            prop_assert_eq!(frame.len(), header_bytes + expected.len());
        }
    }
}

#[test]
fn a_list_of_brokers_equals_the_vector_that_it_was_made_of() {
    for count in 0..3 {
        let brokers: Vec<BrokerId> = (0..count).map(BrokerId).collect();
        let list = Brokers::from(brokers.clone());
        assert_eq!(list[..], brokers[..]);
        assert_eq!(matches!(list, Brokers::One(_)), count == 1);
    }
    assert_eq!(Brokers::default(), Brokers::from(Vec::new()));
}
