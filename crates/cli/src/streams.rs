//! `millstream stream …`

mod purge;
mod remote;
mod transfer;

use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use humantime::format_duration;
use millstream_base::ByteSize;
use millstream_log::{CLEANUP_POLICY, COMPACT, Log, StreamConfig, StreamInfo};
use serde_json::{Value, json};

use crate::args::{RetentionArgs, StreamCommand};
use crate::console::{Align, Table, count_of, grouped, print, print_json, report, time};
use crate::node;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::transactions::since;
use crate::values::Limit;

/// The operations on streams, of a data directory or of a server.
trait Streams {
    fn create(&self, name: &str, config: StreamConfig) -> anyhow::Result<StreamInfo>;
    fn list(&self) -> anyhow::Result<Vec<StreamInfo>>;
    fn describe(&self, name: &str) -> anyhow::Result<StreamInfo>;
    fn grow(&self, name: &str, streamlets: u32, lanes: u32) -> anyhow::Result<()>;
    fn set_retention(&self, name: &str, retention: Retention) -> anyhow::Result<()>;
    fn delete(&self, name: &str) -> anyhow::Result<()>;
}

/// The retention of a stream.
struct Retention {
    ms: Option<u64>,
    bytes: Option<ByteSize>,
}

pub fn run(command: StreamCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let server = |settings| Remote::only(settings, "the records that this command works on");
    match &command {
        StreamCommand::Purge(args) => return purge::run(args, &server(settings)?, is_json),
        StreamCommand::Copy(args) => return transfer::copy(args, &server(settings)?, is_json),
        StreamCommand::Export(args) => return transfer::export(args, &server(settings)?, is_json),
        StreamCommand::Import(args) => return transfer::import(args, &server(settings)?, is_json),
        _ => {}
    }
    if !settings.is_local() {
        return carry_out(command, &Remote::new(settings)?, is_json);
    }
    let log = match command {
        StreamCommand::Create { .. } => node::open(settings)?,
        _ => node::open_existing(settings)?,
    };
    carry_out(command, &log, is_json)?;
    Ok(log.close()?)
}

fn carry_out(command: StreamCommand, streams: &impl Streams, is_json: bool) -> anyhow::Result<()> {
    let done = |info: &StreamInfo, what| {
        let name = &info.name;
        report(
            is_json,
            &document(info)?,
            format_args!("{what} stream {name}"),
        )
    };
    match command {
        StreamCommand::Create {
            name,
            partitions,
            streamlets,
            lanes,
            virtual_logs,
            durability,
            keyed,
            retention,
        } => {
            let keyed = keyed.then(|| (CLEANUP_POLICY.to_owned(), COMPACT.to_owned()));
            let config = StreamConfig {
                // As Kafka's clients create topics: their tools can add any number of partitions later.
                streamlets: partitions.or(streamlets).unwrap_or(1),
                lanes: lanes.unwrap_or(1),
                virtual_logs,
                durability,
                retention_ms: retention.retain_for.and_then(millis),
                retention: retention.retain_bytes.and_then(|Limit(size)| size),
                settings: keyed.into_iter().collect(),
                ..StreamConfig::default()
            };
            done(&streams.create(&name, config)?, "created")
        }
        StreamCommand::List => list(&streams.list()?, is_json),
        StreamCommand::Describe { name } => describe(&streams.describe(&name)?, is_json),
        StreamCommand::Alter {
            name,
            partitions,
            streamlets,
            lanes,
            retention,
        } => {
            let config = streams.describe(&name)?.config;
            if let Some(partitions) = partitions {
                let (streamlets, lanes) = grown(&name, &config, partitions)?;
                streams.grow(&name, streamlets, lanes)?;
            } else if streamlets.is_some() || lanes.is_some() {
                let streamlets = streamlets.unwrap_or(config.streamlets);
                streams.grow(&name, streamlets, lanes.unwrap_or(config.lanes))?;
            }
            let RetentionArgs {
                retain_for,
                retain_bytes,
            } = retention;
            if retain_for.is_some() || retain_bytes.is_some() {
                let retention = Retention {
                    ms: retain_for.map_or(config.retention_ms, millis),
                    bytes: retain_bytes.map_or(config.retention, |Limit(size)| size),
                };
                streams.set_retention(&name, retention)?;
            }
            done(&streams.describe(&name)?, "altered")
        }
        StreamCommand::Delete { name } => {
            let info = streams.describe(&name)?;
            streams.delete(&name)?;
            done(&info, "deleted")
        }
        StreamCommand::Purge(_)
        | StreamCommand::Copy(_)
        | StreamCommand::Export(_)
        | StreamCommand::Import(_) => unreachable!("`run` carries these out, at a server only"),
    }
}

