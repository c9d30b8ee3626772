//! `millstream group reset`: moves the committed offsets of a group, or the start offsets of a share group.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::bail;
use millstream_base::Offset;
use millstream_client::{ClientError, Isolation, ResponseError, Start, TopicPartition};
use serde_json::json;

use crate::console::{Align, Table, count_of, grouped, print_json, report};
use crate::remote::{Remote, explained};
use crate::values::Position;

/// The move of each offset.
#[derive(Clone, Copy)]
pub enum Move {
    To(Position),
    /// Forward by this many records; back if it is negative.
    By(i64),
}

/// The partitions whose offsets move.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// All streams in which the group has offsets without it.
    pub stream: Option<&'a str>,
    /// All partitions without it.
    pub partition: Option<u32>,
}

/// The offsets that a group may have in a partition.
struct Bounds {
    first: Offset,
    end: Offset,
}

pub fn run(
    remote: &Remote,
    group: &str,
    scope: Scope<'_>,
    moves: Move,
    dry_run: bool,
    is_json: bool,
) -> anyhow::Result<()> {
    let client = remote.client();
    let shared = share_starts(remote, group)?;
    let is_shared = shared.is_some();
    let old = match shared {
        Some(starts) => starts,
        None => committed(remote, group)?,
    };
    let places = places(remote, group, scope, &old)?;
    let bounds = bounds(remote, &places)?;
    let new = match moves {
        Move::To(position) => positioned(remote, scope, position, &bounds)?,
        Move::By(count) => shifted(group, count, &old, &bounds)?,
    };
    match (dry_run, is_shared) {
        (true, _) => {}
        (false, true) => remote.wait(client.set_share_offsets(group, &new))?,
        (false, false) => remote.wait(client.set_offsets(group, &new))?,
    }
    print(group, &old, &new, moves, dry_run, is_json)
}

/// Returns the start offsets of a share group in the partitions that it has read; `None` if no share group has this name.
fn share_starts(
    remote: &Remote,
    group: &str,
) -> anyhow::Result<Option<HashMap<TopicPartition, Offset>>> {
    let progress = remote.client().share_progress(group);
    match remote.runtime().block_on(progress) {
        // Other servers may know no share groups.
        Err(ClientError::Unsupported { .. }) => Ok(None),
        Err(error) if error.response_error() == Some(ResponseError::GroupIdNotFound) => Ok(None),
        progress => {
            let progress = progress.map_err(explained)?.into_iter();
            let starts = progress.filter_map(|(place, reached)| Some((place, reached.start?)));
            Ok(Some(starts.collect()))
        }
    }
}

/// Returns the committed offsets of a group that no flow owns.
fn committed(remote: &Remote, group: &str) -> anyhow::Result<HashMap<TopicPartition, Offset>> {
    let committed = remote.wait(remote.client().group_offsets(group))?;
    if committed.are_of_flow() {
        bail!(
            "group {group} shows how far flow {group} is, which goes on from its checkpoints and not from here; to \
             let it read everything again, begin it anew"
        );
    }
    Ok(committed.offsets)
}

/// Returns the partitions in the scope.
fn places(
    remote: &Remote,
    group: &str,
    scope: Scope<'_>,
    old: &HashMap<TopicPartition, Offset>,
) -> anyhow::Result<Vec<TopicPartition>> {
    let streams: BTreeSet<String> = match scope.stream {
        Some(stream) => [stream.to_owned()].into(),
        None => old.keys().map(|place| place.topic.to_string()).collect(),
    };
    if streams.is_empty() {
        bail!("group {group} has no offsets; name a stream to set offsets in it");
    }
    let mut places = Vec::new();
    for stream in streams {
        let lanes = remote.stream(&stream)?.lanes;
        let all = lanes.iter().map(|lane| lane.partition);
        let chosen =
            all.filter(|index| scope.partition.is_none_or(|partition| partition == *index));
        let before = places.len();
        places.extend(chosen.map(|partition| TopicPartition {
            topic: stream.as_str().into(),
            partition: i32::try_from(partition).unwrap_or(i32::MAX),
        }));
        if places.len() == before {
            bail!(
                "stream {stream} has {}, and no partition {}",
                count_of(lanes.len() as u64, "partition"),
                scope.partition.unwrap_or_default()
            );
        }
    }
    Ok(places)
}

