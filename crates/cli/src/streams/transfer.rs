//! `millstream stream copy`, `export` and `import`: records move with key, value, headers and timestamp.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use millstream_base::{Offset, Timestamp};
use millstream_client::{
    Consumer, ConsumerConfig, Decompressor, Delivery, DeliveryMode, Header, Isolation, Producer,
    ProducerConfig, ProducerRecord, Record, Start, TopicPartition,
};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use crate::args::{CopyArgs, ExportArgs, ImportArgs};
use crate::console::{count_of, report, stdout};
use crate::consume::as_json;
use crate::output::write_file;
use crate::remote::{Remote, explained};
use crate::settings::Settings;
use crate::settings::profiles::ProfileFile;
use crate::stop::Stop;
use crate::usage::WrongUsage;
use crate::values::Position;

/// How long the consumer waits for records before it looks at its positions: the last records of a partition may be
/// invisible, such as those of aborted transactions.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest line of an import.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// The most lines of an import that are sent and not known to be stored: bounds the memory for their outcomes.
const SENT_LINES_MAX: usize = 64 << 10;

/// The file name that stands for stdin or stdout.
const STANDARD: &str = "-";

/// Copies the records that exist now to another stream.
pub fn copy(args: &CopyArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let CopyArgs { stream, target, .. } = args;
    let other = other_server(args)?;
    if other.is_none() && stream == target {
        return Err(WrongUsage::error(
            "a stream cannot be copied to itself; name another stream, or another server with --to-server",
        ));
    }
    let source = remote.stream(stream)?;
    let to = other.as_ref().unwrap_or(remote);
    if args.create {
        to.wait(to.client().create_stream(target, source.settings))?;
    }
    let partitions = to.stream(target)?.lanes.len();
    if args.keep_partitions && partitions < source.lanes.len() {
        bail!(
            "stream {target} has {}, fewer than {stream} with {}; add some with `millstream stream alter`, or leave \
             --keep-partitions out",
            count_of(partitions as u64, "partition"),
            count_of(source.lanes.len() as u64, "partition")
        );
    }
    let sink = Sink::new(to);
    each_record(remote, stream, args.from, None, |partition, record| {
        let headers: Vec<Header<'_>> = record.headers().collect();
        sink.send(ProducerRecord {
            topic: target,
            partition: args.keep_partitions.then_some(partition),
            timestamp: Some(record.timestamp),
            key: record.key,
            value: record.value,
            headers: &headers,
        })
        .map(drop)
    })
    .and_then(|count| sink.flush().map(|()| count))
    .and_then(|count| {
        report(
            is_json,
            &json!({ "stream": stream, "target": target, "records": count }),
            format_args!(
                "copied {} of {stream} to {target}",
                count_of(count, "record")
            ),
        )
    })
}

/// Returns the server that the copy goes to; `None` for the server that it comes from.
fn other_server(args: &CopyArgs) -> anyhow::Result<Option<Remote>> {
    let mut settings = Settings::default();
    settings.server.clone_from(&args.to_server);
    settings.sources.profile.clone_from(&args.to_profile);
    if settings.server.is_none() && settings.sources.profile.is_none() {
        return Ok(None);
    }
    let settings = settings.resolve([], Some(&ProfileFile::of_user()))?;
    Remote::new(&settings).map(Some)
}