/// Returns the numbers of streamlets and of lanes with which a stream has this many partitions.
fn grown(name: &str, config: &StreamConfig, partitions: u32) -> anyhow::Result<(u32, u32)> {
    // Another server may describe a stream without partitions.
    let (streamlets, lanes) = (config.streamlets.max(1), config.lanes.max(1));
    let now = u64::from(streamlets) * u64::from(lanes);
    if u64::from(partitions) < now {
        let now = count_of(now, "partition");
        bail!("stream {name} has {now}, and cannot have fewer");
    }
    match (partitions % lanes, partitions % streamlets) {
        (0, _) => Ok((partitions / lanes, lanes)),
        (_, 0) => Ok((streamlets, partitions / streamlets)),
        _ => bail!(
            "stream {name} has {streamlets} streamlets of {lanes} partitions each: their number must be a multiple of \
             {lanes} or of {streamlets}, and not {partitions}"
        ),
    }
}

impl Streams for Log {
    fn create(&self, name: &str, config: StreamConfig) -> anyhow::Result<StreamInfo> {
        Ok(self.create_stream(name, config)?.info())
    }

    fn list(&self) -> anyhow::Result<Vec<StreamInfo>> {
        let names = self.stream_names();
        let infos = names.iter().map(|name| Ok(self.stream(name)?.info()));
        infos.collect()
    }

    fn describe(&self, name: &str) -> anyhow::Result<StreamInfo> {
        Ok(node::stream(self, name)?.info())
    }

    fn grow(&self, name: &str, streamlets: u32, lanes: u32) -> anyhow::Result<()> {
        self.grow_stream(name, streamlets, lanes)?;
        Ok(())
    }

    fn set_retention(&self, name: &str, Retention { ms, bytes }: Retention) -> anyhow::Result<()> {
        Log::set_retention(self, name, ms, bytes)?;
        Ok(())
    }

    fn delete(&self, name: &str) -> anyhow::Result<()> {
        Ok(self.delete_stream(name)?)
    }
}

fn millis(Limit(time): Limit<Duration>) -> Option<u64> {
    time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// The fields that `--json` prints of a stream. Settings have the names of their flags.
fn document(info: &StreamInfo) -> anyhow::Result<Value> {
    let mut document = serde_json::to_value(info)?;
    // The name of this list in earlier versions.
    document["lanes"] = document["partitions"].clone();
    if let Some(config) = document["config"].as_object_mut() {
        for (stored, flag) in [
            ("retention", "retain_bytes"),
            ("retention_ms", "retain_for_ms"),
        ] {
            let value = config.remove(stored).unwrap_or_default();
            config.insert(flag.to_owned(), value);
        }
    }
    Ok(document)
}

fn list(infos: &[StreamInfo], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let documents = infos.iter().map(document);
        let documents = documents.collect::<anyhow::Result<Vec<_>>>()?;
        return print_json(&json!({ "streams": documents }));
    }
    let mut table = Table::new(&[
        ("stream", Align::Left),
        ("partitions", Align::Right),
        ("offsets", Align::Right),
        ("bytes", Align::Right),
        ("durability", Align::Left),
    ]);
    for info in infos {
        // Markers of transactions have offsets, and compacted records had some. To count the records would take a read of
        // the stream.
        let offsets = info
            .partitions
            .iter()
            .map(|lane| lane.durable.0 - lane.earliest.0);
        let bytes = info.partitions.iter().map(|lane| lane.bytes);
        table.row([
            info.name.clone(),
            grouped(info.partitions.len() as u64),
            grouped(offsets.sum()),
            ByteSize(bytes.sum()).to_string(),
            durability(info),
        ]);
    }
    table.print()
}

