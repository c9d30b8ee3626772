//! Records are encoded without a copy, and decoded as slices of the frame.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    FetchResponse as GeneratedResponse, ProduceRequest,
    ShareFetchResponse as GeneratedShareResponse,
};
use kafka_protocol::protocol::Encodable;
use proptest::prelude::*;

use super::round_trips::{body, header, without_tags};
use crate::forge::{Forge, Forged};
use crate::input::{FieldsMax, Input, Lengths, RESPONSE_FIELDS_MAX};
use crate::{
    ApiKey, FetchResponse, FetchedPartition, FetchedTopic, Request, Response, ShareFetchResponse,
    decode_request, decode_response, encode_request, encode_response,
};

proptest! {
    #[test]
    fn fetch_responses_equal_the_generated_encoders_bytes(seed: u64) {
        for version in ApiKey::Fetch.versions() {
            let mut forge = Forge::new(seed);
            let Some(mut generated) = GeneratedResponse::forge(&mut forge, version) else {
                continue;
            };
            // Millstream never sends these.
            generated.unknown_tagged_fields.clear();
            for topic in &mut generated.responses {
                topic.unknown_tagged_fields.clear();
                for partition in &mut topic.partitions {
                    partition.unknown_tagged_fields.clear();
                    partition.snapshot_id = Default::default();
                    let size = forge.below(3000) as usize;
                    partition.records = Some(Bytes::from(vec![7; size]));
                }
            }
            let mut expected = BytesMut::new();
            generated.encode(&mut expected, version).unwrap();

            let mut response = FetchResponse::from(generated);
            for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                cut(&mut partition.records, &mut forge);
            }
            let frame = encode_response(&header(ApiKey::Fetch, version), &response.into()).unwrap();
            let frame = body(frame);
            prop_assert!(frame.ends_with(&expected), "version {}", version);
            let header_bytes = if version >= 12 { 5 } else { 4 };
            prop_assert_eq!(frame.len(), header_bytes + expected.len());
        }
    }
}

proptest! {
    #[test]
    fn share_fetch_responses_equal_the_generated_encoders_bytes(seed: u64) {
        let version = 1;
        let mut forge = Forge::new(seed);
        if let Some(mut generated) = GeneratedShareResponse::forge(&mut forge, version) {
            // Millstream never sends these.
            generated.unknown_tagged_fields.clear();
            for topic in &mut generated.responses {
                topic.unknown_tagged_fields.clear();
                for partition in &mut topic.partitions {
                    partition.unknown_tagged_fields.clear();
                    let size = forge.below(3000) as usize;
                    partition.records = Some(Bytes::from(vec![7; size]));
                }
            }
            let mut expected = BytesMut::new();
            generated.encode(&mut expected, version).unwrap();

            let mut input = Input::new(
                expected.clone().freeze(),
                Lengths::Compact,
                FieldsMax(RESPONSE_FIELDS_MAX),
            );
            let mut response = <ShareFetchResponse as crate::body::Body>::decode(&mut input, version).unwrap();
            for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                cut(&mut partition.records, &mut forge);
            }
            let header = header(ApiKey::ShareFetch, version);
            let frame = body(encode_response(&header, &response.into()).unwrap());
            prop_assert!(frame.ends_with(&expected));
            prop_assert_eq!(frame.len(), 5 + expected.len());
        }
    }
}

proptest! {
    #[test]
    fn produce_requests_equal_the_generated_encoders_bytes(seed: u64) {
        for version in ApiKey::Produce.versions() {
            let mut forge = Forge::new(seed);
            let Some(mut request) = ProduceRequest::forge(&mut forge, version) else {
                continue;
            };
            without_tags(&mut request);
            for partition in request.topic_data.iter_mut().flat_map(|topic| &mut topic.partition_data) {
                let size = forge.below(3000) as usize;
                partition.records = partition.records.take().map(|_| vec![7; size].into());
            }
            let mut expected = BytesMut::new();
            request.encode(&mut expected, version).unwrap();
            let header = header(ApiKey::Produce, version);
            let frame = body(encode_request(&header, &request.into()).unwrap());
            prop_assert!(frame.ends_with(&expected), "version {}", version);
            let header_bytes = if version >= 9 { 17 } else { 16 };
            prop_assert_eq!(frame.len(), header_bytes + expected.len());
        }
    }
}

/// Splits records into pieces at random positions.
fn cut(records: &mut Vec<Bytes>, forge: &mut Forge) {
    while let Some(last) = records.last_mut()
        && last.len() > 1
        && forge.below(3) > 0
    {
        let at = 1 + forge.below(last.len() as u64 - 1) as usize;
        let rest = last.split_off(at);
        records.push(rest);
    }
}

#[test]
fn fetched_records_are_not_copied() {
    let records = [vec![1; 5000], vec![2; 100_000]].map(Bytes::from);
    for version in ApiKey::Fetch.versions() {
        let partition = FetchedPartition {
            records: records.to_vec(),
            ..FetchedPartition::default()
        };
        let response = Response::from(FetchResponse {
            topics: vec![FetchedTopic {
                partitions: vec![partition.clone(), partition],
                ..FetchedTopic::default()
            }],
            ..FetchResponse::default()
        });
        let pieces = encode_response(&header(ApiKey::Fetch, version), &response).unwrap();
        let place = |piece: &Bytes| piece.as_ptr_range();
        let places: Vec<_> = pieces.iter().map(place).collect();
        let expected: Vec<_> = records.iter().map(place).collect();
        assert_eq!(places[1..3], expected);
        assert_eq!(places[4..6], expected);

        // The consumer gets slices of the received frame.
        let frame = body(pieces);
        let memory = frame.as_ptr_range();
        let (_, response) = decode_response(ApiKey::Fetch, version, frame).unwrap();
        let Response::Fetch(response) = response else {
            panic!("{response:?}");
        };
        for partition in &response.topics[0].partitions {
            let slice = partition.records[0].as_ptr_range();
            assert_eq!(partition.records[0].len(), 105_000);
            assert!(memory.start < slice.start && slice.end <= memory.end);
        }
    }
}

fn produce_request(records: &[Bytes]) -> Request {
    let partitions = records.iter().enumerate().map(|(index, records)| {
        PartitionProduceData::default()
            .with_index(index as i32)
            .with_records(Some(records.clone()))
    });
    let topic = TopicProduceData::default().with_partition_data(partitions.collect());
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(i32::MAX)
        .with_topic_data(vec![topic]);
    request.into()
}

#[test]
fn produced_records_are_slices_of_the_frame() {
    // One record has more bytes than a frame may have fields.
    let records = [10, 1000, crate::REQUEST_FIELDS_MAX + 5].map(|size| Bytes::from(vec![3; size]));
    for version in ApiKey::Produce.versions() {
        let sent = produce_request(&records);
        let frame = body(encode_request(&header(ApiKey::Produce, version), &sent).unwrap());
        let memory = frame.as_ptr_range();
        let (_, request) = decode_request(frame).unwrap();
        assert_eq!(request, sent);
        let Request::Produce(request) = request else {
            panic!("{request:?}");
        };
        for partition in &request.topic_data[0].partition_data {
            let slice = partition.records.as_ref().unwrap().as_ptr_range();
            assert!(memory.start < slice.start && slice.end <= memory.end);
        }
    }
}