/// Writes the records that exist now as JSON lines.
pub fn export(args: &ExportArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let ExportArgs { stream, file, .. } = args;
    let is_stdout = file == Path::new(STANDARD);
    let shown = match is_stdout {
        true => "stdout".to_owned(),
        false => file.display().to_string(),
    };
    let cannot_write = || format!("cannot write to {shown}");
    let write = |out: &mut dyn Write, stop: Option<&Stop>| {
        let count = each_record(remote, stream, args.from, stop, |partition, record| {
            let partition = u32::try_from(partition).unwrap_or_default();
            // Only as an error of input and output does a closed pipe keep its kind.
            serde_json::to_writer(&mut *out, &as_json(partition, record))
                .map_err(io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
                .with_context(cannot_write)
        })?;
        out.flush().with_context(cannot_write)?;
        anyhow::Ok(count)
    };
    if is_stdout {
        return write(&mut stdout(), None).map(drop);
    }
    // Without it, a signal would end the command before it removes the temporary file.
    let stop = Stop::on_signals()?;
    let count = write_file(file, |file| {
        write(&mut io::BufWriter::new(file), Some(&stop))
    })?;
    report(
        is_json,
        &json!({ "stream": stream, "file": file, "records": count }),
        format_args!("wrote {} of {stream} to {shown}", count_of(count, "record")),
    )
}

/// A line of an import.
#[derive(Debug, Deserialize)]
struct Line {
    partition: Option<i32>,
    timestamp: Option<i64>,
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    #[serde(default)]
    headers: Vec<LineHeader>,
}

#[derive(Debug, Deserialize)]
struct LineHeader {
    name: Option<String>,
    name_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
}

/// Appends records from JSON lines.
pub fn import(args: &ImportArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let ImportArgs { stream, file, .. } = args;
    remote.stream(stream)?;
    let mut input = open(file)?;
    let sink = Sink::new(remote);
    let mut sent = SentLines {
        remote,
        file,
        stored: 0,
        deliveries: VecDeque::new(),
    };
    let mut line = Vec::new();
    let read = loop {
        match import_line(args, &mut *input, &mut line, &sink) {
            Ok(Some(delivery)) => sent.push(delivery)?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // A line before a wrong one may not be stored: the error names the first of both.
    sent.wait(0)?;
    let stored = sent.stored;
    read.with_context(|| format!("line {} of {}", stored + 1, file.display()))?;
    report(
        is_json,
        &json!({ "stream": stream, "records": stored }),
        format_args!("appended {} to {stream}", count_of(stored, "record")),
    )
}

/// The lines of an import that are sent.
struct SentLines<'a> {
    remote: &'a Remote,
    file: &'a Path,
    /// The number of lines from the first one on that are stored.
    stored: u64,
    /// The outcomes of the lines behind these, in the order of the lines.
    deliveries: VecDeque<Delivery>,
}

impl SentLines<'_> {
    /// Adds the next line. Waits for the first lines if there are too many.
    fn push(&mut self, delivery: Delivery) -> anyhow::Result<()> {
        self.deliveries.push_back(delivery);
        self.wait(SENT_LINES_MAX)
    }

    /// Waits until all but this many lines are stored.
    ///
    /// # Errors
    /// If a line is not stored. The error names the first of these lines.
    fn wait(&mut self, left: usize) -> anyhow::Result<()> {
        let due = self.deliveries.len().saturating_sub(left);
        for delivery in self.deliveries.drain(..due) {
            let line = self.stored + 1;
            self.remote.wait(delivery.wait()).with_context(|| {
                let file = self.file.display();
                format!("line {line} of {file} is the first that is not stored")
            })?;
            self.stored = line;
        }
        Ok(())
    }
}

fn open(file: &PathBuf) -> anyhow::Result<Box<dyn BufRead>> {
    if file == Path::new(STANDARD) {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let opened = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    Ok(Box::new(BufReader::new(opened)))
}

/// Sends the record of the next line, and returns its outcome; `None` at the end of the input.
fn import_line(
    args: &ImportArgs,
    input: &mut dyn BufRead,
    line: &mut Vec<u8>,
    sink: &Sink<'_>,
) -> anyhow::Result<Option<Delivery>> {
    line.clear();
    let read = input.take(LINE_BYTES_MAX + 1).read_until(b'\n', line);
    if read.context("cannot read it")? == 0 {
        return Ok(None);
    }
    if line.len() as u64 > LINE_BYTES_MAX {
        bail!("it is longer than 64 MiB, the longest line");
    }
    let parsed: Line = serde_json::from_slice(line).context(
        "it is no record: it must be a JSON object as `millstream stream export` writes it",
    )?;
    let key = bytes(parsed.key, parsed.key_base64)?;
    let value = bytes(parsed.value, parsed.value_base64)?;
    let mut headers = Vec::with_capacity(parsed.headers.len());
    for header in parsed.headers {
        let name = bytes(header.name, header.name_base64)?.context("a header has no name")?;
        headers.push((name, bytes(header.value, header.value_base64)?));
    }
    let headers: Vec<Header<'_>> = headers
        .iter()
        .map(|(name, value)| Header {
            name,
            value: value.as_deref(),
        })
        .collect();
    sink.send(ProducerRecord {
        topic: &args.stream,
        partition: parsed.partition.filter(|_| args.keep_partitions),
        timestamp: parsed.timestamp.map(Timestamp),
        key: key.as_deref(),
        value: value.as_deref(),
        headers: &headers,
    })
    .map(Some)
}

/// Returns the bytes of a field, from its text or from its base64.
fn bytes(text: Option<String>, base64: Option<String>) -> anyhow::Result<Option<Vec<u8>>> {
    match (text, base64) {
        (text, None) => Ok(text.map(String::into_bytes)),
        (_, Some(base64)) => BASE64_STANDARD
            .decode(base64)
            .map(Some)
            .context("a field is not valid base64"),
    }
}

/// Sends records to a stream of a server.
struct Sink<'a> {
    remote: &'a Remote,
    producer: Producer,
}

impl<'a> Sink<'a> {
    fn new(remote: &'a Remote) -> Sink<'a> {
        let _runtime = remote.runtime().enter();
        Sink {
            remote,
            producer: Producer::new(remote.client(), ProducerConfig::default()),
        }
    }

    /// Queues a record. Fails if an earlier one was not stored.
    fn send(&self, record: ProducerRecord<'_>) -> anyhow::Result<Delivery> {
        match self.producer.error() {
            Some(error) => Err(explained(error)),
            None => self.remote.wait(self.producer.send(record)),
        }
    }

    fn flush(&self) -> anyhow::Result<()> {
        self.remote.wait(self.producer.flush())
    }
}

/// Gives `take` the committed records that exist now, from a position on, each with its partition. Returns how many; fails
/// on a stop signal.
fn each_record(
    remote: &Remote,
    stream: &str,
    from: Position,
    stop: Option<&Stop>,
    mut take: impl FnMut(i32, &Record<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let client = remote.client();
    remote.stream(stream)?;
    let topic = remote.wait(client.topic(stream))?;
    let all: Vec<TopicPartition> = topic.partitions().collect();
    if let (Position::At(_), 2..) = (from, all.len()) {
        bail!(
            "stream {stream} has {}, each with offsets of its own; give a time instead",
            count_of(all.len() as u64, "partition")
        );
    }
    let asked = |start: Start| -> Vec<_> { all.iter().map(|it| (it.clone(), start)).collect() };
    let starts = remote.wait(client.offsets(&asked(from.into()), Isolation::Committed))?;
    let ends: HashMap<TopicPartition, Offset> =
        remote.wait(client.offsets(&asked(Start::Latest), Isolation::Committed))?;
    let filled = starts
        .into_iter()
        .filter(|(place, start)| ends.get(place).is_some_and(|end| start < end));
    let places: Vec<_> = filled
        .map(|(place, start)| (place, Start::At(start)))
        .collect();
    if places.is_empty() {
        return Ok(0);
    }
    let config = ConsumerConfig {
        // The records must not change while they are sent on.
        delivery: DeliveryMode::Pull,
        reset: None,
        ..ConsumerConfig::default()
    };
    let mut consumer = remote.wait(Consumer::assigned(client, config, &places))?;
    let check_stop = || match stop.is_some_and(Stop::is_set) {
        true => bail!("a signal stopped the command before it had read all records of {stream}"),
        false => Ok(()),
    };
    let mut decompressor = Decompressor::default();
    let mut count = 0;
    loop {
        check_stop()?;
        let positions = consumer.positions();
        let is_done = |(place, next): (&TopicPartition, &Offset)| {
            ends.get(place).is_none_or(|end| next >= end)
        };
        if positions.iter().all(is_done) {
            break;
        }
        let next = async { timeout(PAUSE, consumer.next()).await };
        let Ok(fetched) = remote.runtime().block_on(next) else {
            continue;
        };
        let fetched = fetched.map_err(explained)?;
        let end = ends.get(fetched.place()).copied().unwrap_or_default();
        let mut failed = None;
        let each = fetched.each(&mut decompressor, |record| {
            if record.offset >= end {
                return ControlFlow::Break(());
            }
            match check_stop().and_then(|()| take(fetched.partition(), record)) {
                Ok(()) => {
                    count += 1;
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        each.map_err(explained)?;
        if let Some(error) = failed {
            return Err(error);
        }
    }
    remote.wait(consumer.close())?;
    Ok(count)
}
