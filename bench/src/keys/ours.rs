//! The requests to Millstream's server, and its answers.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use millstream_wire::native::{GetKeysRequest, KeyToPut, PutKeysRequest};
use millstream_wire::{ApiKey, FRAME_HEADER_BYTES, Response, decode_response};

use super::data::{key, value};
use crate::connection::{Connection, frame, text};

/// Topics whose puts are answered after the append, and when the disk has them.
const TOPICS: [(&str, &str); 2] = [("table", "async"), ("durable", "sync")];

/// The version of all native requests.
const VERSION: i16 = 0;

/// Bytes of an answer before its error code: correlation id, tagged fields of the header, throttle time.
const BEFORE_ERROR_BYTES: usize = 4 + 1 + 4;

/// Creates a keyed topic of each durability.
pub fn create_topics(address: SocketAddr) -> Result<()> {
    let mut connection = Connection::to(address)?;
    for (name, durability) in TOPICS {
        let settings = [
            ("cleanup.policy", "compact"),
            ("millstream.durability", durability),
        ];
        connection.create_topic(name, 1, &settings)?;
    }
    Ok(())
}

/// A request for the values of keys.
pub fn get(durable: bool, numbers: &[u64]) -> Result<Bytes> {
    let request = GetKeysRequest {
        stream: text(topic(durable)),
        keys: numbers.iter().map(|number| bytes(&key(*number))).collect(),
        at: Vec::new(),
        hold: None,
        with_headers: false,
    };
    frame(VERSION, request.into())
}

/// A request that puts a version of keys.
pub fn put(durable: bool, numbers: &[u64], version: u64) -> Result<Bytes> {
    let entries = numbers.iter().map(|number| KeyToPut {
        key: bytes(&key(*number)),
        value: Some(bytes(&value(*number, version))),
        ..KeyToPut::default()
    });
    let request = PutKeysRequest {
        stream: text(topic(durable)),
        entries: entries.collect(),
        all_or_none: false,
    };
    frame(VERSION, request.into())
}

fn topic(durable: bool) -> &'static str {
    TOPICS[usize::from(durable)].0
}

fn bytes(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// Checks an answer to [`put`].
pub fn put_answer(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(length) = whole(bytes) else {
        return Ok(None);
    };
    check(ApiKey::PutKeys, &bytes[FRAME_HEADER_BYTES..length])?;
    Ok(Some(length))
}

/// The answers to requests for as many keys, all of which have values of one size: each is as long as the first. One that
/// reports an error or an absent key has another length.
pub struct Expected {
    length: usize,
}

impl Expected {
    /// Sends the first of some requests, and checks the whole answer.
    pub fn learn(address: SocketAddr, requests: &[u8]) -> Result<Expected> {
        let api = requests[FRAME_HEADER_BYTES..].first_chunk();
        let api = api.context("a request begins with its kind")?;
        let api = ApiKey::try_from(i16::from_be_bytes(*api))?;
        let request = whole(requests).map(|length| &requests[..length]);
        let mut connection = Connection::to(address)?;
        connection.send(request.unwrap_or_default())?;
        let answer = connection.receive()?;
        check(api, &answer)?;
        Ok(Expected {
            length: FRAME_HEADER_BYTES + answer.len(),
        })
    }

    /// Checks the first answer among received bytes.
    pub fn check(&self, bytes: &[u8]) -> Result<Option<usize>> {
        let Some(length) = whole(bytes) else {
            return Ok(None);
        };
        let error = &bytes[FRAME_HEADER_BYTES + BEFORE_ERROR_BYTES..][..2];
        ensure!(
            length == self.length && error == [0, 0],
            "an answer has {length} bytes instead of {}, and the error {error:?}",
            self.length
        );
        Ok(Some(length))
    }
}

/// The length of the first frame, with the length before it; `None` if it is not whole.
fn whole(bytes: &[u8]) -> Option<usize> {
    let length: &[u8; FRAME_HEADER_BYTES] = bytes.first_chunk()?;
    let length = FRAME_HEADER_BYTES + u32::from_be_bytes(*length) as usize;
    (bytes.len() >= length).then_some(length)
}

/// Decodes an answer: all keys must have been found, or put.
fn check(api: ApiKey, answer: &[u8]) -> Result<()> {
    match decode_response(api, VERSION, bytes(answer))?.1 {
        Response::GetKeys(got) => {
            let is_complete =
                got.error_code == 0 && got.keys.iter().all(|key| key.newest.is_some());
            ensure!(is_complete, "keys are not found: {:?}", got.error_message);
        }
        Response::PutKeys(put) => {
            let mut codes = put.entries.iter().map(|entry| entry.error_code);
            let is_complete = put.error_code == 0 && codes.all(|code| code == 0);
            ensure!(is_complete, "keys are not put: {:?}", put.error_message);
        }
        _ => bail!("another answer than asked for"),
    }
    Ok(())
}
