//! `millstream repair`: lists damaged data in a data directory, and removes it.

use std::io::Write;
use std::sync::Arc;

use millstream_base::{ByteSize, SystemDisk, SystemRandom};
use millstream_log::{FilesAside, InternalStore, PartitionDamage, salvage};
use serde::Serialize;
use serde_json::json;

use crate::args::RepairArgs;
use crate::console::{print, print_json, report};
use crate::node;
use crate::settings::Settings;
use crate::usage::WrongUsage;

#[derive(Serialize)]
struct Repaired<'a> {
    stream: &'a str,
    #[serde(flatten)]
    taken: FilesAside,
}

pub fn run(args: RepairArgs, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    if !settings.is_local() {
        return Err(WrongUsage::error(
            "a repair needs the data directory: stop the server, and name it with --data",
        ));
    }
    let data = node::existing(settings)?;
    let (name, what, taken) = match (args.cut, args.quarantine) {
        (Some(name), _) => {
            let taken = match InternalStore::named(&name) {
                Some(part) => {
                    let config = settings.log_config(&data);
                    salvage(&config, Arc::new(SystemDisk), Arc::new(SystemRandom), part)?
                }
                None => node::open(settings)?.truncate_stream(&name)?,
            };
            (name, "cut", taken)
        }
        (_, Some(name)) => {
            let taken = node::open(settings)?.quarantine_stream(&name)?;
            (name, "quarantined", Some(taken))
        }
        _ => {
            let log = node::open(settings)?;
            let places = log.find_damage();
            log.close()?;
            return list(&places, is_json);
        }
    };
    let done = match &taken {
        None => format!("nothing in stream {name} is damaged"),
        // The damaged files are missing.
        Some(taken) if taken.files.is_empty() => {
            format!("{what} stream {name}; there were no files to move")
        }
        Some(taken) => {
            let files = taken.files.iter();
            let files: String = files
                .map(|file| format!("\n  {}", file.display()))
                .collect();
            let bytes = ByteSize(taken.bytes);
            format!("{what} stream {name}: {bytes} went to{files}")
        }
    };
    let repaired = Repaired {
        stream: &name,
        taken: taken.unwrap_or_default(),
    };
    report(is_json, &repaired, format_args!("{done}"))
}

fn list(places: &[PartitionDamage], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return print_json(&json!({ "damaged": places }));
    }
    if places.is_empty() {
        return print(|out| writeln!(out, "nothing is damaged"));
    }
    print(|out| {
        for place in places {
            let PartitionDamage {
                stream,
                partition,
                offset,
                what,
                ..
            } = place;
            writeln!(
                out,
                "{stream}, partition {partition}, from offset {offset} on: {what}"
            )?;
        }
        Ok(())
    })
}
