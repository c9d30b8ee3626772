//! `millstream consume`: prints the records of a stream.

mod remote;

use std::io::{self, BufWriter, StdoutLock, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use millstream_base::Offset;
use millstream_log::{Handed, Next, Stream, StreamPartition, Subscription};
use millstream_record::{Decompressor, Record};
use serde_json::{Value, json};

use crate::args::{ConsumeArgs, RecordFormat};
use crate::console::{CANNOT_WRITE, count_of, stdout};
use crate::node;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::stop::Stop;
use crate::usage::WrongUsage;
use crate::values::Place;

const READ_BYTES: usize = 1 << 20;

/// How long a follower waits for records before it checks for a stop signal.
const FOLLOW_PAUSE: Duration = Duration::from_millis(100);

pub fn run(
    args: ConsumeArgs,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    if !settings.is_local() {
        return remote::run(&args, &Remote::new(settings)?, is_json, stop);
    }
    if args.delivery.is_some() {
        return Err(WrongUsage::error(
            "--delivery says how a server sends records: name it with --server",
        ));
    }
    if args.group.is_some() {
        return Err(WrongUsage::error(
            "a server keeps the groups, not a data directory: name the server with --server",
        ));
    }
    if args.skip_damaged {
        return Err(WrongUsage::error(
            "--skip-damaged skips damage at a server: name it with --server; `millstream repair` lists the damage of a data directory",
        ));
    }
    let log = node::open_existing(settings)?;
    let stream = node::stream(&log, &args.stream)?;
    let lanes = lanes(&stream, &args)?;
    let partitions: Vec<u32> = lanes.iter().map(|(lane, _)| lane.index()).collect();
    let mut subscription = Subscription::of_partitions(lanes);
    if let Some(filter) = &args.filter {
        subscription.set_filter(filter.clone());
    }
    if !args.follow {
        subscription.end_at_head();
    }
    let mut printer = Printer::new(&args, is_json);
    let mut decompressor = Decompressor::default();
    let mut listening = None;
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    printer.begin().context(CANNOT_WRITE)?;
    while !stop.is_set() && printer.left > 0 {
        let next = subscription.next(READ_BYTES);
        let next = next.with_context(|| format!("stream {}", stream.name()))?;
        match next {
            Next::Handed(handed) => {
                let partition = partitions[handed.place as usize];
                if print_chunks(&mut printer, &mut decompressor, partition, &handed)?.is_break() {
                    break;
                }
            }
            Next::End => break,
            Next::Nothing | Next::Busy => {
                printer.out.flush().context(CANNOT_WRITE)?;
                if subscription.poll_more(&mut listening, &waker).is_pending() {
                    thread::park_timeout(FOLLOW_PAUSE);
                }
            }
        }
    }
    printer.end().context(CANNOT_WRITE)?;
    drop((subscription, listening));
    // All readable records are printed, but the stream has lost others to damage.
    if printer.left > 0
        && let Some(lane) = stream
            .info()
            .partitions
            .into_iter()
            .find(|lane| lane.fault.is_some())
    {
        bail!(
            "stream {}, partition {}: {}",
            stream.name(),
            lane.partition,
            lane.fault.unwrap_or_default()
        );
    }
    Ok(log.close()?)
}

/// Wakes this thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The lanes to read, each with the first offset.
fn lanes(stream: &Stream, args: &ConsumeArgs) -> anyhow::Result<Vec<(StreamPartition, Offset)>> {
    let partitions = match args.partition {
        Some(partition) => partition..partition.saturating_add(1),
        None => 0..stream.partition_count(),
    };
    if let Place::At(_) = args.from
        && partitions.len() > 1
    {
        bail!(
            "stream {} has {}, each with offsets of its own; choose one with --partition",
            stream.name(),
            count_of(partitions.len() as u64, "partition")
        );
    }
    partitions
        .map(|partition| {
            let lane = stream.partition(partition)?;
            let from = match args.from {
                Place::Earliest => lane.earliest_offset(),
                Place::Latest => lane.durable_offset(),
                Place::At(offset) => offset,
            };
            Ok((lane, from))
        })
        .collect()
}

struct Printer<W> {
    out: W,
    format: Format,
    /// How many more records to print.
    left: u64,
    printed: u64,
}

#[derive(Clone, Copy)]
enum Format {
    Lines(RecordFormat),
    /// One JSON document of all records.
    Document,
}

impl Printer<BufWriter<StdoutLock<'static>>> {
    fn new(args: &ConsumeArgs, is_json: bool) -> Self {
        Printer {
            out: stdout(),
            format: match is_json {
                true => Format::Document,
                false => Format::Lines(args.format),
            },
            left: args.limit.unwrap_or(u64::MAX),
            printed: 0,
        }
    }
}

