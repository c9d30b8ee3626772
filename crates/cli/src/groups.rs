//! `millstream group …`

mod reset;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use millstream_base::Offset;
use millstream_client::{
    ClientError, GroupDescription, GroupOffsets, Isolation, ShareProgress, Start, TopicPartition,
};
use serde::Serialize;
use serde_json::json;

use self::reset::{Move, Scope};
use crate::args::GroupCommand;
use crate::console::{Align, Table, grouped, print, print_json, report};
use crate::remote::{Remote, explained};
use crate::settings::Settings;

/// The kind of a group that a flow uses to publish its progress.
const FLOW: &str = "flow";

/// The kind of a share group, whose progress is with its own requests.
pub const SHARE: &str = "share";

/// A group's progress in a partition, and the members that read it.
#[derive(Serialize)]
struct Position {
    stream: String,
    partition: i32,
    /// The committed offset, the first that is not processed; `None` before the first commit.
    offset: Option<Offset>,
    /// The offset after the last record.
    end: Offset,
    /// Offsets, of records and of markers of transactions, that the group has not processed; `None` for a partition that a
    /// share group has not read.
    lag: Option<u64>,
    /// The member; several members of a share group, separated by commas.
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
            by,
            partition,
            dry_run,
        } => {
            let moves = match (to, by) {
                (Some(position), _) => Move::To(position),
                (None, by) => Move::By(by.unwrap_or_default()),
            };
            let scope = Scope {
                stream: stream.as_deref(),
                partition,
            };
            reset::run(&remote, &group, scope, moves, dry_run, is_json)
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

/// The state of a group, as an entry of the list.
pub struct GroupState {
    pub name: String,
    pub kind: String,
    pub state: String,
    /// `None` if the user may not see the group.
    pub members: Option<u64>,
    /// `None` if it is unknown.
    pub lag: Option<u64>,
}

/// Returns the states of all groups, by name.
pub fn states(remote: &Remote) -> anyhow::Result<Vec<GroupState>> {
    let groups = remote.wait(remote.client().groups())?;
    let states = groups.into_iter().map(|group| {
        let (is_flow, lag) = match group.kind.as_str() {
            SHARE => (false, share_lag(remote, &group.name)?),
            _ => lag(remote, &group.name)?,
        };
        Ok(GroupState {
            members: members(remote, &group.name)?,
            kind: if is_flow { FLOW.to_owned() } else { group.kind },
            name: group.name,
            state: group.state,
            lag,
        })
    });
    states.collect()
}

/// Returns the number of members; `None` if the user may not see the group, or if it is deleted.
fn members(remote: &Remote, group: &str) -> anyhow::Result<Option<u64>> {
    match remote.runtime().block_on(remote.client().group(group)) {
        Err(ClientError::Refused { .. }) => Ok(None),
        found => Ok(Some(found.map_err(explained)?.members.len() as u64)),
    }
}

fn list(remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let groups = states(remote)?;
    if is_json {
        let groups = groups.iter().map(|it| {
            json!({
                "group": it.name,
                "kind": it.kind,
                "state": it.state,
                "members": it.members,
                "lag": it.lag,
            })
        });
        return print_json(&json!({ "groups": groups.collect::<Vec<_>>() }));
    }
    let mut table = Table::new(&[
        ("group", Align::Left),
        ("kind", Align::Left),
        ("state", Align::Left),
        ("members", Align::Right),
        ("lag", Align::Right),
    ]);
    for it in groups {
        let [members, lag] = [it.members, it.lag].map(|it| it.map(grouped).unwrap_or_default());
        table.row([it.name, it.kind, it.state, members, lag]);
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

/// Returns the lag of a share group in the partitions that it has read. `None` if it has read none or the user may not
/// see the group.
fn share_lag(remote: &Remote, group: &str) -> anyhow::Result<Option<u64>> {
    match remote
        .runtime()
        .block_on(remote.client().share_progress(group))
    {
        Err(ClientError::Refused { .. }) => Ok(None),
        progress => {
            let progress = progress.map_err(explained)?;
            let lags = progress.values().map(|reached| reached.lag);
            Ok(lags.sum::<Option<u64>>().filter(|_| !progress.is_empty()))
        }
    }
}

fn describe(remote: &Remote, group: &str, is_json: bool) -> anyhow::Result<()> {
    let found = remote.wait(remote.client().group(group))?;
    let (kind, positions) = match found.kind {
        SHARE => {
            let progress = remote.wait(remote.client().share_progress(group))?;
            (SHARE, share_positions(remote, &progress, &found)?)
        }
        kind => {
            let committed = remote.wait(remote.client().group_offsets(group))?;
            let kind = if committed.are_of_flow() { FLOW } else { kind };
            (kind, positions(remote, committed, &found)?)
        }
    };
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
            position.lag.map(grouped).unwrap_or_default(),
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
            lag: Some(end.0.saturating_sub(offset.unwrap_or(first).0)),
            member,
            stream: place.topic.to_string(),
            partition: place.partition,
        }
    };
    Ok(places.into_iter().map(position).collect())
}

/// All partitions that are assigned to the share group or that it has read.
fn share_positions(
    remote: &Remote,
    progress: &HashMap<TopicPartition, ShareProgress>,
    found: &GroupDescription,
) -> anyhow::Result<Vec<Position>> {
    let mut members: BTreeMap<TopicPartition, Vec<&str>> = progress
        .keys()
        .map(|place| (place.clone(), Vec::new()))
        .collect();
    for member in &found.members {
        for place in &member.partitions {
            members.entry(place.clone()).or_default().push(&member.id);
        }
    }
    let asked: Vec<_> = members
        .keys()
        .map(|place| (place.clone(), Start::Latest))
        .collect();
    let ends = remote.wait(remote.client().offsets(&asked, Isolation::Committed))?;
    let position = |(place, members): (TopicPartition, Vec<&str>)| {
        let reached = progress.get(&place);
        Position {
            offset: reached.and_then(|reached| reached.start),
            end: ends.get(&place).copied().unwrap_or_default(),
            lag: reached.and_then(|reached| reached.lag),
            member: (!members.is_empty()).then(|| members.join(", ")),
            stream: place.topic.to_string(),
            partition: place.partition,
        }
    };
    Ok(members.into_iter().map(position).collect())
}
