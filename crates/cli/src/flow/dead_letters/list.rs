//! `millstream flow dead-letters list`

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use humantime::format_duration;
use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_client::TopicPartition;
use millstream_connect::StoredLetter;
use serde_json::{Value, json};

use super::letters::{Letter, Letters, replayed};
use super::{LetterStream, flow_of, flows};
use crate::args::ListDeadLettersArgs;
use crate::console::{Align, CANNOT_WRITE, Table, stdout};
use crate::remote::Remote;
use crate::stop::Stop;

/// Rows per table: a full table is printed and a new one started, so that output appears at once and memory is
/// bounded for any number of letters.
const PAGE_ROWS: usize = 100;

pub fn run(
    args: &ListDeadLettersArgs,
    remote: &Remote,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    let flow = args.flow.as_deref().map(flow_of);
    let all = match (flow, args.stream.as_deref()) {
        (Some(flow), stream) => vec![LetterStream::find(remote, flow, stream)?],
        (None, Some(stream)) => vec![LetterStream::named(remote, stream)?],
        (None, None) => {
            let flows = flows(remote)?;
            flows
                .iter()
                .map(|flow| LetterStream::of_flow(flow))
                .collect()
        }
    };
    let mut printer = match is_json {
        true => Printer::Document { printed: 0 },
        false => Printer::Pages {
            rows: Vec::new(),
            is_first: true,
        },
    };
    let mut left = args.limit.unwrap_or(u64::MAX);
    printer.begin()?;
    for stream in &all {
        // By flow.
        let mut done: HashMap<String, HashMap<TopicPartition, Offset>> = HashMap::new();
        let mut letters = Letters::open(remote, &stream.name, &Default::default())?;
        while left > 0
            && let Some(found) = letters.next(stop)?
        {
            let of_flow = |letter: &&Letter| flow.is_none_or(|flow| stream.flow_of(letter) == flow);
            let wanted = found.iter().filter(of_flow);
            for letter in wanted.take(usize::try_from(left).unwrap_or(usize::MAX)) {
                let flow = stream.flow_of(letter);
                if !done.contains_key(flow) {
                    done.insert(flow.to_owned(), replayed(remote, flow, &stream.name)?);
                }
                let is_replayed = done[flow]
                    .get(&letter.place)
                    .is_some_and(|done| letter.offset < *done);
                printer.print(letter, flow, is_replayed)?;
                left -= 1;
            }
        }
    }
    printer.end()
}

enum Printer {
    Pages {
        /// Rows of the page that is being filled.
        rows: Vec<[String; 7]>,
        /// The first page is printed even if it is empty, as other tables are.
        is_first: bool,
    },
    Document {
        printed: u64,
    },
}

impl Printer {
    fn begin(&self) -> anyhow::Result<()> {
        match self {
            Printer::Pages { .. } => Ok(()),
            Printer::Document { .. } => write("{\"dead_letters\":["),
        }
    }

    fn print(&mut self, found: &Letter, flow: &str, is_replayed: bool) -> anyhow::Result<()> {
        match self {
            Printer::Pages { rows, is_first } => {
                rows.push(row(found, flow, is_replayed));
                if rows.len() < PAGE_ROWS {
                    return Ok(());
                }
                *is_first = false;
                print_page(std::mem::take(rows))
            }
            Printer::Document { printed } => {
                *printed += 1;
                let comma = if *printed > 1 { "," } else { "" };
                write(&format!("{comma}{}", document(found, flow, is_replayed)))
            }
        }
    }

    fn end(self) -> anyhow::Result<()> {
        match self {
            Printer::Pages { rows, is_first } if rows.is_empty() && !is_first => Ok(()),
            Printer::Pages { rows, .. } => print_page(rows),
            Printer::Document { .. } => write("]}\n"),
        }
    }
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context(CANNOT_WRITE)
}

fn print_page(rows: Vec<[String; 7]>) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        ("age", Align::Right),
        ("flow", Align::Left),
        ("operator", Align::Left),
        ("error", Align::Left),
        ("origin", Align::Left),
        ("size", Align::Right),
        ("replayed", Align::Left),
    ]);
    for row in rows {
        table.row(row);
    }
    table.print()
}

fn row(found: &Letter, flow: &str, is_replayed: bool) -> [String; 7] {
    let StoredLetter {
        timestamp,
        operator,
        error,
        place,
        original,
        bytes,
        ..
    } = &found.letter;
    let origin = place.as_ref().map(|(stream, partition, Offset(offset))| {
        format!("{stream}, partition {partition}, offset {offset}")
    });
    let replayed = match (original, is_replayed) {
        (None, _) => "cannot be",
        (Some(_), true) => "yes",
        (Some(_), false) => "no",
    };
    [
        age(*timestamp),
        flow.to_owned(),
        operator.clone(),
        error.clone(),
        origin.unwrap_or_else(|| "unknown".to_owned()),
        ByteSize(*bytes as u64).to_string(),
        replayed.to_owned(),
    ]
}

fn document(found: &Letter, flow: &str, is_replayed: bool) -> Value {
    let letter = &found.letter;
    let origin = letter.place.as_ref().map(|(stream, partition, offset)| {
        json!({ "stream": stream, "partition": partition, "offset": offset })
    });
    json!({
        "stream": &*found.place.topic,
        "partition": found.place.partition,
        "offset": found.offset,
        "timestamp": letter.timestamp,
        "flow": flow,
        "operator": letter.operator,
        "error": letter.error,
        "item": letter.item,
        "origin": origin,
        "bytes": letter.bytes,
        "can_be_replayed": letter.original.is_some(),
        "is_replayed": letter.original.is_some() && is_replayed,
    })
}

/// Formats an age in its largest two units.
fn age(at: Timestamp) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let then = u64::try_from(at.0).unwrap_or_default();
    let age = now
        .unwrap_or_default()
        .saturating_sub(Duration::from_millis(then));
    let text = format_duration(Duration::from_secs(age.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
