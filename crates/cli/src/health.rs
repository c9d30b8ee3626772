//! `millstream health`: checks a server by its answers.

use std::collections::HashMap;
use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use humantime::format_duration;
use millstream_base::{ByteSize, Offset};
use millstream_client::{Client, ClientError, ListedGroup, TopicPartition};
use serde_json::json;

use crate::args::HealthArgs;
use crate::console::{count_of, is_broken_pipe, print, print_json};
use crate::groups::{self, GroupState};
use crate::remote::{Remote, explained};
use crate::settings::Settings;
use crate::transactions;

/// The result of a check.
struct Check {
    name: &'static str,
    /// The finding; an error describes the fault.
    result: Result<String, String>,
}

pub fn run(args: &HealthArgs, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let remote = Remote::only(settings, "the state that this command checks")?;
    let mut checks = vec![check("server", || server(&remote))];
    // Without a server, the other checks would repeat its error.
    if checks[0].result.is_ok() {
        checks.push(check("streams", || streams(&remote)));
        checks.push(check("disk", || disk(&remote, args.free)));
        checks.push(check("transactions", || {
            open_transactions(&remote, args.transaction_age)
        }));
        if let Some(time) = args.watch_groups {
            checks.push(check("groups", || watch_groups(&remote, time)));
        }
    }
    let failed = checks.iter().filter(|check| check.result.is_err()).count() as u64;
    let printed = if is_json {
        let documents = checks.iter().map(|check| {
            let (Ok(text) | Err(text)) = &check.result;
            json!({ "check": check.name, "is_ok": check.result.is_ok(), "text": text })
        });
        let documents: Vec<_> = documents.collect();
        print_json(&json!({ "is_healthy": failed == 0, "checks": documents }))
    } else {
        print(|out| {
            for Check { name, result } in &checks {
                match result {
                    Ok(text) => writeln!(out, "{name:13} ok      {text}")?,
                    Err(text) => writeln!(out, "{name:13} failed  {text}")?,
                }
            }
            Ok(())
        })
    };
    // A reader that closes the pipe early turns no failed check into success.
    if let Err(error) = printed
        && (failed == 0 || !is_broken_pipe(&error))
    {
        return Err(error);
    }
    match failed {
        0 => Ok(()),
        _ => bail!(
            "{failed} of {} failed",
            count_of(checks.len() as u64, "check")
        ),
    }
}

/// Makes a check. A check that cannot be made fails, since its answer is unknown.
fn check(
    name: &'static str,
    run: impl FnOnce() -> anyhow::Result<Result<String, String>>,
) -> Check {
    let result = run().unwrap_or_else(|error| Err(format!("cannot check: {error:#}")));
    Check { name, result }
}

/// Counts what a check covers: servers leave out of their lists what the user may not describe.
fn covered(count: usize, what: &str) -> String {
    let count = count_of(count as u64, what);
    format!("{count} that the user may describe")
}

fn server(remote: &Remote) -> anyhow::Result<Result<String, String>> {
    let servers = remote.runtime().block_on(remote.client().servers());
    Ok(match servers {
        Ok(servers) => {
            let addresses: Vec<String> = servers.into_values().collect();
            Ok(format!("{} answers", addresses.join(", ")))
        }
        Err(error) => Err(explained(error).to_string()),
    })
}

/// Looks for partitions that refuse writes.
fn streams(remote: &Remote) -> anyhow::Result<Result<String, String>> {
    let client = remote.client();
    let listed = remote.wait(client.streams(""))?;
    let (mut partitions, mut damaged) = (0, Vec::new());
    for stream in &listed {
        let described = match remote.runtime().block_on(client.stream(&stream.name)) {
            // The stream was deleted after the list was made.
            Err(error) if error.is_unknown_stream() => continue,
            described => described.map_err(explained)?,
        };
        partitions += described.lanes.len() as u64;
        for lane in described.lanes {
            if let Some(fault) = lane.fault {
                damaged.push(format!(
                    "partition {} of {}: {fault}",
                    lane.partition, stream.name
                ));
            }
        }
    }
    Ok(match damaged.first() {
        None => Ok(format!(
            "{} in {} accept writes",
            count_of(partitions, "partition"),
            covered(listed.len(), "stream")
        )),
        Some(first) => Err(format!(
            "{} with a fault; the first is {first}",
            count_of(damaged.len() as u64, "partition")
        )),
    })
}