fn durability(info: &StreamInfo) -> String {
    info.config.durability.name().to_owned()
}

fn describe(info: &StreamInfo, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return print_json(&document(info)?);
    }
    let none = || "none".to_owned();
    let StreamConfig {
        retention_ms,
        retention,
        ..
    } = info.config;
    let retain_for = retention_ms.map_or_else(none, |ms| {
        format_duration(Duration::from_millis(ms)).to_string()
    });
    let retain_bytes = retention.map_or_else(none, |size| size.to_string());
    let layout = match (info.config.streamlets, info.config.lanes) {
        (1, _) | (_, 1) => String::new(),
        (streamlets, lanes) => format!(" ({streamlets} streamlets of {lanes})"),
    };
    let mut table = Table::new(&[
        ("partition", Align::Right),
        ("earliest", Align::Right),
        ("durable", Align::Right),
        ("groups", Align::Right),
        ("bytes", Align::Right),
        ("fault", Align::Left),
    ]);
    for lane in &info.partitions {
        table.row([
            lane.partition.to_string(),
            grouped(lane.earliest.0),
            grouped(lane.durable.0),
            grouped(lane.groups as u64),
            ByteSize(lane.bytes).to_string(),
            match (&lane.fault, lane.truncated_bytes) {
                (Some(_), _) => "yes".to_owned(),
                (None, 0) => String::new(),
                (None, cut) => format!("{} cut at the start", ByteSize(cut)),
            },
        ]);
    }
    print(|out| {
        writeln!(out, "stream        {}", info.name)?;
        writeln!(out, "id            {}", info.id)?;
        writeln!(out, "partitions    {}{layout}", info.partitions.len())?;
        writeln!(out, "virtual logs  {}", info.config.virtual_logs)?;
        writeln!(out, "durability    {}", durability(info))?;
        writeln!(out, "retain for    {retain_for}")?;
        writeln!(out, "retain bytes  {retain_bytes}\n")?;
        table.write(out)?;
        for lane in &info.partitions {
            let Some(compaction) = &lane.compaction else {
                continue;
            };
            let dirty = ByteSize(compaction.dirty_bytes);
            let total = ByteSize(compaction.total_bytes);
            let (partition, to) = (lane.partition, grouped(compaction.compacted_to.0));
            writeln!(
                out,
                "\npartition {partition} is compacted up to {to}; {dirty} of {total} are dirty"
            )?;
            if let Some(fault) = &compaction.fault {
                writeln!(out, "its last compaction has failed: {fault}")?;
            }
        }
        if !info.holds.is_empty() {
            writeln!(out, "\nholds: {}", info.holds.join(", "))?;
        }
        // Too long for a table.
        for lane in &info.partitions {
            if let Some(age) = lane.oldest_transaction.and_then(since) {
                writeln!(
                    out,
                    "\npartition {}: a transaction has been open for {}, so committed records end at {}; \
                     \"millstream transaction list\" shows it",
                    lane.partition,
                    time(age.as_secs_f64()),
                    grouped(lane.stable.0)
                )?;
            }
        }
        for lane in &info.partitions {
            if let Some(fault) = &lane.fault {
                writeln!(out, "\nfault of partition {}: {fault}", lane.partition)?;
            }
        }
        Ok(())
    })
}
