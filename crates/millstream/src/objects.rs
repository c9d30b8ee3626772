//! `millstream object …`

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::Context;
use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use millstream_base::ByteSize;
use millstream_log::{Log, OBJECT_RECORD_BYTES, ObjectInfo, ObjectReader};
use serde_json::json;

use crate::args::ObjectCommand;
use crate::console::{Align, CANNOT_WRITE, Table, print_json, report, stdout};
use crate::input::Input;
use crate::node;
use crate::settings::Settings;
use crate::stop::Stop;
use crate::values::ByteRange;

pub fn run(command: ObjectCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let log = match command {
        ObjectCommand::Put { .. } => node::open(settings)?,
        _ => node::open_existing(settings)?,
    };
    let done = |info: &ObjectInfo, what| {
        let (name, size) = (&info.name, ByteSize(info.bytes));
        report(is_json, info, format_args!("{what} object {name}, {size}"))
    };
    match command {
        ObjectCommand::Put { name, file } => {
            let mut content = Input::open(&file, &Stop::on_signals()?)?;
            done(&log.put_object(&name, &mut content)?, "stored")?;
        }
        ObjectCommand::Get {
            name,
            range,
            output,
        } => {
            let mut content = open(&log, &name, range)?;
            match output {
                Some(path) => {
                    write_file(&mut content, &path)?;
                    done(content.info(), "wrote")?;
                }
                None if is_json => print_document(&mut content)?,
                None => copy(&mut content, &mut io::stdout().lock(), "stdout")?,
            }
        }
        ObjectCommand::List { prefix } => list(&log.objects(&prefix)?, is_json)?,
        ObjectCommand::Delete { name } => {
            let info = log.object(&name)?;
            log.delete_object(&name)?;
            done(&info, "deleted")?;
        }
    }
    Ok(log.close()?)
}

fn open(log: &Log, name: &str, range: Option<ByteRange>) -> anyhow::Result<ObjectReader> {
    let bytes = log.object(name)?.bytes;
    // Like HTTP's: a last byte beyond the end means the end.
    let range = range.map(|ByteRange(range)| {
        let end = range.end().saturating_add(1).min(bytes);
        *range.start()..end.max(*range.start())
    });
    Ok(log.get_object(name, range)?)
}

fn write_file(content: &mut ObjectReader, path: &Path) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let mut file = File::create(path).with_context(|| format!("cannot write to {name}"))?;
    copy(content, &mut file, &name)
}

/// Prints what is known of an object, with its content, which is encoded on the way: it may be
/// larger than memory.
fn print_document(content: &mut ObjectReader) -> anyhow::Result<()> {
    let mut out = stdout();
    let info = serde_json::to_string(content.info())?;
    let fields = info.trim_end_matches('}');
    write!(out, "{fields},\"content_base64\":\"").context(CANNOT_WRITE)?;
    let mut encoder = EncoderWriter::new(&mut out, &BASE64_STANDARD);
    copy(content, &mut encoder, "stdout")?;
    encoder
        .finish()
        .and_then(|out| out.write_all(b"\"}\n").and_then(|()| out.flush()))
        .context(CANNOT_WRITE)
}

/// Writes all of the content to `out`, whose name is `to`.
fn copy(content: &mut ObjectReader, out: &mut impl Write, to: &str) -> anyhow::Result<()> {
    let cannot_write = || format!("cannot write to {to}");
    let mut buffer = vec![0; OBJECT_RECORD_BYTES];
    loop {
        match content.read(&mut buffer)? {
            0 => return out.flush().with_context(cannot_write),
            count => out.write_all(&buffer[..count]).with_context(cannot_write)?,
        }
    }
}

fn list(objects: &[ObjectInfo], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return print_json(&json!({ "objects": objects }));
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
    table.print()
}
