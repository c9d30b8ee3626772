//! `millstream health`: checks a server by its answers.

use std::collections::HashMap;
use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::bail;
use humantime::format_duration;
use millstream_base::{ByteSize, Offset};
use millstream_client::{ClientError, TopicPartition};
use serde_json::json;

use crate::args::HealthArgs;
use crate::console::{count_of, print, print_json};
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
    if is_json {
        let documents = checks.iter().map(|check| {
            let (Ok(text) | Err(text)) = &check.result;
            json!({ "check": check.name, "is_ok": check.result.is_ok(), "text": text })
        });
        let documents: Vec<_> = documents.collect();
        print_json(&json!({ "is_healthy": failed == 0, "checks": documents }))?;
    } else {
        print(|out| {
            for Check { name, result } in &checks {
                match result {
                    Ok(text) => writeln!(out, "{name:13} ok      {text}")?,
                    Err(text) => writeln!(out, "{name:13} failed  {text}")?,
                }
            }
            Ok(())
        })?;
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

/// Looks for groups that have a lag and commit nothing while they are watched.
fn watch_groups(remote: &Remote, time: Duration) -> anyhow::Result<Result<String, String>> {
    let before = positions(remote)?;
    thread::sleep(time);
    let now = groups::states(remote)?;
    let offsets_now = positions(remote)?;
    let is_stuck = |group: &&GroupState| {
        let has_lag = group.lag.is_some_and(|lag| lag > 0);
        let same = before.get(&group.name) == offsets_now.get(&group.name);
        has_lag && same && before.contains_key(&group.name)
    };
    let stuck: Vec<&str> = now
        .iter()
        .filter(is_stuck)
        .map(|group| group.name.as_str())
        .collect();
    let is_watched = |group: &&GroupState| before.contains_key(&group.name);
    let count = covered(now.iter().filter(is_watched).count(), "group");
    let watched = format_duration(time);
    Ok(match stuck.is_empty() {
        true => Ok(format!("no standstill within {watched} in {count}")),
        false => Err(format!(
            "{} with a lag committed nothing within {watched}: {}",
            count_of(stuck.len() as u64, "group"),
            stuck.join(", ")
        )),
    })
}

/// Returns the committed offsets of each group that the user may see.
fn positions(remote: &Remote) -> anyhow::Result<HashMap<String, HashMap<TopicPartition, Offset>>> {
    let client = remote.client();
    let mut positions = HashMap::new();
    for group in remote.wait(client.groups())? {
        match remote.runtime().block_on(client.group_offsets(&group.name)) {
            Err(ClientError::Refused { .. }) => {}
            committed => {
                let committed = committed.map_err(explained)?;
                positions.insert(group.name, committed.offsets);
            }
        }
    }
    Ok(positions)
}
