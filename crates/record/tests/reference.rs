//! Decodes batches from other projects, and compares them with the records of a reference decoder.
//!
//! The data is not in the repository, but in the folder that `MILLSTREAM_TEST_DATA` names, or in `../shared/data`
//! beside the repository. Without the data the test is skipped.

use std::fs;
use std::path::{Path, PathBuf};

use millstream_base::{Offset, Timestamp};
use millstream_record::{Chunk, ChunkError, Chunks, Decompressor, TimestampType, check_prefix};
use serde_json::Value;

/// The folder with the data, if it exists.
fn data() -> Option<PathBuf> {
    let folder = match std::env::var_os("MILLSTREAM_TEST_DATA") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
    };
    folder
        .join("answers/kafka_batches.json")
        .is_file()
        .then_some(folder)
}

/// Bytes in the form of the answers: null, text, or `{"hex": …}`.
fn bytes(answer: &Value) -> Option<Vec<u8>> {
    match answer {
        Value::Null => None,
        Value::String(text) => Some(text.clone().into_bytes()),
        _ => {
            let digits = answer["hex"].as_str().unwrap();
            let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            Some((0..digits.len()).step_by(2).map(byte).collect())
        }
    }
}

/// Compares a chunk with the answer; returns the first error.
fn compare(
    chunk: &Chunk<'_>,
    answer: &Value,
    decompressor: &mut Decompressor,
) -> Result<(), ChunkError> {
    let number = |field: &str| answer[field].as_i64().unwrap();
    let header = chunk.header();
    assert_eq!(i64::from(header.total_bytes), number("size"));
    assert_eq!(header.base_offset.0 as i64, number("base_offset"));
    assert_eq!(
        i64::from(header.leader_epoch),
        number("partition_leader_epoch")
    );
    assert_eq!(i64::from(header.crc), number("crc32c"));
    assert_eq!(
        header.attributes.compression().to_string(),
        answer["compression"]
    );
    assert_eq!(
        header.attributes.is_transactional(),
        answer["transactional"]
    );
    assert_eq!(header.attributes.is_control(), answer["control"]);
    assert_eq!(
        i64::from(header.last_offset_delta),
        number("last_offset_delta")
    );
    assert_eq!(header.base_timestamp.0, number("first_timestamp"));
    assert_eq!(header.max_timestamp.0, number("max_timestamp"));
    assert_eq!(header.producer_id.0, number("producer_id"));
    assert_eq!(i64::from(header.producer_epoch.0), number("producer_epoch"));
    assert_eq!(i64::from(header.base_sequence.0), number("base_sequence"));
    assert_eq!(i64::from(header.record_count), number("record_count"));

    let is_log_append = header.attributes.timestamp_type() == TimestampType::LogAppend;
    assert_eq!(is_log_append, answer["timestamp_type"] == "LogAppendTime");

    let records = chunk
        .records(decompressor)?
        .collect::<Result<Vec<_>, ChunkError>>()?;
    let answers = answer["records"].as_array().unwrap();
    assert_eq!(records.len(), answers.len());
    for (record, answer) in records.iter().zip(answers) {
        let delta = answer["offset_delta"].as_u64().unwrap();
        assert_eq!(record.offset, Offset(header.base_offset.0 + delta));
        let timestamp = match header.attributes.timestamp_type() {
            TimestampType::LogAppend => header.max_timestamp.0,
            TimestampType::Create => {
                header.base_timestamp.0 + answer["timestamp_delta"].as_i64().unwrap()
            }
        };
        assert_eq!(record.timestamp, Timestamp(timestamp));
        assert_eq!(record.key.map(<[u8]>::to_vec), bytes(&answer["key"]));
        assert_eq!(record.value.map(<[u8]>::to_vec), bytes(&answer["value"]));
        let headers: Vec<_> = record
            .headers()
            .map(|header| (header.name.to_vec(), header.value.map(<[u8]>::to_vec)))
            .collect();
        let expected: Vec<_> = answer["headers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|header| (bytes(&header[0]).unwrap(), bytes(&header[1])))
            .collect();
        assert_eq!(headers, expected);
    }
    Ok(())
}

#[test]
fn batches_of_other_projects_decode_or_are_refused_like_the_reference() {
    let Some(data) = data() else {
        eprintln!("skipped: no reference data; set MILLSTREAM_TEST_DATA to its folder");
        return;
    };
    let answers = fs::read_to_string(data.join("answers/kafka_batches.json")).unwrap();
    let answers: Value = serde_json::from_str(&answers).unwrap();
    let mut decompressor = Decompressor::default();
    let mut decoded = 0;
    for (path, answer) in answers["files"].as_object().unwrap() {
        let Ok(file) = fs::read(data.join(path)) else {
            continue; // the answers cover more batches than the data has
        };
        let answers = answer["batches"].as_array().unwrap();
        let magic = answers[0]["magic"].as_i64().unwrap() as i8;
        if magic != 2 {
            assert_eq!(check_prefix(&file), Err(ChunkError::Magic(magic)), "{path}");
            continue;
        }
        let mut chunks = Chunks::new(&file);
        for answer in answers {
            let chunk = chunks.next().unwrap();
            if answer["crc_ok"] == false {
                assert!(
                    matches!(chunk, Err(ChunkError::Crc { .. })),
                    "{path}: {chunk:?}"
                );
                continue;
            }
            let chunk = chunk.unwrap_or_else(|error| panic!("{path}: {error}"));
            let compared = compare(&chunk, answer, &mut decompressor);
            if answer["decode_error"].is_string() {
                // Its header states no compression, but it is compressed.
                assert!(
                    matches!(compared, Err(ChunkError::Record { .. })),
                    "{path}: {compared:?}"
                );
            } else {
                compared.unwrap_or_else(|error| panic!("{path}: {error}"));
                decoded += 1;
            }
        }
        assert!(chunks.next().is_none(), "{path}");
    }
    assert!(decoded > 0, "no batch of {} was found", data.display());
    eprintln!("{decoded} batches decoded");
}
