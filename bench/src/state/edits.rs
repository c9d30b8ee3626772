//! Edits of a wiki as JSON records of a stream.

use std::borrow::Cow;
use std::fmt::Write as _;

use anyhow::Result;
use millstream_base::{StreamletIndex, Timestamp};
use millstream_log::{Durability, Log, Stream, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use serde::Deserialize;

pub const PARTITIONS: u32 = 4;

const USERS: u64 = 100_000;
const PAGES: u64 = 300_000;

/// One in this many users and pages is frequent: it has its part of half of the edits.
const FREQUENT_ONE_IN: u64 = 100;

const CHUNK_BYTES: usize = 16 << 10;

/// Chunks that are appended before the writer waits for the disk.
const CHUNKS_AT_ONCE: u64 = 512;

/// The fields of an edit that count.
#[derive(Debug, Deserialize)]
pub struct Edit<'a> {
    #[serde(borrow)]
    pub user: Cow<'a, str>,
    #[serde(borrow)]
    pub page: Cow<'a, str>,
}

/// Creates a stream with edits.
pub fn create(log: &Log, name: &str, edits: u64) -> Result<Stream> {
    let config = StreamConfig {
        streamlets: PARTITIONS,
        durability: Durability::Async,
        ..StreamConfig::default()
    };
    let stream = log.create_stream(name, config)?;
    let mut chunk = ChunkBuilder::new(Compression::None);
    let mut text = String::new();
    let mut chunks = 0;
    for number in 0..edits {
        write_edit(&mut text, number);
        let time = Timestamp(1_700_000_000_000 + number as i64);
        chunk.push(time, None, Some(text.as_bytes()), &[])?;
        if chunk.len() >= CHUNK_BYTES || number + 1 == edits {
            let streamlet = StreamletIndex((chunks % u64::from(PARTITIONS)) as u32);
            let (partition, appended) = stream.append(streamlet, chunk.finish(None)?)?;
            chunk.clear();
            chunks += 1;
            if chunks % CHUNKS_AT_ONCE == 0 || number + 1 == edits {
                partition.wait_durable(appended.next_offset)?;
            }
        }
    }
    for partition in 0..PARTITIONS {
        let partition = stream.partition(partition)?;
        partition.wait_durable(partition.next_offset())?;
    }
    Ok(stream)
}

fn write_edit(text: &mut String, number: u64) {
    let mut rng = fastrand::Rng::with_seed(number);
    let mut pick = |all: u64| match rng.bool() {
        true => rng.u64(..(all / FREQUENT_ONE_IN)),
        false => rng.u64(..all),
    };
    let (user, page) = (pick(USERS), pick(PAGES));
    text.clear();
    // Writing into a string does not fail.
    let _ = write!(
        text,
        r##"{{"time":{number},"channel":"#en.wikipedia","isRobot":false,"namespace":"Main","page":"Page {page}","user":"User {user}","delta":36}}"##
    );
}
