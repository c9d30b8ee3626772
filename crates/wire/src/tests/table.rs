//! The table of requests against the generated messages.

use kafka_protocol::messages::ApiKey as GeneratedKey;

use crate::header::response_has_tags;
use crate::{ApiKey, SUPPORTED, api_versions};

#[test]
fn the_table_agrees_with_the_generated_messages() {
    for supported in SUPPORTED {
        let api = supported.api;
        assert_eq!(ApiKey::try_from(api as i16), Ok(api));
        assert_eq!(api.supported(), *supported);
        let Ok(generated) = GeneratedKey::try_from(api as i16) else {
            assert!(api as i16 >= 10_000, "{api:?}");
            continue;
        };
        assert_eq!(format!("{generated:?}"), format!("{api:?}"));
        let known = generated.valid_versions();
        for version in api.versions() {
            assert!(known.min <= version && version <= known.max, "{api:?}");
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
fn keys_grow_and_others_are_unknown() {
    assert!(SUPPORTED.is_sorted_by(|a, b| a.api < b.api));
    for key in [-1, 4, 34, 9999, i16::MIN, i16::MAX] {
        assert!(ApiKey::try_from(key).is_err(), "{key}");
    }
}

#[test]
fn clients_are_told_of_all_requests() {
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
