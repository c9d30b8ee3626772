//! `millstream stream …`

use humantime::format_duration;
use millstream_base::ByteSize;
use millstream_log::{Log, StreamConfig, StreamInfo};
use serde_json::json;

use crate::args::{Limit, StreamCommand};
use crate::console::{Align, Table, grouped, print_json, print_line};
use crate::node;
use crate::settings::Settings;

pub fn run(command: StreamCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    match command {
        StreamCommand::Create {
            name,
            streamlets,
            lanes,
            virtual_logs,
            durability,
            retention,
        } => {
            let log = node::open(settings)?;
            let config = StreamConfig {
                streamlets,
                lanes,
                virtual_logs,
                durability,
                retention_ms: retention.retain_for.and_then(|time| millis(time.0)),
                retention: retention.retain_bytes.and_then(|size| size.0),
                ..StreamConfig::default()
            };
            let stream = log.create_stream(&name, config)?;
            report(&stream.info(), "created", is_json)?;
            Ok(log.close()?)
        }
        StreamCommand::List => {
            let log = node::open_existing(settings)?;
            list(&log, is_json)?;
            Ok(log.close()?)
        }
        StreamCommand::Describe { name } => {
            let log = node::open_existing(settings)?;
            describe(&node::stream(&log, &name)?.info(), is_json)?;
            Ok(log.close()?)
        }
        StreamCommand::Alter {
            name,
            streamlets,
            lanes,
            retention,
        } => {
            let log = node::open_existing(settings)?;
            let stream = node::stream(&log, &name)?;
            let config = stream.config();
            if streamlets.is_some() || lanes.is_some() {
                let streamlets = streamlets.unwrap_or(config.streamlets);
                log.grow_stream(&name, streamlets, lanes.unwrap_or(config.lanes))?;
            }
            if retention.retain_for.is_some() || retention.retain_bytes.is_some() {
                log.set_retention(
                    &name,
                    changed(
                        retention.retain_for.map(|Limit(time)| millis(time)),
                        config.retention_ms,
                    ),
                    changed(
                        retention.retain_bytes.map(|Limit(size)| size),
                        config.retention,
                    ),
                )?;
            }
            report(&stream.info(), "altered", is_json)?;
            Ok(log.close()?)
        }
        StreamCommand::Delete { name } => {
            let log = node::open_existing(settings)?;
            let info = node::stream(&log, &name)?.info();
            log.delete_stream(&name)?;
            report(&info, "deleted", is_json)?;
            Ok(log.close()?)
        }
    }
}

fn millis(time: Option<humantime::Duration>) -> Option<u64> {
    let millis = time?.as_millis();
    Some(u64::try_from(millis).unwrap_or(u64::MAX))
}

fn changed<T>(new: Option<T>, old: T) -> T {
    new.unwrap_or(old)
}

fn report(info: &StreamInfo, what: &str, is_json: bool) -> anyhow::Result<()> {
    match is_json {
        true => print_json(info)?,
        false => print_line(format_args!("{what} stream {}", info.name))?,
    }
    Ok(())
}

fn list(log: &Log, is_json: bool) -> anyhow::Result<()> {
    let mut infos = Vec::new();
    for name in log.stream_names() {
        infos.push(log.stream(&name)?.info());
    }
    if is_json {
        return Ok(print_json(&json!({ "streams": infos }))?);
    }
    let mut table = Table::new(&[
        ("stream", Align::Left),
        ("lanes", Align::Right),
        ("records", Align::Right),
        ("bytes", Align::Right),
        ("durability", Align::Left),
    ]);
    for info in &infos {
        let records = info
            .lanes
            .iter()
            .map(|lane| lane.durable.0 - lane.earliest.0);
        let bytes = info.lanes.iter().map(|lane| lane.bytes);
        table.row([
            info.name.clone(),
            format!("{}x{}", info.config.streamlets, info.config.lanes),
            grouped(records.sum()),
            ByteSize(bytes.sum()).to_string(),
            durability(info),
        ]);
    }
    Ok(table.print()?)
}

fn durability(info: &StreamInfo) -> String {
    format!("{:?}", info.config.durability).to_lowercase()
}

fn describe(info: &StreamInfo, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return Ok(print_json(info)?);
    }
    let none = || "none".to_owned();
    let retain_for = |ms| format_duration(std::time::Duration::from_millis(ms)).to_string();
    print_line(format_args!("stream        {}", info.name))?;
    print_line(format_args!("id            {}", info.id))?;
    print_line(format_args!("streamlets    {}", info.config.streamlets))?;
    print_line(format_args!("lanes         {}", info.config.lanes))?;
    print_line(format_args!("virtual logs  {}", info.config.virtual_logs))?;
    print_line(format_args!("durability    {}", durability(info)))?;
    print_line(format_args!(
        "retain for    {}",
        info.config.retention_ms.map_or_else(none, retain_for)
    ))?;
    print_line(format_args!(
        "retain bytes  {}",
        info.config
            .retention
            .map_or_else(none, |size| size.to_string())
    ))?;
    print_line(format_args!(""))?;
    let mut table = Table::new(&[
        ("partition", Align::Right),
        ("streamlet", Align::Right),
        ("lane", Align::Right),
        ("earliest", Align::Right),
        ("durable", Align::Right),
        ("groups", Align::Right),
        ("bytes", Align::Right),
        ("fault", Align::Left),
    ]);
    for lane in &info.lanes {
        table.row([
            lane.partition.to_string(),
            lane.streamlet.to_string(),
            lane.lane.to_string(),
            grouped(lane.earliest.0),
            grouped(lane.durable.0),
            grouped(lane.groups as u64),
            ByteSize(lane.bytes).to_string(),
            lane.fault.clone().unwrap_or_default(),
        ]);
    }
    Ok(table.print()?)
}
