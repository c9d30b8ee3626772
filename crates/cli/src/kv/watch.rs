//! `millstream kv watch`: prints changes of keys as they are committed.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;
use millstream_client::{KeyRange, KeyWatch, WatchEvent, WatchFrom, WatchPositions, WatchedChange};
use serde_json::{Map, Value, json};

use super::common::{range_of, wait};
use crate::args::WatchArgs;
use crate::console::{CANNOT_WRITE, stdout, tell};
use crate::consume::text;
use crate::remote::Remote;
use crate::stop::Stop;

pub fn watch(args: &WatchArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let stop = Stop::on_signals()?;
    let stream = remote.client().keyed(&args.stream);
    let range = match &args.key {
        Some(key) => KeyRange::key(key.as_bytes()),
        None => range_of(&args.range),
    };
    let mut watch = stream.watch(range, from(args)).through_shared_memory();
    // An unknown stream is an error before anything is printed.
    wait(remote, &stream, watch.begin())?;
    let mut printer = Printer::new(is_json);
    printer.begin().context(CANNOT_WRITE)?;
    let printed = print_all(args, remote, &mut watch, &mut printer, &stop);
    let position = watch.positions();
    if printed.is_ok() {
        printer.end(position).context(CANNOT_WRITE)?;
    } else {
        // Changes that were printed already stay.
        printer.out.flush().context(CANNOT_WRITE)?;
    }
    if let Some(position) = position
        && !is_json
    {
        tell(format_args!("--after {position} goes on here"));
    }
    printed
}

fn from(args: &WatchArgs) -> WatchFrom {
    match (args.after.clone(), args.snapshot) {
        (Some(position), true) => WatchFrom::PositionOrSnapshot(position),
        (Some(position), false) => WatchFrom::Position(position),
        (None, true) => WatchFrom::Snapshot,
        (None, false) => WatchFrom::Now,
    }
}

fn print_all(
    args: &WatchArgs,
    remote: &Remote,
    watch: &mut KeyWatch,
    printer: &mut Printer,
    stop: &Stop,
) -> anyhow::Result<()> {
    let mut left = args.limit.unwrap_or(u64::MAX);
    while !stop.is_set() && left > 0 {
        let Some(event) = remote.next(watch.next(), &mut printer.out)? else {
            continue;
        };
        left -= u64::from(matches!(event, WatchEvent::Change(_)));
        printer
            .print(&event, watch.positions())
            .context(CANNOT_WRITE)?;
    }
    Ok(())
}

/// Prints events, as lines or as one document.
struct Printer {
    out: io::BufWriter<io::StdoutLock<'static>>,
    is_json: bool,
    is_first: bool,
}

impl Printer {
    fn new(is_json: bool) -> Printer {
        Printer {
            out: stdout(),
            is_json,
            is_first: true,
        }
    }

    fn begin(&mut self) -> io::Result<()> {
        match self.is_json {
            true => self.out.write_all(b"{\"events\":["),
            false => Ok(()),
        }
    }

    fn print(&mut self, event: &WatchEvent, position: Option<&WatchPositions>) -> io::Result<()> {
        let is_first = std::mem::replace(&mut self.is_first, false);
        if self.is_json {
            if !is_first {
                self.out.write_all(b",")?;
            }
            return Ok(serde_json::to_writer(
                &mut self.out,
                &document(event, position),
            )?);
        }
        match event {
            WatchEvent::SnapshotBegins if !is_first => {
                self.out.flush()?;
                tell(format_args!(
                    "the server no longer has all changes: a snapshot follows, and the lines before are void"
                ));
                Ok(())
            }
            WatchEvent::SnapshotBegins | WatchEvent::SnapshotEnds => Ok(()),
            WatchEvent::Change(WatchedChange { key, value, .. }) => {
                self.out.write_all(key)?;
                if let Some(value) = value {
                    self.out.write_all(b"\t")?;
                    self.out.write_all(value)?;
                }
                self.out.write_all(b"\n")
            }
        }
    }

    fn end(&mut self, position: Option<&WatchPositions>) -> io::Result<()> {
        if self.is_json {
            self.out.write_all(b"],\"position\":")?;
            serde_json::to_writer(&mut self.out, &position_of(position))?;
            self.out.write_all(b"}\n")?;
        }
        self.out.flush()
    }
}

fn document(event: &WatchEvent, position: Option<&WatchPositions>) -> Value {
    let named = |name: &str| ("event".to_owned(), json!(name));
    let mut fields: Map<String, Value> = match event {
        WatchEvent::SnapshotBegins => Map::from_iter([named("snapshot")]),
        WatchEvent::SnapshotEnds => Map::from_iter([named("current")]),
        WatchEvent::Change(change) => Map::from_iter([
            named("change"),
            text("key", Some(&change.key)),
            ("partition".to_owned(), json!(change.partition)),
            ("version".to_owned(), json!(change.version)),
            ("timestamp".to_owned(), json!(change.timestamp)),
            text("value", change.value.as_deref()),
        ]),
    };
    if let WatchEvent::Change(change) = event
        && let Some(end) = change.expires_at
    {
        fields.insert("expires_at".to_owned(), json!(end));
    }
    fields.insert("position".to_owned(), position_of(position));
    Value::Object(fields)
}

fn position_of(position: Option<&WatchPositions>) -> Value {
    position.map_or(Value::Null, |position| json!(position.to_string()))
}