fn disk(remote: &Remote, free_min: ByteSize) -> anyhow::Result<Result<String, String>> {
    let disks = remote.wait(remote.client().disks())?;
    let mut texts = Vec::new();
    let mut is_short = false;
    for disk in disks {
        let (Some(free), Some(total)) = (disk.free, disk.total) else {
            texts.push(format!("{} has an unknown size", disk.path));
            continue;
        };
        is_short |= free < free_min;
        texts.push(format!("{free} of {total} free in {}", disk.path));
    }
    let text = texts.join("; ");
    Ok(match is_short {
        false => Ok(text),
        true => Err(format!("{text}; at least {free_min} should be free")),
    })
}

/// Looks for transactions at which consumers have waited too long.
fn open_transactions(remote: &Remote, age_max: Duration) -> anyhow::Result<Result<String, String>> {
    let found = remote.wait(remote.client().transactions())?;
    let open: Vec<_> = found.iter().filter(|it| it.is_open()).collect();
    let count = covered(open.len(), "open transaction");
    let ages = open
        .iter()
        .filter_map(|it| Some((transactions::age(it)?, &it.id)));
    Ok(match ages.max() {
        Some((age, id)) if age > age_max => Err(format!(
            "{count}; {id} has been open for {}, and consumers of committed records wait at it; `millstream \
             transaction describe {id}` shows it",
            format_duration(Duration::from_secs(age.as_secs()))
        )),
        _ => Ok(count),
    })
}

/// Looks for groups that have a lag, and whose position does not move while they are watched.
///
/// A group that has a lag at the beginning has it to the end if its position stays the same, since the ends of partitions
/// never move back. So a lag that begins during the watch does not count.
fn watch_groups(remote: &Remote, time: Duration) -> anyhow::Result<Result<String, String>> {
    let before = positions(remote)?;
    let groups = groups::states(remote)?;
    thread::sleep(time);
    let after = positions(remote)?;
    let is_visible = |group: &&GroupState| before.contains_key(&group.name);
    let visible = groups.iter().filter(is_visible);
    let (known, unknown): (Vec<_>, Vec<_>) = visible.partition(|group| group.lag.is_some());
    let is_stuck = |group: &&GroupState| {
        group.lag > Some(0) && before.get(&group.name) == after.get(&group.name)
    };
    let stuck = names(known.iter().copied().filter(is_stuck));
    let unknown = names(unknown.into_iter());
    let watched = format_duration(time);
    let text = match stuck.is_empty() {
        true => {
            let count = covered(known.len(), "group");
            format!("no standstill within {watched} in {count}")
        }
        false => format!(
            "{} with a lag stood still for {watched}: {}",
            count_of(stuck.len() as u64, "group"),
            stuck.join(", ")
        ),
    };
    let text = match unknown.len() as u64 {
        0 => text,
        count => format!(
            "{text}; the lag of {} is unknown: {}",
            count_of(count, "group"),
            unknown.join(", ")
        ),
    };
    Ok(match stuck.is_empty() {
        true => Ok(text),
        false => Err(text),
    })
}

fn names<'a>(groups: impl Iterator<Item = &'a GroupState>) -> Vec<&'a str> {
    groups.map(|group| group.name.as_str()).collect()
}

/// The position of a group in each partition: its committed offset, or the first record that a share group has not
/// processed, if that is known.
type Positions = HashMap<TopicPartition, Option<Offset>>;

/// Returns the positions of each group that the user may see.
fn positions(remote: &Remote) -> anyhow::Result<HashMap<String, Positions>> {
    let mut positions = HashMap::new();
    for group in remote.wait(remote.client().groups())? {
        let found = remote
            .runtime()
            .block_on(positions_of(remote.client(), &group));
        match found {
            Err(ClientError::Refused { .. }) => {}
            found => {
                positions.insert(group.name, found.map_err(explained)?);
            }
        }
    }
    Ok(positions)
}

async fn positions_of(client: &Client, group: &ListedGroup) -> Result<Positions, ClientError> {
    if group.kind == groups::SHARE {
        let progress = client.share_progress(&group.name).await?.into_iter();
        return Ok(progress
            .map(|(place, reached)| (place, reached.start))
            .collect());
    }
    let committed = client.group_offsets(&group.name).await?.offsets.into_iter();
    Ok(committed
        .map(|(place, offset)| (place, Some(offset)))
        .collect())
}
