//! `millstream kv …`: records by key.

mod common;
mod find;
mod history;
mod hold;
mod watch;

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};
use bytes::Bytes;
use millstream_base::Offset;
use millstream_client::{
    ChangedKey, ClientError, Expected, KeyChange, KeyEntry, KeyedStream, NewValue, StoredVersion,
};
use serde_json::{Map, Value, json};

use self::common::{document, range_of, wait};
use crate::args::{DeleteArgs, GetArgs, IncrArgs, KeyArgs, KvCommand, PutArgs, ScanArgs};
use crate::console::{CANNOT_WRITE, print, print_json, report, stdout};
use crate::consume::text;
use crate::door::with_server;
use crate::input::Input;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::stop::Stop;

pub fn run(command: KvCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    with_server(settings, |remote| carry_out(command, remote, is_json))
}

fn carry_out(command: KvCommand, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    match command {
        KvCommand::Get(args) => get(&args, remote, is_json),
        KvCommand::History(args) => history::history(&args, remote, is_json),
        KvCommand::Hold(command) => hold::hold(command, remote, is_json),
        KvCommand::Put(args) => put(&args, remote, is_json),
        KvCommand::Delete(args) => delete(&args, remote, is_json),
        KvCommand::Incr(args) => incr(&args, remote, is_json),
        KvCommand::Scan(args) => scan(&args, remote, is_json),
        KvCommand::Find(args) => find::find(&args, remote, is_json),
        KvCommand::Watch(args) => watch::watch(&args, remote, is_json),
    }
}

fn get(args: &GetArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let GetArgs {
        key: args,
        version,
        hold,
    } = args;
    let stream = remote.client().keyed(&args.stream);
    let key = args.key.as_bytes();
    let found = match (version, hold) {
        (Some(version), _) => wait(remote, &stream, stream.get_at(key, Offset(*version)))?,
        (None, Some(hold)) => wait(remote, &stream, stream.get_at_hold(key, hold))?,
        (None, None) => wait(remote, &stream, stream.get(key))?,
    };
    let Some(found) = found else {
        let at = match (version, hold) {
            (Some(version), _) => format!(" at version {version}"),
            (None, Some(hold)) => format!(" at hold {hold}"),
            (None, None) => String::new(),
        };
        bail!(
            "stream {} has no key {:?}{at}{}",
            args.stream,
            args.key,
            passed_over(remote, &args.stream)
        );
    };
    if is_json {
        return print_json(&document(key, &found));
    }
    let is_terminal = io::stdout().is_terminal();
    print(|out| {
        out.write_all(&found.value)?;
        match is_terminal && !found.value.ends_with(b"\n") {
            true => out.write_all(b"\n"),
            false => Ok(()),
        }
    })
}

/// Says how many records look-ups have passed over, since another partition owns their keys.
fn passed_over(remote: &Remote, stream: &str) -> String {
    // The user may lack the right to describe the stream.
    let described = remote.stream(stream);
    let lanes = described.map_or_else(|_| Vec::new(), |described| described.lanes);
    match lanes.iter().map(|lane| lane.misplaced).sum::<u64>() {
        0 => String::new(),
        records => format!(
            "; {records} of its records are in partitions that do not own their keys, so they are not found: let producers that \
             use librdkafka set partitioner=murmur2_random, and write the records again"
        ),
    }
}

fn put(args: &PutArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let stream = remote.client().keyed(&args.stream);
    if !args.more.is_empty() {
        return put_together(args, remote, &stream, is_json);
    }
    let read;
    let value = match args.value == "-" {
        true => {
            read = value_of_stdin(args, remote)?;
            &read
        }
        false => args.value.as_bytes(),
    };
    let change = put_of(args, &args.key, value);
    let changed = wait(remote, &stream, change_one(&stream, change))?;
    report_stored("stored", &args.key, changed.stored, is_json)
}

/// Reads the value of a key from stdin, and not more bytes than a chunk of the stream may have: an input may have no end.
fn value_of_stdin(args: &PutArgs, remote: &Remote) -> anyhow::Result<Vec<u8>> {
    let settings = remote.stream(&args.stream)?.settings;
    let bytes_max = settings.chunk_bytes_max.unwrap_or(settings.segment_bytes);
    let input = Input::open(Path::new("-"), &Stop::on_signals()?)?;
    let mut value = Vec::new();
    input
        .take(bytes_max.0 + 1)
        .read_to_end(&mut value)
        .context("cannot read the value")?;
    if value.len() as u64 > bytes_max.0 {
        bail!(
            "the value of key {:?} is too large: stdin has more than {bytes_max}, the largest chunk of stream {}, which its \
             setting max.message.bytes bounds; nothing was stored",
            args.key,
            args.stream
        );
    }
    Ok(value)
}

