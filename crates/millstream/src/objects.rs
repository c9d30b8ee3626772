//! `millstream object …`

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::Context;
use millstream_base::ByteSize;
use millstream_log::{Log, ObjectInfo};
use serde_json::json;

use crate::args::{ByteRange, ObjectCommand};
use crate::console::{Align, Table, print_json, print_line};
use crate::node;
use crate::settings::Settings;

pub fn run(command: ObjectCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let log = match command {
        ObjectCommand::Put { .. } => node::open(settings)?,
        _ => node::open_existing(settings)?,
    };
    match command {
        ObjectCommand::Put { name, file } => {
            let info = log.put_object(&name, &mut *open_content(&file)?)?;
            report(&info, "stored", is_json)?;
        }
        ObjectCommand::Get {
            name,
            range,
            output,
        } => get(&log, &name, range, output.as_deref(), is_json)?,
        ObjectCommand::List { prefix } => list(&log.objects(&prefix)?, is_json)?,
        ObjectCommand::Delete { name } => {
            let info = log.object(&name)?;
            log.delete_object(&name)?;
            report(&info, "deleted", is_json)?;
        }
    }
    Ok(log.close()?)
}

fn open_content(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(file))
}

fn get(
    log: &Log,
    name: &str,
    range: Option<ByteRange>,
    output: Option<&Path>,
    is_json: bool,
) -> anyhow::Result<()> {
    let bytes = log.object(name)?.bytes;
    // Like HTTP's: a last byte beyond the end means the end.
    let range = range.map(|ByteRange(range)| {
        let end = range.end().saturating_add(1).min(bytes);
        *range.start()..end.max(*range.start())
    });
    let mut content = log.get_object(name, range)?;
    match output {
        None => {
            let mut out = io::stdout().lock();
            io::copy(&mut content, &mut out)?;
            out.flush()?;
        }
        Some(path) => {
            let cannot_write = || format!("cannot write {}", path.display());
            let mut file = File::create(path).with_context(cannot_write)?;
            io::copy(&mut content, &mut file).with_context(cannot_write)?;
            report(content.info(), "wrote", is_json)?;
        }
    }
    Ok(())
}

fn report(info: &ObjectInfo, what: &str, is_json: bool) -> anyhow::Result<()> {
    match is_json {
        true => print_json(info)?,
        false => print_line(format_args!(
            "{what} object {}, {}",
            info.name,
            ByteSize(info.bytes)
        ))?,
    }
    Ok(())
}

fn list(objects: &[ObjectInfo], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return Ok(print_json(&json!({ "objects": objects }))?);
    }
    let mut table = Table::new(&[
        ("object", Align::Left),
        ("size", Align::Right),
        ("crc32c", Align::Left),
        ("created", Align::Left),
    ]);
    for info in objects {
        let created = u64::try_from(info.created.0).unwrap_or(0);
        let created = std::time::UNIX_EPOCH + std::time::Duration::from_millis(created);
        table.row([
            info.name.clone(),
            ByteSize(info.bytes).to_string(),
            format!("{:08x}", info.crc32c),
            humantime::format_rfc3339_seconds(created).to_string(),
        ]);
    }
    Ok(table.print()?)
}
