//! Compares filters of chunks with a model that checks each record by itself.

use millstream_base::{KeyRange, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp, crc32c};
use millstream_record::{
    Chunk, ChunkBuilder, ChunkError, Compression, Decompressor, EndMarker, Filter, HEADER_BYTES,
    Header, Producer, Selected, TimestampType, TransactionEnd, set_base_offset,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Names of headers, and their names in filters.
const SECONDARY_KEYS: [(&str, &str); 2] = [("k.a", "k.a"), ("k.b c", "k.\"b c\"")];

/// A record that owns its fields.
#[derive(Debug, Clone, PartialEq)]
struct Owned {
    offset: Offset,
    timestamp: Timestamp,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// A term of the model.
#[derive(Debug, Clone)]
enum Term {
    Key(&'static str, Vec<u8>),
    Value(&'static str, Vec<u8>),
    SecondaryKey((&'static str, &'static str), &'static str, Vec<u8>),
    Time(&'static str, i64),
}

impl Term {
    fn text(&self) -> String {
        let (field, test, bytes) = match self {
            Term::Key(test, bytes) => ("key", test, bytes),
            Term::Value(test, bytes) => ("value", test, bytes),
            Term::SecondaryKey((_, field), test, bytes) => (*field, test, bytes),
            Term::Time(comparison, time) => return format!("time {comparison} {time}"),
        };
        format!("{field} {test} \"{}\"", bytes.escape_ascii())
    }

    fn matches(&self, record: &Owned) -> bool {
        match self {
            Term::Key(test, wanted) => is_so(record.key.as_deref(), test, wanted),
            Term::Value(test, wanted) => is_so(record.value.as_deref(), test, wanted),
            Term::SecondaryKey((header, _), test, wanted) => {
                record.headers.iter().any(|(name, key)| {
                    name == header.as_bytes() && is_so(key.as_deref(), test, wanted)
                })
            }
            Term::Time("<", time) => record.timestamp.0 < *time,
            Term::Time("<=", time) => record.timestamp.0 <= *time,
            Term::Time(">", time) => record.timestamp.0 > *time,
            Term::Time(_, time) => record.timestamp.0 >= *time,
        }
    }
}

fn is_so(bytes: Option<&[u8]>, test: &str, wanted: &[u8]) -> bool {
    bytes.is_some_and(|bytes| match test {
        "=" => bytes == wanted,
        "starts with" => bytes.starts_with(wanted),
        "<" => bytes < wanted,
        "<=" => bytes <= wanted,
        ">" => bytes > wanted,
        ">=" => bytes >= wanted,
        _ => (0..=bytes.len()).any(|at| bytes[at..].starts_with(wanted)),
    })
}

fn filter_of(terms: &[Term]) -> Filter {
    let texts: Vec<String> = terms.iter().map(Term::text).collect();
    Filter::parse(&texts.join(" and ")).unwrap()
}

/// Bytes from few values, so that terms match often.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(select(&b"ab\"\\\n\xff"[..]), 0..4)
}

fn time() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -3_i64..10, 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
}

fn records() -> impl Strategy<Value = Vec<Owned>> {
    let name = select(&SECONDARY_KEYS[..]).prop_map(|(header, _)| header.as_bytes().to_vec());
    let headers = vec((name, option::of(bytes())), 0..3);
    let record = (time(), option::of(bytes()), option::of(bytes()), headers);
    let record = record.prop_map(|(timestamp, key, value, headers)| Owned {
        offset: Offset(0),
        timestamp: Timestamp(timestamp),
        key,
        value,
        headers,
    });
    vec(record, 1..30)
}

fn terms() -> impl Strategy<Value = Vec<Term>> {
    let test = || {
        let tests = [
            "=",
            "starts with",
            "starts with",
            "contains",
            "contains",
            "<",
            "<=",
            ">",
            ">=",
        ];
        select(tests.to_vec())
    };
    let comparison = select(&["<", "<=", ">", ">="][..]);
    let term = prop_oneof![
        (test(), bytes()).prop_map(|(test, bytes)| Term::Key(test, bytes)),
        (test(), bytes()).prop_map(|(test, bytes)| Term::Value(test, bytes)),
        (select(&SECONDARY_KEYS[..]), test(), bytes())
            .prop_map(|(name, test, bytes)| Term::SecondaryKey(name, test, bytes)),
        (comparison, time()).prop_map(|(comparison, time)| Term::Time(comparison, time)),
    ];
    vec(term, 1..4)
}

fn build(compression: Compression, records: &[Owned]) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    builder.set_transactional(true);
    for record in records {
        let headers = record.headers.iter();
        let headers: Vec<Header<'_>> = headers
            .map(|(name, value)| Header {
                name,
                value: value.as_deref(),
            })
            .collect();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let pushed = builder.push(record.timestamp, key, value, &headers);
        pushed.unwrap();
    }
    let producer = Producer {
        id: ProducerId(7),
        epoch: ProducerEpoch(1),
        sequence: Sequence(5),
    };
    let mut chunk = builder.finish(Some(producer)).unwrap().to_vec();
    set_base_offset(&mut chunk, Offset(100));
    chunk
}

/// Gives all records the broker's time.
fn set_log_append_time(chunk: &mut [u8]) {
    chunk[22] |= 1 << 3;
    let crc = crc32c(&chunk[21..]);
    chunk[17..21].copy_from_slice(&crc.to_be_bytes());
}

fn read(chunk: &Chunk<'_>) -> Vec<Owned> {
    let mut decompressor = Decompressor::default();
    let records = chunk.records(&mut decompressor).unwrap().map(|record| {
        let record = record.unwrap();
        let headers = record.headers();
        Owned {
            offset: record.offset,
            timestamp: record.timestamp,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers
                .map(|header| (header.name.to_vec(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        }
    });
    records.collect()
}

/// A chunk of 1,000 records with the keys `0` to `999`, values of 100 bytes and times from 1000.
fn thousand(compression: Compression) -> Vec<u8> {
    let records = (0..1000).map(|number: i64| Owned {
        offset: Offset(0),
        timestamp: Timestamp(1000 + number),
        key: Some(number.to_string().into_bytes()),
        value: Some(vec![number as u8; 100]),
        headers: Vec::new(),
    });
    build(compression, &records.collect::<Vec<_>>())
}

fn filtered(
    filter: &str,
    chunk: &[u8],
    decompressor: &mut Decompressor,
) -> Result<(Selected, Vec<u8>), ChunkError> {
    let mut out = Vec::new();
    let chunk = Chunk::parse(chunk).unwrap();
    let selected = Filter::parse(filter)
        .unwrap()
        .select(&chunk, decompressor, &mut out);
    selected.map(|selected| (selected, out))
}

proptest! {
    #[test]
    fn a_filter_selects_the_records_that_match_one_by_one(
        compression in select(&Compression::ALL[..]),
        is_log_append_time: bool,
        built in records(),
        terms in terms(),
    ) {
        let mut bytes = build(compression, &built);
        if is_log_append_time {
            set_log_append_time(&mut bytes);
        }
        let chunk = Chunk::parse(&bytes).unwrap();
        let all = read(&chunk);
        let matching: Vec<Owned> = all
            .iter()
            .filter(|record| terms.iter().all(|term| term.matches(record)))
            .cloned()
            .collect();

        let filter = filter_of(&terms);
        let mut decompressor = Decompressor::default();
        let mut one_by_one = Vec::new();
        for record in chunk.records(&mut decompressor).unwrap().map(Result::unwrap) {
            if filter.matches(&record) {
                one_by_one.push(record.offset);
            }
        }
        let offsets: Vec<Offset> = matching.iter().map(|record| record.offset).collect();
        prop_assert_eq!(one_by_one, offsets, "{}", filter);

        // The filter appends to existing bytes.
        let mut out = b"before".to_vec();
        let selected = filter.select(&chunk, &mut decompressor, &mut out).unwrap();
        let appended = out.strip_prefix(b"before").unwrap();
        if matching.is_empty() || matching.len() == all.len() {
            let expected = if matching.is_empty() { Selected::None } else { Selected::All };
            prop_assert_eq!(selected, expected);
            prop_assert!(appended.is_empty());
            return Ok(());
        }
        prop_assert_eq!(selected, Selected::Some(matching.len() as u32));
        let rebuilt = Chunk::parse(appended).unwrap();
        prop_assert_eq!(read(&rebuilt), matching);

        let mut header = *rebuilt.header();
        prop_assert_eq!(header.attributes.compression(), Compression::None);
        prop_assert!(header.attributes.is_transactional());
        prop_assert_eq!(
            header.attributes.timestamp_type() == TimestampType::LogAppend,
            is_log_append_time
        );
        // All other fields are unchanged.
        header.total_bytes = chunk.header().total_bytes;
        header.crc = chunk.header().crc;
        header.attributes = chunk.header().attributes;
        header.record_count = chunk.header().record_count;
        prop_assert_eq!(&header, chunk.header());

        // The filter also accepts a chunk with gaps.
        let again = filter.select(&rebuilt, &mut decompressor, &mut Vec::new());
        prop_assert_eq!(again, Ok(Selected::All));
    }

    #[test]
    fn malformed_records_are_errors_and_append_nothing(
        compression in select(&Compression::ALL[..]),
        built in records(),
        terms in terms(),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let mut bytes = build(compression, &built);
        let body_bytes = bytes.len() - HEADER_BYTES;
        for (index, byte) in damage {
            bytes[HEADER_BYTES + index.index(body_bytes)] = byte;
        }
        let mut out = b"before".to_vec();
        let mut decompressor = Decompressor::with_bytes_max(1 << 20);
        let chunk = Chunk::trusted(&bytes).unwrap();
        match filter_of(&terms).select(&chunk, &mut decompressor, &mut out) {
            Ok(Selected::Some(_)) => {
                prop_assert!(Chunk::parse(&out[b"before".len()..]).is_ok());
            }
            Ok(Selected::All | Selected::None) | Err(_) => prop_assert_eq!(&out, b"before"),
        }
    }
}

#[test]
fn selecting_one_percent_of_the_records_takes_about_one_percent_of_the_bytes() {
    for compression in Compression::ALL {
        let bytes = thousand(compression);
        let plain_bytes = thousand(Compression::None).len();
        let mut decompressor = Decompressor::default();
        let (selected, out) =
            filtered("key starts with \"77\"", &bytes, &mut decompressor).unwrap();
        assert_eq!(selected, Selected::Some(11), "{compression}");
        assert!(
            out.len() < plain_bytes * 12 / 1000 + HEADER_BYTES,
            "{}",
            out.len()
        );
    }
}

#[test]
fn uncompressed_records_are_read_in_place() {
    let bytes = thousand(Compression::None);
    // It has no room to decompress anything.
    let mut decompressor = Decompressor::with_bytes_max(0);
    let (selected, out) = filtered("key = \"5\"", &bytes, &mut decompressor).unwrap();
    assert_eq!(selected, Selected::Some(1));
    assert!(out.len() < 200);
    assert_eq!(
        filtered("key = \"x\"", &bytes, &mut decompressor),
        Ok((Selected::None, Vec::new()))
    );
}

#[test]
fn a_chunk_is_not_read_when_its_header_rules_out_all_its_records() {
    let bytes = thousand(Compression::Lz4);
    let mut log_append_time = bytes.clone();
    set_log_append_time(&mut log_append_time);
    // The base timestamp is the first record's, not the least. A largest timestamp before it was not filled in.
    let mut not_filled_in = bytes.clone();
    not_filled_in[35..43].copy_from_slice(&(-1_i64).to_be_bytes());
    set_log_append_time(&mut not_filled_in);
    not_filled_in[22] ^= 1 << 3;
    let crc = crc32c(&not_filled_in[21..]);
    not_filled_in[17..21].copy_from_slice(&crc.to_be_bytes());

    // Reading the chunk fails, since the decompressor has no room.
    let mut decompressor = Decompressor::with_bytes_max(0);
    let mut is_read = |filter: &str, chunk: &[u8]| match filtered(filter, chunk, &mut decompressor)
    {
        Ok((Selected::None, _)) => false,
        Err(ChunkError::DecompressedSize { .. }) => true,
        other => panic!("{filter}: {other:?}"),
    };
    for (filter, create, append) in [
        ("time > 1998", true, true),
        ("time > 1999", false, false),
        ("time >= 1999", true, true),
        ("time >= 2000", false, false),
        ("key = \"1\" and time > 1999", false, false),
        ("time < 1999", true, false),
        ("time <= 1998", true, false),
        ("time <= 1999", true, true),
        ("time < 1000", true, false),
    ] {
        assert_eq!(is_read(filter, &bytes), create, "{filter}");
        assert_eq!(is_read(filter, &log_append_time), append, "{filter}");
        assert!(is_read(filter, &not_filled_in), "{filter}");
    }
}

#[test]
fn control_chunks_are_selected_whole() {
    let marker = EndMarker {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(1),
        end: TransactionEnd::Commit,
        coordinator_epoch: 3,
    };
    let bytes = marker.to_chunk(Timestamp(1000)).unwrap();
    for filter in ["key = \"a\"", "time > 5000"] {
        let selected = filtered(filter, &bytes, &mut Decompressor::default());
        assert_eq!(selected, Ok((Selected::All, Vec::new())), "{filter}");
    }
}

#[test]
fn a_chunk_without_records_selects_none() {
    let bytes = thousand(Compression::Gzip);
    let mut empty = bytes[..HEADER_BYTES].to_vec();
    empty[8..12].copy_from_slice(&49_i32.to_be_bytes());
    empty[57..61].copy_from_slice(&[0; 4]);
    set_log_append_time(&mut empty);
    let selected = filtered("key = \"1\"", &empty, &mut Decompressor::default());
    assert_eq!(selected, Ok((Selected::None, Vec::new())));
}

#[test]
fn a_key_range_filter_selects_its_range_and_round_trips_through_its_text() {
    let ranges = [
        KeyRange::all(),
        KeyRange::prefix("a\"\\"),
        KeyRange::prefix(b"\xff"),
        KeyRange::new("b", Some(b"b\0".to_vec())),
        KeyRange::new("b", Some(b"a".to_vec())),
    ];
    let keys: [Option<&[u8]>; 7] = [
        None,
        Some(b""),
        Some(b"a\"\\x"),
        Some(b"b"),
        Some(b"b\0"),
        Some(b"c"),
        Some(b"\xff\xff"),
    ];
    for range in ranges {
        let filter = Filter::of_keys(&range);
        let parsed = Filter::parse(&filter.to_string()).unwrap();
        let mut builder = ChunkBuilder::new(Compression::None);
        for key in keys {
            builder.push(Timestamp(0), key, Some(b"v"), &[]).unwrap();
        }
        let bytes = builder.finish(None).unwrap();
        let chunk = Chunk::parse(bytes).unwrap();
        let mut decompressor = Decompressor::default();
        for record in chunk.records(&mut decompressor).unwrap() {
            let record = record.unwrap();
            let expected = record.key.is_some_and(|key| range.contains(key));
            assert_eq!(filter.matches(&record), expected, "{filter} {record:?}");
            assert_eq!(parsed.matches(&record), expected, "{filter} {record:?}");
        }
    }
}
