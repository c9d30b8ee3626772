//! `millstream produce`: appends lines to a stream.

mod remote;

use std::io::Write;

use memchr::memmem;
use millstream_base::{Clock, ProducerId, StreamletIndex, Timestamp, crc32c, partition_of_key};
use millstream_connect::{ProducerTotals, StreamProducer};
use millstream_log::Stream;
use serde_json::json;

use crate::args::ProduceArgs;
use crate::console::{count_of, grouped, is_broken_pipe, print, report};
use crate::input::Input;
use crate::lines::{LineError, LineTarget, read_lines};
use crate::node;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::stop::Stop;

pub fn run(
    args: ProduceArgs,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    let input = Input::open(&args.file, stop)?;
    if !settings.is_local() {
        return remote::run(&args, input, &Remote::new(settings)?, is_json);
    }
    let log = node::open_existing(settings)?;
    let stream = node::stream(&log, &args.stream)?;
    let mut lines = Lines::new(&stream, &args, &**log.clock())?;
    let result = read_lines(input, stream.config().segment, &mut lines);
    // Lines read before an error are stored nevertheless.
    for producer in &mut lines.producers {
        producer.flush()?;
    }
    let acknowledged = lines.acknowledge();
    result.and(acknowledged)?;
    let totals = lines.totals();
    if !args.acks {
        tell_totals(&args, totals, is_json)?;
    }
    drop(lines);
    Ok(log.close()?)
}

/// Reports the number of stored lines.
fn tell_totals(args: &ProduceArgs, totals: ProducerTotals, is_json: bool) -> anyhow::Result<()> {
    let document = json!({
        "appended_records": totals.appended_records,
        "known_records": totals.known_records,
        "durable_records": totals.durable_records,
    });
    let known = match totals.known_records {
        0 => String::new(),
        1 => "\n1 was there already".to_owned(),
        known => format!("\n{} were there already", grouped(known)),
    };
    let appended = count_of(totals.appended_records, "record");
    report(
        is_json,
        &document,
        format_args!("{appended} appended to {}{known}", args.stream),
    )
}

/// Finds keys in lines, and prints how many lines are durable.
struct Protocol<'a> {
    separator: Option<memmem::Finder<'a>>,
    prints_acks: bool,
    acknowledged: u64,
}

impl<'a> Protocol<'a> {
    fn new(args: &'a ProduceArgs) -> Protocol<'a> {
        Protocol {
            separator: args.key_separator.as_deref().map(memmem::Finder::new),
            prints_acks: args.acks,
            acknowledged: 0,
        }
    }

    /// The key, if the line has one, and the value.
    fn split<'l>(&self, line: &'l [u8]) -> (Option<&'l [u8]>, &'l [u8]) {
        let found = self
            .separator
            .as_ref()
            .and_then(|separator| Some((separator.find(line)?, separator.needle().len())));
        match found {
            Some((at, length)) => (Some(&line[..at]), &line[at + length..]),
            None => (None, line),
        }
    }

    /// Prints the number of durable lines, if it has grown.
    fn acknowledge(&mut self, durable: u64) -> anyhow::Result<()> {
        if !self.prints_acks || durable <= self.acknowledged {
            return Ok(());
        }
        self.acknowledged = durable;
        match print(|out| writeln!(out, "{durable}")) {
            // If the reader of stdout has closed it, the acks stop, but the lines are stored.
            Err(error) if is_broken_pipe(&error) => {
                self.prints_acks = false;
                Ok(())
            }
            result => result,
        }
    }
}

/// A producer for each streamlet, or for each partition of a keyed stream, where the key's hash selects the partition. The
/// line's number selects the producer of a line without a key, so that a resent line goes to the same one.
struct Lines<'a> {
    clock: &'a dyn Clock,
    is_keyed: bool,
    producers: Vec<StreamProducer>,
    protocol: Protocol<'a>,
    number: usize,
    /// Taken anew for every block.
    time: Timestamp,
}

impl<'a> Lines<'a> {
    fn new(stream: &Stream, args: &'a ProduceArgs, clock: &'a dyn Clock) -> anyhow::Result<Self> {
        let producer = args.producer.map_or(ProducerId::NONE, ProducerId);
        let is_keyed = stream.is_keyed();
        let count = match is_keyed {
            true => stream.partition_count(),
            false => stream.config().streamlets,
        };
        let producers = (0..count)
            .map(|index| match is_keyed {
                true => StreamProducer::for_partition(stream, index, producer),
                false => StreamProducer::for_streamlet(stream, StreamletIndex(index), producer),
            })
            .collect::<Result<_, _>>()?;
        Ok(Lines {
            clock,
            is_keyed,
            producers,
            protocol: Protocol::new(args),
            number: 0,
            time: clock.now(),
        })
    }

    fn totals(&mut self) -> ProducerTotals {
        let mut sum = ProducerTotals::default();
        for producer in &mut self.producers {
            let totals = producer.totals();
            sum.appended_records += totals.appended_records;
            sum.known_records += totals.known_records;
            sum.durable_records += totals.durable_records;
        }
        sum
    }

    fn acknowledge(&mut self) -> anyhow::Result<()> {
        let durable = self.totals().durable_records;
        self.protocol.acknowledge(durable)
    }
}

impl LineTarget for Lines<'_> {
    fn line(&mut self, line: &[u8]) -> Result<(), LineError> {
        let (key, value) = self.protocol.split(line);
        let count = self.producers.len();
        let index = match key {
            Some(key) if self.is_keyed => partition_of_key(key, count),
            // Scaled to the range: the remainder of a CRC spreads short keys badly.
            Some(key) => ((u64::from(crc32c(key)) * count as u64) >> 32) as usize,
            None => self.number % count,
        };
        self.number += 1;
        Ok(self.producers[index].push(self.time, key, Some(value), &[])?)
    }

    fn end_block(&mut self, is_drained: bool) -> anyhow::Result<()> {
        if is_drained {
            for producer in &mut self.producers {
                match self.protocol.prints_acks {
                    // A program that waits for acknowledgements may send no more lines before they arrive.
                    true => producer.flush()?,
                    false => producer.send()?,
                }
            }
        }
        self.time = self.clock.now();
        self.acknowledge()
    }
}
