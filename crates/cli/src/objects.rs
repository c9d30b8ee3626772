//! `millstream object …`

mod remote;

use std::io::{self, Read, Write};

use anyhow::{Context, anyhow, bail};
use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use millstream_base::{ByteSize, nearest};
use millstream_client::{ClientError, ResponseError};
use millstream_log::{Log, LogError, OBJECT_RECORD_BYTES, ObjectInfo};
use serde_json::json;

use crate::args::ObjectCommand;
use crate::console::{Align, CANNOT_WRITE, Table, print_json, report, stdout};
use crate::input::Input;
use crate::node;
use crate::output::write_file;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::stop::Stop;
use crate::values::ByteRange;

/// The operations on objects, of a data directory or of a server.
trait Objects {
    fn put(&self, name: &str, content: &mut Input) -> anyhow::Result<ObjectInfo>;
    /// The bytes of a range; all of them without one.
    fn get(&self, name: &str, range: Option<ByteRange>) -> anyhow::Result<Content<'_>>;
    fn list(&self, prefix: &str) -> anyhow::Result<Vec<ObjectInfo>>;
    fn delete(&self, name: &str) -> anyhow::Result<ObjectInfo>;
}

/// An object, and bytes of it.
struct Content<'a> {
    info: ObjectInfo,
    bytes: Box<dyn Read + 'a>,
}

pub fn run(command: ObjectCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    if !settings.is_local() {
        return carry_out(command, &Remote::new(settings)?, is_json);
    }
    let log = match command {
        ObjectCommand::Put { .. } => node::open(settings)?,
        _ => node::open_existing(settings)?,
    };
    carry_out(command, &log, is_json)?;
    Ok(log.close()?)
}

fn carry_out(command: ObjectCommand, objects: &impl Objects, is_json: bool) -> anyhow::Result<()> {
    let done = |info: &ObjectInfo, what| {
        let (name, size) = (&info.name, ByteSize(info.bytes));
        report(is_json, info, format_args!("{what} object {name}, {size}"))
    };
    match command {
        ObjectCommand::Put { name, file } => {
            let mut content = Input::open(&file, &Stop::on_signals()?)?;
            done(&objects.put(&name, &mut content)?, "stored")
        }
        ObjectCommand::Get {
            name,
            range,
            output,
        } => {
            let content = objects.get(&name, range);
            let mut content = content.map_err(|error| with_nearest(error, objects, &name))?;
            match output {
                Some(path) => {
                    let (name, stop) = (path.display().to_string(), Stop::on_signals()?);
                    write_file(&path, |file| copy(&mut content, file, &name, Some(&stop)))?;
                    done(&content.info, "wrote")
                }
                None if is_json => print_document(&mut content),
                None => copy(&mut content, &mut io::stdout().lock(), "stdout", None),
            }
        }
        ObjectCommand::List { prefix } => list(&objects.list(&prefix)?, is_json),
        ObjectCommand::Delete { name } => {
            let deleted = objects.delete(&name);
            let deleted = deleted.map_err(|error| with_nearest(error, objects, &name))?;
            done(&deleted, "deleted")
        }
    }
}

/// Adds the nearest existing name to an error about an unknown object.
fn with_nearest(error: anyhow::Error, objects: &impl Objects, name: &str) -> anyhow::Error {
    if !is_unknown(&error) {
        return error;
    }
    // A failed listing must not replace the original error.
    let all = objects.list("").unwrap_or_default();
    match nearest(name, all.iter().map(|info| info.name.as_str())) {
        Some(nearest) => anyhow!("unknown object {name}; did you mean {nearest}?"),
        None => anyhow!("unknown object {name}; `millstream object list` shows those that exist"),
    }
}

fn is_unknown(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(LogError::UnknownObject { .. }))
        || error
            .downcast_ref()
            .and_then(ClientError::response_error)
            .is_some_and(|error| error == ResponseError::ResourceNotFound)
}

impl Objects for Log {
    fn put(&self, name: &str, content: &mut Input) -> anyhow::Result<ObjectInfo> {
        Ok(self.put_object(name, content)?)
    }

    fn get(&self, name: &str, range: Option<ByteRange>) -> anyhow::Result<Content<'_>> {
        let info = self.object(name)?;
        let range = range.map(|range| range.within(info.bytes));
        let bytes = Box::new(self.get_object(name, range)?);
        Ok(Content { info, bytes })
    }

    fn list(&self, prefix: &str) -> anyhow::Result<Vec<ObjectInfo>> {
        Ok(self.objects(prefix)?)
    }

    fn delete(&self, name: &str) -> anyhow::Result<ObjectInfo> {
        let info = self.object(name)?;
        self.delete_object(name)?;
        Ok(info)
    }
}

/// Prints an object's fields and content. Encodes the content as it streams, since it may be larger than memory.
fn print_document(content: &mut Content<'_>) -> anyhow::Result<()> {
    let mut out = stdout();
    let info = serde_json::to_string(&content.info)?;
    let fields = info.trim_end_matches('}');
    write!(out, "{fields},\"content_base64\":\"").context(CANNOT_WRITE)?;
    let mut encoder = EncoderWriter::new(&mut out, &BASE64_STANDARD);
    copy(content, &mut encoder, "stdout", None)?;
    encoder
        .finish()
        .and_then(|out| out.write_all(b"\"}\n").and_then(|()| out.flush()))
        .context(CANNOT_WRITE)
}

/// Writes the whole content to `out`, whose name is `to`; fails on a stop signal.
fn copy(
    content: &mut Content<'_>,
    out: &mut impl Write,
    to: &str,
    stop: Option<&Stop>,
) -> anyhow::Result<()> {
    let cannot_write = || format!("cannot write to {to}");
    let mut buffer = vec![0; OBJECT_RECORD_BYTES];
    loop {
        if stop.is_some_and(Stop::is_set) {
            bail!("a signal stopped the command before the whole object was written to {to}");
        }
        match content.bytes.read(&mut buffer)? {
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
