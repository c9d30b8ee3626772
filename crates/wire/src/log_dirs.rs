//! The response to DescribeLogDirs. The generated message lacks version 5 (KIP-1066).

use kafka_protocol::messages::DescribeLogDirsResponse as GeneratedResponse;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::protocol::{Encodable, StrBytes};

use crate::api::ApiKey;
use crate::body::Body;
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// The first version with an error for the whole request.
const ERROR_FROM: i16 = 3;
/// The first version with the size of the volume.
const VOLUME_FROM: i16 = 4;
/// The first version that tells whether a directory is cordoned.
const CORDONED_FROM: i16 = 5;

/// The newest version of the generated message; topics have its layout in later versions, too.
const GENERATED_TO: i16 = 4;

/// Answers DescribeLogDirs: the generated message, and whether each directory is cordoned.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DescribeLogDirsResponse {
    /// How long the client is throttled, in milliseconds.
    pub throttle_time_ms: i32,
    /// The error code of the whole request; 0 if there is none. From version 3 on.
    pub error_code: i16,
    /// The data directories.
    pub results: Vec<LogDir>,
}

/// A data directory.
#[derive(Debug, Clone, PartialEq)]
pub struct LogDir {
    /// The error code; 0 if there is none.
    pub error_code: i16,
    /// The absolute path.
    pub log_dir: StrBytes,
    /// The topics in it.
    pub topics: Vec<DescribeLogDirsTopic>,
    /// The size of its volume in bytes, or -1. From version 4 on.
    pub total_bytes: i64,
    /// The bytes of the volume that the broker can still write, or -1. From version 4 on.
    pub usable_bytes: i64,
    /// Whether the broker places no further partitions in it. From version 5 on.
    pub is_cordoned: bool,
}

impl Default for LogDir {
    fn default() -> LogDir {
        DescribeLogDirsResult::default().into()
    }
}

impl Body for DescribeLogDirsResponse {
    fn decode(input: &mut Input, version: i16) -> Result<DescribeLogDirsResponse, Malformed> {
        if version <= GENERATED_TO {
            return input.message::<GeneratedResponse>(version).map(Into::into);
        }
        let response = DescribeLogDirsResponse {
            throttle_time_ms: input.int32("throttle time")?,
            error_code: input.int16("error code")?,
            results: input.array("results", LogDir::decode)?,
        };
        input.tags()?;
        Ok(response)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int32(self.throttle_time_ms);
        if version >= ERROR_FROM {
            output.int16(self.error_code);
        }
        output.length_in(is_flexible(version), self.results.len());
        for dir in &self.results {
            dir.encode(output, version)?;
        }
        if is_flexible(version) {
            output.no_tags();
        }
        Ok(())
    }
}

impl LogDir {
    /// Decodes it from version 5.
    fn decode(input: &mut Input) -> Result<LogDir, Malformed> {
        let dir = LogDir {
            error_code: input.int16("error code")?,
            log_dir: input.string("log dir")?,
            topics: input.array("topics", |input| input.message(GENERATED_TO))?,
            total_bytes: input.int64("total bytes")?,
            usable_bytes: input.int64("usable bytes")?,
            is_cordoned: input.boolean("is cordoned")?,
        };
        input.tags()?;
        Ok(dir)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int16(self.error_code);
        output.string_in(is_flexible(version), &self.log_dir)?;
        output.length_in(is_flexible(version), self.topics.len());
        for topic in &self.topics {
            let encoded = Encodable::encode(topic, output.copied(), version.min(GENERATED_TO));
            encoded.map_err(|error| error.to_string())?;
        }
        if version >= VOLUME_FROM {
            output.int64(self.total_bytes);
            output.int64(self.usable_bytes);
        }
        if version >= CORDONED_FROM {
            output.boolean(self.is_cordoned);
        }
        if is_flexible(version) {
            output.no_tags();
        }
        Ok(())
    }
}

fn is_flexible(version: i16) -> bool {
    ApiKey::DescribeLogDirs.is_flexible(version)
}

impl From<GeneratedResponse> for DescribeLogDirsResponse {
    fn from(response: GeneratedResponse) -> DescribeLogDirsResponse {
        DescribeLogDirsResponse {
            throttle_time_ms: response.throttle_time_ms,
            error_code: response.error_code,
            results: response.results.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<DescribeLogDirsResult> for LogDir {
    fn from(dir: DescribeLogDirsResult) -> LogDir {
        LogDir {
            error_code: dir.error_code,
            log_dir: dir.log_dir,
            topics: dir.topics,
            total_bytes: dir.total_bytes,
            usable_bytes: dir.usable_bytes,
            is_cordoned: false,
        }
    }
}

#[cfg(any(test, feature = "forge"))]
impl crate::forge::Forged for DescribeLogDirsResponse {
    fn forge(forge: &mut crate::forge::Forge, version: i16) -> Option<DescribeLogDirsResponse> {
        let generated = GeneratedResponse::forge(forge, version.min(GENERATED_TO))?;
        let mut response = DescribeLogDirsResponse::from(generated);
        if version >= CORDONED_FROM {
            for dir in &mut response.results {
                dir.is_cordoned = forge.boolean();
            }
        }
        Some(response)
    }
}
