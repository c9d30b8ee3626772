//! docs/protocol.md against the table of requests and the native messages.

use std::collections::BTreeMap;

use crate::native::described::Described;
use crate::native::*;
use crate::{SUPPORTED, Supported};

const PAGE: &str = include_str!("../../../../docs/protocol.md");

/// The fields that all responses begin with; the page names them once.
const COMMON_FIELDS: [&str; 3] = ["throttle_time_ms", "error_code", "error_message"];

/// Types without a table.
const PRIMITIVES: [&str; 9] = [
    "int8", "int16", "int64", "uint32", "uint64", "bool", "string", "bytes", "uuid",
];

type Fields = Vec<(String, String)>;

/// Name and fields of messages.
macro_rules! messages {
    ($($name:ident)*) => {
        BTreeMap::from([$((stringify!($name), $name::fields())),*])
    };
}

fn messages() -> BTreeMap<&'static str, Vec<(&'static str, String)>> {
    messages! {
        CreateStreamRequest CreateStreamResponse StreamSettings FurtherSetting
        DescribeStreamRequest DescribeStreamResponse LaneDescription
        ListStreamsRequest ListStreamsResponse ListedStream
        GrowStreamRequest GrowStreamResponse
        DeleteStreamRequest DeleteStreamResponse
        WriteChunksRequest WriteChunksResponse ChunkToWrite WrittenChunk
        ReadChunksRequest ReadChunksResponse ReadFromCursor
        NextGroupsRequest NextGroupsResponse
        NextSegmentsRequest NextSegmentsResponse SegmentStart
        AvailableGroupsRequest AvailableGroupsResponse GroupRange
        AvailableSegmentsRequest AvailableSegmentsResponse SegmentRange
        CommitCursorsRequest CommitCursorsResponse CommittedCursor
        ReleaseGroupsRequest ReleaseGroupsResponse
        PutObjectRequest PutObjectResponse ObjectDescription
        GetObjectRequest GetObjectResponse
        ListObjectsRequest ListObjectsResponse
        DeleteObjectRequest DeleteObjectResponse
        LocalSocketRequest LocalSocketResponse
        SubscribeRequest SubscribeResponse SubscribedSource SubscribedLane SubscribedApplication
        SharedMemory
        ReceiveRequest ReceiveResponse HandedChunks
        UnsubscribeRequest UnsubscribeResponse
    }
}

/// The first two cells of a table's rows, from the first table in `text` on.
fn rows(text: &str) -> Fields {
    let lines = text.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let mut cell = || {
            cells
                .next()
                .unwrap_or_default()
                .trim_matches('`')
                .to_owned()
        };
        (cell(), cell())
    })
    .collect()
}

#[test]
fn the_page_has_the_table_of_requests() {
    let (_, section) = PAGE.split_once("\n## Requests\n").unwrap();
    let expected = SUPPORTED.iter().map(|supported| {
        let Supported {
            api,
            version_min,
            version_max,
            flexible_from,
        } = supported;
        let versions = match version_min == version_max {
            true => version_min.to_string(),
            false => format!("{version_min}–{version_max}"),
        };
        let flexible = match *flexible_from {
            i16::MAX => "never".to_owned(),
            version => version.to_string(),
        };
        format!("| {} | {api:?} | {versions} | {flexible} |", *api as i16)
    });
    let table = section.trim_start().lines().skip(2);
    let table = table.take_while(|line| line.starts_with('|'));
    assert_eq!(table.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn the_page_has_all_fields_of_the_native_messages() {
    for (name, mut fields) in messages() {
        if name.ends_with("Response") {
            let common: Vec<&str> = fields.drain(..3).map(|(field, _)| field).collect();
            assert_eq!(common, COMMON_FIELDS, "{name}");
        }
        let (_, description) = PAGE.split_once(&format!("\n`{name}`")).expect(name);
        let end = description.find("\n`").unwrap_or(description.len());
        let documented = rows(&description[..end]);
        let expected: Fields = fields
            .into_iter()
            .map(|(field, type_name)| (field.to_owned(), type_name))
            .collect();
        assert_eq!(documented, expected, "{name}");
    }
}

#[test]
fn no_native_message_is_missing() {
    let messages = messages();
    for supported in SUPPORTED
        .iter()
        .filter(|supported| supported.api as i16 >= 10_000)
    {
        let api = supported.api;
        assert!(
            PAGE.contains(&format!("\n### {api:?} ({})\n", api as i16)),
            "{api:?}"
        );
        for kind in ["Request", "Response"] {
            assert!(
                messages.contains_key(format!("{api:?}{kind}").as_str()),
                "{api:?}"
            );
        }
    }
    for (name, fields) in &messages {
        for (field, type_name) in fields {
            let element = type_name.rsplit(' ').next().unwrap_or_default();
            let is_known = messages.contains_key(element)
                || PRIMITIVES.contains(&element)
                || element == "Cursor";
            assert!(is_known, "{name}.{field}: {type_name}");
        }
    }
}
