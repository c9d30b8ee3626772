//! `millstream group …`

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use anyhow::bail;
use millstream_base::Offset;
use millstream_client::{
    ClientError, GroupDescription, GroupOffsets, Isolation, Start, TopicPartition,
};
use serde::Serialize;
use serde_json::json;

use crate::args::GroupCommand;
use crate::console::{Align, Table, count_of, grouped, print, print_json, report};
use crate::remote::{Remote, explained};
use crate::settings::Settings;
use crate::values::Place;

/// The kind of a group that a flow uses to publish its progress.
const FLOW: &str = "flow";

/// A group's progress in a partition, and the member that reads it.
#[derive(Serialize)]
struct Position {
    stream: String,
    partition: i32,
    /// The committed offset, the first that is not processed; `None` before the first commit.
    offset: Option<Offset>,
    /// The offset after the last record.
    end: Offset,
    /// Records that the group has not processed.
    lag: u64,
    member: Option<String>,
}

pub fn run(command: GroupCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let remote = Remote::only(settings, "groups")?;
    match command {
        GroupCommand::List => list(&remote, is_json),
        GroupCommand::Describe { group } => describe(&remote, &group, is_json),
        GroupCommand::Reset {
            group,
            stream,
            to,
            partition,
        } => {
            let offsets = reset(&remote, &group, &stream, to, partition)?;
            let count = count_of(offsets.len() as u64, "partition");
            let list: Vec<_> = offsets
                .iter()
                .map(|(place, offset)| json!({ "partition": place.partition, "offset": offset }))
                .collect();
            report(
                is_json,
                &json!({ "group": group, "stream": stream, "offsets": list }),
                format_args!("group {group} continues at {to} in {count} of {stream}"),
            )
        }
        GroupCommand::Delete { group } => {
            remote.wait(remote.client().delete_group(&group))?;
            report(
                is_json,
                &json!({ "group": group }),
                format_args!("deleted group {group}"),
            )
        }
    }
}

fn list(remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let groups = remote.wait(remote.client().groups())?;
    let lags = groups.iter().map(|group| lag(remote, &group.name));
    let lags = lags.collect::<anyhow::Result<Vec<_>>>()?;
    let groups = groups.into_iter().zip(lags);
    let groups = groups.map(|(group, (is_flow, lag))| {
        let kind = if is_flow { FLOW } else { &group.kind };
        (group.name, kind.to_owned(), group.state, lag)
    });
    if is_json {
        let groups: Vec<_> = groups
            .map(|(name, kind, state, lag)| {
                json!({ "group": name, "kind": kind, "state": state, "lag": lag })
            })
            .collect();
        return print_json(&json!({ "groups": groups }));
    }
    let mut table = Table::new(&[
        ("group", Align::Left),
        ("kind", Align::Left),
        ("state", Align::Left),
        ("lag", Align::Right),
    ]);
    for (name, kind, state, lag) in groups {
        table.row([name, kind, state, lag.map(grouped).unwrap_or_default()]);
    }
    table.print()
}

/// Returns whether the group publishes the progress of a flow, and its lag in the partitions in which it has
/// committed offsets. `None` without committed offsets, or if the user may not see the group, or if one of its
/// streams is deleted.
fn lag(remote: &Remote, group: &str) -> anyhow::Result<(bool, Option<u64>)> {
    let client = remote.client();
    let committed = match remote.runtime().block_on(client.group_offsets(group)) {
        Err(ClientError::Refused { .. }) => return Ok((false, None)),
        committed => committed.map_err(explained)?,
    };
    let places = committed.offsets.keys();
    let asked: Vec<_> = places.map(|place| (place.clone(), Start::Latest)).collect();
    let ends = client.offsets(&asked, Isolation::Committed);
    let ends = match remote.runtime().block_on(ends) {
        Err(ClientError::Refused { .. }) => return Ok((committed.are_of_flow(), None)),
        ends => ends.map_err(explained)?,
    };
    let offsets = committed.offsets.iter();
    let lags = offsets.map(|(place, done)| {
        let end = ends.get(place).copied().unwrap_or_default();
        end.0.saturating_sub(done.0)
    });
    let has_offsets = !committed.offsets.is_empty();
    Ok((committed.are_of_flow(), has_offsets.then(|| lags.sum())))
}