fn bounds(
    remote: &Remote,
    places: &[TopicPartition],
) -> anyhow::Result<BTreeMap<TopicPartition, Bounds>> {
    let client = remote.client();
    let asked = |start| -> Vec<_> { places.iter().map(|place| (place.clone(), start)).collect() };
    let firsts = remote.wait(client.offsets(&asked(Start::Earliest), Isolation::Committed))?;
    let ends = remote.wait(client.offsets(&asked(Start::Latest), Isolation::Committed))?;
    let bounds = places.iter().map(|place| {
        let bounds = Bounds {
            first: firsts.get(place).copied().unwrap_or_default(),
            end: ends.get(place).copied().unwrap_or_default(),
        };
        (place.clone(), bounds)
    });
    Ok(bounds.collect())
}

fn positioned(
    remote: &Remote,
    scope: Scope<'_>,
    position: Position,
    bounds: &BTreeMap<TopicPartition, Bounds>,
) -> anyhow::Result<BTreeMap<TopicPartition, Offset>> {
    if let (Position::At(offset), Some((place, of))) = (position, bounds.first_key_value()) {
        if bounds.len() > 1 {
            let of = scope
                .stream
                .map_or("the group".to_owned(), |name| format!("stream {name}"));
            bail!(
                "{of} has {}, each with offsets of its own; choose one with --partition",
                count_of(bounds.len() as u64, "partition")
            );
        }
        if !(of.first..=of.end).contains(&offset) {
            bail!(
                "offset {offset} is out of range: a group may start in partition {} of stream {} at offsets {} to {}",
                place.partition,
                place.topic,
                of.first,
                of.end
            );
        }
    }
    let asked: Vec<_> = bounds
        .keys()
        .map(|place| (place.clone(), position.into()))
        .collect();
    let found = remote.client().offsets(&asked, Isolation::Committed);
    Ok(remote.wait(found)?.into_iter().collect())
}

/// Returns the offsets of the partitions, moved within the records that exist.
fn shifted(
    group: &str,
    count: i64,
    old: &HashMap<TopicPartition, Offset>,
    bounds: &BTreeMap<TopicPartition, Bounds>,
) -> anyhow::Result<BTreeMap<TopicPartition, Offset>> {
    let mut new = BTreeMap::new();
    for (place, Bounds { first, end }) in bounds {
        if let Some(Offset(offset)) = old.get(place) {
            let moved = offset.saturating_add_signed(count);
            new.insert(place.clone(), Offset(moved.min(end.0).max(first.0)));
        }
    }
    match new.is_empty() {
        true => bail!("group {group} has no offset there, from which --by could count; use --to"),
        false => Ok(new),
    }
}

fn print(
    group: &str,
    old: &HashMap<TopicPartition, Offset>,
    new: &BTreeMap<TopicPartition, Offset>,
    moves: Move,
    dry_run: bool,
    is_json: bool,
) -> anyhow::Result<()> {
    let list = new.iter().map(|(place, offset)| {
        json!({
            "stream": &*place.topic,
            "partition": place.partition,
            "old_offset": old.get(place),
            "offset": offset,
        })
    });
    let list: Vec<_> = list.collect();
    let document = json!({ "group": group, "is_dry_run": dry_run, "offsets": list });
    if dry_run {
        if is_json {
            return print_json(&document);
        }
        let mut table = Table::new(&[
            ("stream", Align::Left),
            ("partition", Align::Right),
            ("offset", Align::Right),
            ("new offset", Align::Right),
        ]);
        for (place, offset) in new {
            let old = old.get(place).map(|Offset(offset)| grouped(*offset));
            table.row([
                place.topic.to_string(),
                place.partition.to_string(),
                old.unwrap_or_else(|| "none".to_owned()),
                grouped(offset.0),
            ]);
        }
        return table.print();
    }
    let streams: BTreeSet<&str> = new.keys().map(|place| &*place.topic).collect();
    let streams: Vec<&str> = streams.into_iter().collect();
    let streams = streams.join(", ");
    let count = count_of(new.len() as u64, "partition");
    match moves {
        Move::To(position) => report(
            is_json,
            &document,
            format_args!("group {group} continues at {position} in {count} of {streams}"),
        ),
        Move::By(moved) => report(
            is_json,
            &document,
            format_args!("moved group {group} by {moved} in {count} of {streams}"),
        ),
    }
}
