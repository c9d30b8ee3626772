//! Comparison of the table of requests with the generated messages.

use kafka_protocol::messages::ApiKey as GeneratedKey;

use crate::header::response_has_tags;
use crate::{
    ApiKey, RequestHeader, Response, SUPPORTED, api_versions, decode_response, encode_response,
};

#[test]
fn the_table_agrees_with_the_generated_messages() {
    for supported in SUPPORTED {
        let api = supported.api;
        assert_eq!(ApiKey::try_from(api as i16), Ok(api));
        assert_eq!(api.supported(), *supported);
        let Ok(generated) = GeneratedKey::try_from(api as i16) else {
            let is_missing = matches!(
                api,
                ApiKey::StreamsGroupHeartbeat | ApiKey::StreamsGroupDescribe
            );
            assert!(api as i16 >= 10_000 || is_missing, "{api:?}");
            continue;
        };
        assert_eq!(format!("{generated:?}"), format!("{api:?}"));
        let known = generated.valid_versions();
        for version in api.versions() {
            // The generated messages lack fields of these, and this crate encodes them.
            let is_own = matches!(
                (api, version),
                (ApiKey::InitProducerId, 6)
                    | (ApiKey::ShareFetch | ApiKey::ShareAcknowledge, 2)
                    | (ApiKey::DescribeShareGroupOffsets, 1)
                    | (ApiKey::ListOffsets, 11)
                    | (ApiKey::DescribeLogDirs, 5)
            );
            let is_known = known.min <= version && version <= known.max;
            assert!(is_known || is_own, "{api:?}");
            let header = generated.request_header_version(version);
            assert_eq!(api.is_flexible(version), header == 2, "{api:?} {version}");
            let header = generated.response_header_version(version);
            assert_eq!(
                response_has_tags(api, version),
                header == 1,
                "{api:?} {version}"
            );
        }
    }
}

#[test]
fn api_keys_are_sorted_and_other_keys_are_unknown() {
    assert!(SUPPORTED.is_sorted_by(|a, b| a.api < b.api));
    for key in [-1, 4, 38, 9999, i16::MIN, i16::MAX] {
        assert!(ApiKey::try_from(key).is_err(), "{key}");
    }
}

#[test]
fn api_versions_announces_features() {
    let response = api_versions();
    assert_eq!(response.finalized_features_epoch, 0);
    let supported = response.supported_features.iter();
    let supported: Vec<_> = supported
        .map(|feature| (&*feature.name, feature.max_version))
        .collect();
    assert_eq!(
        supported,
        [
            ("transaction.version", 2),
            ("share.version", 1),
            ("streams.version", 1)
        ]
    );
    let finalized = response.finalized_features.iter();
    let finalized: Vec<_> = finalized
        .map(|feature| (&*feature.name, feature.max_version_level))
        .collect();
    assert_eq!(finalized, supported);
    // Versions without features have an answer, too.
    for version in ApiKey::ApiVersions.versions() {
        let header = RequestHeader {
            api: ApiKey::ApiVersions,
            version,
            correlation_id: 1,
            client_id: None,
        };
        let frame = encode_response(&header, &api_versions().into()).unwrap();
        let frame = frame.into_bytes().slice(4..);
        let (_, decoded) = decode_response(ApiKey::ApiVersions, version, frame).unwrap();
        let Response::ApiVersions(decoded) = decoded else {
            panic!("it is an answer to that");
        };
        assert_eq!(decoded.api_keys, response.api_keys);
        assert_eq!(decoded.finalized_features.is_empty(), version < 3);
    }
}

#[test]
fn api_versions_announces_all_requests() {
    let announced = api_versions().api_keys;
    assert_eq!(announced.len(), SUPPORTED.len());
    for (announced, supported) in announced.iter().zip(SUPPORTED) {
        assert_eq!(announced.api_key, supported.api as i16);
        assert_eq!(announced.max_version, supported.version_max);
        match supported.api {
            ApiKey::Produce => assert_eq!(announced.min_version, 0),
            _ => assert_eq!(announced.min_version, supported.version_min),
        }
    }
}