impl<W: Write> Printer<W> {
    fn begin(&mut self) -> io::Result<()> {
        match self.format {
            Format::Document => self.out.write_all(b"{\"records\":["),
            Format::Lines(_) => Ok(()),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        if let Format::Document = self.format {
            self.out.write_all(b"]}\n")?;
        }
        self.out.flush()
    }

    /// Breaks when the limit is reached.
    fn print(&mut self, partition: u32, record: &Record<'_>) -> anyhow::Result<ControlFlow<()>> {
        if self.left == 0 {
            return Ok(ControlFlow::Break(()));
        }
        self.left -= 1;
        let is_first = self.printed == 0;
        print(&mut self.out, self.format, partition, record, is_first).context(CANNOT_WRITE)?;
        self.printed += 1;
        Ok(ControlFlow::Continue(()))
    }
}

fn print_chunks(
    printer: &mut Printer<impl Write>,
    decompressor: &mut Decompressor,
    partition: u32,
    handed: &Handed,
) -> anyhow::Result<ControlFlow<()>> {
    for chunk in handed.chunks.chunks() {
        let chunk = chunk?;
        if chunk.header().attributes.is_control() {
            continue;
        }
        for record in chunk.records(decompressor)? {
            let record = record?;
            if record.offset >= handed.from && printer.print(partition, &record)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn print(
    out: &mut impl Write,
    format: Format,
    partition: u32,
    record: &Record<'_>,
    is_first: bool,
) -> io::Result<()> {
    match format {
        Format::Lines(RecordFormat::Value) => {
            out.write_all(record.value.unwrap_or_default())?;
            out.write_all(b"\n")
        }
        Format::Lines(RecordFormat::Json) => {
            serde_json::to_writer(&mut *out, &as_json(partition, record))?;
            out.write_all(b"\n")
        }
        Format::Document => {
            if !is_first {
                out.write_all(b",")?;
            }
            Ok(serde_json::to_writer(out, &as_json(partition, record))?)
        }
    }
}

/// Returns a record as the object that `--format json` prints.
pub fn as_json(partition: u32, record: &Record<'_>) -> Value {
    let headers = record.headers().map(|header| {
        let fields = [text("name", Some(header.name)), text("value", header.value)];
        Value::Object(fields.into_iter().collect())
    });
    let fields = [
        ("partition".to_owned(), json!(partition)),
        ("offset".to_owned(), json!(record.offset)),
        ("timestamp".to_owned(), json!(record.timestamp)),
        text("key", record.key),
        text("value", record.value),
        ("headers".to_owned(), headers.collect()),
    ];
    Value::Object(fields.into_iter().collect())
}

/// Writes the field `name`; bytes that are not UTF-8 go to `<name>_base64`.
pub fn text(name: &str, bytes: Option<&[u8]>) -> (String, Value) {
    match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
        None => (name.to_owned(), Value::Null),
        Some(Ok(text)) => (name.to_owned(), text.into()),
        Some(Err(bytes)) => (
            format!("{name}_base64"),
            BASE64_STANDARD.encode(bytes).into(),
        ),
    }
}
