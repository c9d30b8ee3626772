//! The keys of requests, and their supported versions.

use std::ops::RangeInclusive;

use kafka_protocol::messages::ApiVersionsResponse;
use kafka_protocol::messages::api_versions_response::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use kafka_protocol::protocol::StrBytes;

/// The oldest version of Produce that ApiVersions announces. librdkafka compresses only for a broker that
/// announces the oldest versions (KAFKA-18659), though it never sends them.
const PRODUCE_VERSION_MIN_ANNOUNCED: i16 = 0;

/// The features that clients look for, each at its only level.
const FEATURES: [(&str, i16); 3] = [
    // The first write or commit adds a partition or group to a transaction, and every transaction has its own
    // epoch (KIP-890).
    ("transaction.version", 2),
    // The broker has share groups (KIP-932).
    ("share.version", 1),
    // The broker has groups of Kafka Streams (KIP-1071).
    ("streams.version", 1),
];

/// A supported request with its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supported {
    /// The kind of the request.
    pub api: ApiKey,
    /// The oldest version.
    pub version_min: i16,
    /// The newest version.
    pub version_max: i16,
    /// The first version with compact lengths and tagged fields; `i16::MAX` if there is none.
    pub flexible_from: i16,
}

/// The error of an unknown api key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown api key {0}")]
pub struct UnknownApiKey(pub i16);

macro_rules! keys {
    ($($name:ident = $key:literal, $request:ty, $response:ty, $min:literal..=$max:literal, $flexible:expr;)*) => {
        /// The key of a request: Kafka's, and from 10000 on our own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $(#[doc = concat!("Request ", stringify!($key), ".")] $name = $key,)*
        }

        impl TryFrom<i16> for ApiKey {
            type Error = UnknownApiKey;

            fn try_from(key: i16) -> Result<ApiKey, UnknownApiKey> {
                match key {
                    $($key => Ok(ApiKey::$name),)*
                    _ => Err(UnknownApiKey(key)),
                }
            }
        }

        /// All supported requests, in the order of their keys.
        pub const SUPPORTED: &[Supported] = &[
            $(Supported {
                api: ApiKey::$name,
                version_min: $min,
                version_max: $max,
                flexible_from: $flexible,
            },)*
        ];

        impl ApiKey {
            /// Returns the supported versions.
            pub const fn supported(self) -> Supported {
                match self {
                    $(ApiKey::$name => Supported {
                        api: self,
                        version_min: $min,
                        version_max: $max,
                        flexible_from: $flexible,
                    },)*
                }
            }
        }
    };
}

crate::apis!(keys);

impl ApiKey {
    /// Returns the supported versions.
    pub fn versions(self) -> RangeInclusive<i16> {
        let supported = self.supported();
        supported.version_min..=supported.version_max
    }

    /// Returns whether the messages of this version have compact lengths and tagged fields.
    pub fn is_flexible(self, version: i16) -> bool {
        version >= self.supported().flexible_from
    }
}

/// Returns the answer to ApiVersions: all of [`SUPPORTED`], and the features that clients look for.
pub fn api_versions() -> ApiVersionsResponse {
    let ranges = SUPPORTED.iter().map(|supported| {
        let announced_min = match supported.api {
            ApiKey::Produce => PRODUCE_VERSION_MIN_ANNOUNCED,
            _ => supported.version_min,
        };
        ApiVersion::default()
            .with_api_key(supported.api as i16)
            .with_min_version(announced_min)
            .with_max_version(supported.version_max)
    });
    let (supported, finalized) = FEATURES.iter().map(feature).unzip();
    ApiVersionsResponse::default()
        .with_api_keys(ranges.collect())
        .with_supported_features(supported)
        .with_finalized_features(finalized)
        .with_finalized_features_epoch(0)
}

fn feature((name, level): &(&'static str, i16)) -> (SupportedFeatureKey, FinalizedFeatureKey) {
    let name = StrBytes::from_static_str(name);
    let supported = SupportedFeatureKey::default()
        .with_name(name.clone())
        // Older clients refuse a 0.
        .with_min_version(1)
        .with_max_version(*level);
    let finalized = FinalizedFeatureKey::default()
        .with_name(name)
        .with_min_version_level(*level)
        .with_max_version_level(*level);
    (supported, finalized)
}
