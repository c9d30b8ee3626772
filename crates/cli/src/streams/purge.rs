//! `millstream stream purge`: removes the oldest records of a stream.

use std::collections::BTreeMap;

use anyhow::bail;
use millstream_base::Offset;
use millstream_client::{Isolation, TopicPartition};
use serde_json::json;

use crate::args::PurgeArgs;
use crate::console::{count_of, report};
use crate::remote::Remote;
use crate::values::Position;

pub fn run(args: &PurgeArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let stream = &args.stream;
    let lanes = remote.stream(stream)?.lanes;
    let count = count_of(lanes.len() as u64, "partition");
    let chosen = lanes
        .iter()
        .filter(|lane| args.partition.is_none_or(|one| one == lane.partition));
    let firsts: BTreeMap<TopicPartition, Offset> = chosen
        .map(|lane| {
            let place = TopicPartition {
                topic: stream.as_str().into(),
                partition: i32::try_from(lane.partition).unwrap_or(i32::MAX),
            };
            (place, lane.earliest)
        })
        .collect();
    match (args.before, firsts.len()) {
        (_, 0) => bail!(
            "stream {stream} has {count}, and no partition {}",
            args.partition.unwrap_or_default()
        ),
        (Position::At(_), 2..) => bail!(
            "stream {stream} has {count}, each with offsets of its own; choose one with --partition"
        ),
        _ => {}
    }
    let client = remote.client();
    let asked: Vec<_> = firsts
        .keys()
        .map(|place| (place.clone(), args.before.into()))
        .collect();
    let offsets = remote.wait(client.offsets(&asked, Isolation::Uncommitted))?;
    let offsets = offsets.into_iter().collect();
    let now = remote.wait(client.delete_records(&offsets))?;
    let removed = now.iter().map(|(place, Offset(first))| {
        let before = firsts.get(place).copied().unwrap_or_default();
        first.saturating_sub(before.0)
    });
    let removed: u64 = removed.sum();
    let list = now
        .iter()
        .map(|(place, first)| json!({ "partition": place.partition, "earliest": first }));
    report(
        is_json,
        &json!({
            "stream": stream,
            "removed_records": removed,
            "partitions": list.collect::<Vec<_>>(),
        }),
        format_args!("removed {} of {stream}", count_of(removed, "record")),
    )
}