fn describe(remote: &Remote, group: &str, is_json: bool) -> anyhow::Result<()> {
    let found = remote.wait(remote.client().group(group))?;
    let committed = remote.wait(remote.client().group_offsets(group))?;
    let kind = if committed.are_of_flow() {
        FLOW
    } else {
        found.kind
    };
    let positions = positions(remote, committed, &found)?;
    if is_json {
        let members: Vec<_> = found
            .members
            .iter()
            .map(|member| json!({ "id": member.id, "client": member.client, "host": member.host }))
            .collect();
        return print_json(&json!({
            "group": group,
            "kind": kind,
            "state": found.state,
            "members": members,
            "positions": positions,
        }));
    }
    let mut table = Table::new(&[
        ("stream", Align::Left),
        ("partition", Align::Right),
        ("offset", Align::Right),
        ("end", Align::Right),
        ("lag", Align::Right),
        ("member", Align::Left),
    ]);
    for position in positions {
        let offset = position.offset.map(|Offset(offset)| grouped(offset));
        table.row([
            position.stream,
            position.partition.to_string(),
            offset.unwrap_or_else(|| "none".to_owned()),
            grouped(position.end.0),
            grouped(position.lag),
            position.member.unwrap_or_default(),
        ]);
    }
    print(|out| {
        writeln!(out, "group    {group}")?;
        writeln!(out, "kind     {kind}")?;
        writeln!(out, "state    {}", found.state)?;
        writeln!(out, "members  {}\n", found.members.len())?;
        table.write(out)
    })
}

/// All partitions that are assigned to the group or have its committed offsets.
fn positions(
    remote: &Remote,
    committed: GroupOffsets,
    found: &GroupDescription,
) -> anyhow::Result<Vec<Position>> {
    let client = remote.client();
    let mut places: BTreeMap<TopicPartition, (Option<Offset>, Option<String>)> = BTreeMap::new();
    for (place, offset) in committed.offsets {
        places.insert(place, (Some(offset), None));
    }
    for member in &found.members {
        for place in &member.partitions {
            places.entry(place.clone()).or_default().1 = Some(member.id.clone());
        }
    }
    let asked = |start| places.keys().map(|place| (place.clone(), start)).collect();
    let asked: [Vec<(TopicPartition, Start)>; 2] = [asked(Start::Earliest), asked(Start::Latest)];
    let firsts = remote.wait(client.offsets(&asked[0], Isolation::Committed))?;
    let ends = remote.wait(client.offsets(&asked[1], Isolation::Committed))?;
    let position = |(place, (offset, member)): (TopicPartition, (Option<Offset>, _))| {
        let end = ends.get(&place).copied().unwrap_or_default();
        let first = firsts.get(&place).copied().unwrap_or_default();
        Position {
            offset,
            end,
            lag: end.0.saturating_sub(offset.unwrap_or(first).0),
            member,
            stream: place.topic.to_string(),
            partition: place.partition,
        }
    };
    Ok(places.into_iter().map(position).collect())
}

fn reset(
    remote: &Remote,
    group: &str,
    stream: &str,
    to: Place,
    partition: Option<u32>,
) -> anyhow::Result<BTreeMap<TopicPartition, Offset>> {
    let lanes = remote.stream(stream)?.lanes;
    let topic: Arc<str> = stream.into();
    let places: Vec<(TopicPartition, Start)> = lanes
        .iter()
        .filter(|lane| partition.is_none_or(|partition| lane.partition == partition))
        .map(|lane| {
            let place = TopicPartition {
                topic: Arc::clone(&topic),
                partition: i32::try_from(lane.partition).unwrap_or(i32::MAX),
            };
            (place, to.into())
        })
        .collect();
    match (to, places.len()) {
        (_, 0) => bail!(
            "stream {stream} has {}, and no partition {}",
            count_of(lanes.len() as u64, "partition"),
            partition.unwrap_or_default()
        ),
        (Place::At(_), 2..) => bail!(
            "stream {stream} has {}, each with offsets of its own; choose one with --partition",
            count_of(lanes.len() as u64, "partition")
        ),
        _ => {}
    }
    if let Place::At(offset) = to {
        let chosen = lanes
            .iter()
            .find(|lane| partition.is_none_or(|partition| lane.partition == partition));
        let beyond = chosen.filter(|lane| !(lane.earliest..=lane.durable).contains(&offset));
        if let Some(lane) = beyond {
            bail!(
                "offset {offset} is out of range: a group may start in partition {} of stream {stream} at offsets {} to {}",
                lane.partition,
                lane.earliest,
                lane.durable
            );
        }
    }
    let client = remote.client();
    if remote.wait(client.group_offsets(group))?.are_of_flow() {
        bail!(
            "group {group} shows how far flow {group} is, which goes on from its checkpoints and not from here; to \
             let it read everything again, begin it anew"
        );
    }
    let offsets = remote.wait(client.offsets(&places, Isolation::Committed))?;
    let offsets = offsets.into_iter().collect();
    remote.wait(client.set_offsets(group, &offsets))?;
    Ok(offsets)
}
