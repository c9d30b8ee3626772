//! Requests and responses about the records of share groups. The generated messages lack their newest versions (KIP-1206,
//! KIP-1222, KIP-1226); unchanged fields have the generated types. All versions are flexible.

mod acknowledge;
mod fetch;
mod offsets;

use kafka_protocol::protocol::{Decodable, Encodable};

pub use self::acknowledge::{ShareAcknowledgeRequest, ShareAcknowledgeResponse};
pub use self::fetch::{
    ShareFetchRequest, ShareFetchResponse, ShareFetchedPartition, ShareFetchedTopic,
};
pub use self::offsets::{
    DescribeShareGroupOffsetsResponse, ShareGroupOffsets, SharePartitionOffsets, ShareTopicOffsets,
};

use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// The version of the generated messages of ShareFetch and ShareAcknowledge.
const GENERATED: i16 = 1;

/// The first version of ShareFetch and ShareAcknowledge whose acknowledgements may renew locks.
const RENEWS_FROM: i16 = 2;

/// Reads an array of generated structures.
fn take_all<T: Decodable>(input: &mut Input, name: &str) -> Result<Vec<T>, Malformed> {
    input.array(name, |input| input.message(GENERATED))
}

fn put_all(output: &mut Output, parts: &[impl Encodable]) -> Result<(), String> {
    output.length(parts.len());
    parts.iter().try_for_each(|part| put(output, part))
}

fn put(output: &mut Output, part: &impl Encodable) -> Result<(), String> {
    part.encode(output.copied(), GENERATED)
        .map_err(|error| error.to_string())
}

/// Fails if a field that the version lacks is not the default.
fn check_is_default(is_default: bool, name: &str) -> Result<(), String> {
    match is_default {
        true => Ok(()),
        false => Err(format!("{name} needs version {RENEWS_FROM}")),
    }
}