/// Puts all keys of the arguments, or none.
fn put_together(
    args: &PutArgs,
    remote: &Remote,
    stream: &KeyedStream,
    is_json: bool,
) -> anyhow::Result<()> {
    let (more, rest) = args.more.as_chunks::<2>();
    if let [key] = rest {
        bail!(
            "key {key:?} has no value: name each key with its value, as in `kv put STREAM a 1 b 2`"
        );
    }
    let more = more.iter().map(|[key, value]| (key, value));
    let entries: Vec<_> = [(&args.key, &args.value)].into_iter().chain(more).collect();
    if let Some((key, _)) = entries.iter().find(|(_, value)| *value == "-") {
        bail!(
            "the value of key {key:?} is `-`: only a key that is set alone can have its value from stdin"
        );
    }
    let changes = entries
        .iter()
        .map(|(key, value)| put_of(args, key, value.as_bytes()));
    let changes: Vec<KeyChange> = changes.collect();
    let stored = wait(remote, stream, stream.change_together(&changes))?;
    let stored = entries
        .iter()
        .zip(stored)
        .map(|((key, _), changed)| (*key, changed.stored));
    if is_json {
        let entries = stored.map(|(key, stored)| Value::Object(stored_document(key, stored)));
        return print_json(&json!({ "entries": entries.collect::<Vec<_>>() }));
    }
    let mut stored = stored.map(|(key, stored)| stored_line("stored", key, stored));
    print(|out| stored.try_for_each(|line| writeln!(out, "{line}")))
}

fn put_of(args: &PutArgs, key: &OsStr, value: &[u8]) -> KeyChange {
    let version = args
        .if_version
        .map(|version| Expected::Version(Offset(version)));
    KeyChange {
        key: Bytes::copy_from_slice(key.as_bytes()),
        expected: version.or(args.if_absent.then_some(Expected::Absent)),
        change: NewValue::Put(Bytes::copy_from_slice(value)),
        ttl: args.ttl,
        secondary: args.secondary.iter().map(secondary).collect(),
    }
}

fn secondary((name, key): &(String, OsString)) -> (String, Bytes) {
    (name.clone(), Bytes::copy_from_slice(key.as_bytes()))
}

fn delete(args: &DeleteArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let KeyArgs { stream, key } = &args.key;
    let stream = remote.client().keyed(stream);
    let bytes = key.as_bytes();
    let stored = match args.if_version {
        Some(version) => wait(remote, &stream, stream.delete_if(bytes, Offset(version)))?,
        None => wait(remote, &stream, stream.delete(bytes))?,
    };
    report_stored("deleted", key, stored, is_json)
}

fn incr(args: &IncrArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let KeyArgs { stream, key } = &args.key;
    let stream = remote.client().keyed(stream);
    let change = KeyChange {
        key: Bytes::copy_from_slice(key.as_bytes()),
        expected: None,
        change: NewValue::Add(args.by),
        ttl: args.ttl,
        secondary: Vec::new(),
    };
    let changed = wait(remote, &stream, change_one(&stream, change))?;
    let sum = changed.sum.context("the server returned no sum")?;
    let mut document = stored_document(key, changed.stored);
    document.insert("value".to_owned(), json!(sum));
    report(is_json, &document, format_args!("{sum}"))
}

async fn change_one(stream: &KeyedStream, change: KeyChange) -> Result<ChangedKey, ClientError> {
    let outcomes = stream.change_many(&[change]).await?;
    let outcome = outcomes.into_iter().next();
    outcome.unwrap_or(Err(ClientError::Closed))
}

fn report_stored(
    what: &str,
    key: &OsStr,
    stored: StoredVersion,
    is_json: bool,
) -> anyhow::Result<()> {
    let document = stored_document(key, stored);
    report(
        is_json,
        &document,
        format_args!("{}", stored_line(what, key, stored)),
    )
}

fn stored_line(what: &str, key: &OsStr, stored: StoredVersion) -> String {
    let StoredVersion { partition, version } = stored;
    format!("{what} key {key:?}: partition {partition}, version {version}")
}

fn stored_document(key: &OsStr, stored: StoredVersion) -> Map<String, Value> {
    let fields = [
        text("key", Some(key.as_bytes())),
        ("partition".to_owned(), json!(stored.partition)),
        ("version".to_owned(), json!(stored.version)),
    ];
    Map::from_iter(fields)
}

fn scan(args: &ScanArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let stream = remote.client().keyed(&args.stream);
    let mut scan = stream.scan(range_of(&args.range));
    let mut left = args.limit.unwrap_or(u64::MAX);
    // An unknown stream is an error before anything is printed.
    let mut next = wait(remote, &stream, scan.next())?;
    let mut printer = Printer::new(is_json);
    printer.begin().context(CANNOT_WRITE)?;
    while let Some(entry) = next.filter(|_| left > 0) {
        printer.print(&entry).context(CANNOT_WRITE)?;
        left -= 1;
        next = match left {
            0 => None,
            _ => wait(remote, &stream, scan.next())?,
        };
    }
    printer.end().context(CANNOT_WRITE)
}

/// Prints entries, as lines or as one document.
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
            true => self.out.write_all(b"{\"entries\":["),
            false => Ok(()),
        }
    }

    fn print(&mut self, entry: &KeyEntry) -> io::Result<()> {
        let KeyEntry { key, newest } = entry;
        let is_first = std::mem::replace(&mut self.is_first, false);
        if self.is_json {
            if !is_first {
                self.out.write_all(b",")?;
            }
            return Ok(serde_json::to_writer(
                &mut self.out,
                &document(key, newest),
            )?);
        }
        for part in [&key[..], b"\t", &newest.value, b"\n"] {
            self.out.write_all(part)?;
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        if self.is_json {
            self.out.write_all(b"]}\n")?;
        }
        self.out.flush()
    }
}
