//! `millstream produce`: lines into a stream.

use std::io::Write;

use memchr::memmem;
use millstream_base::{Clock, ProducerId, StreamletIndex, Timestamp, crc32c};
use millstream_connect::{ProducerTotals, StreamProducer};
use millstream_log::{LogError, Stream};
use serde_json::json;

use crate::args::ProduceArgs;
use crate::console::{count_of, grouped, is_broken_pipe, print, report};
use crate::input::Input;
use crate::lines::{LineTarget, read_lines};
use crate::node;
use crate::settings::Settings;
use crate::stop::Stop;

pub fn run(
    args: ProduceArgs,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    let input = Input::open(&args.file, stop)?;
    let log = node::open_existing(settings)?;
    let stream = node::stream(&log, &args.stream)?;
    let mut lines = Lines::new(&stream, &args, &**log.clock())?;
    let result = read_lines(input, stream.config().segment, &mut lines);
    // What was read before an error is kept.
    for producer in &mut lines.producers {
        producer.flush()?;
    }
    let acknowledged = lines.acknowledge();
    result.and(acknowledged)?;
    let totals = lines.totals();
    if !args.acks {
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
        )?;
    }
    drop(lines);
    Ok(log.close()?)
}

/// A producer for each streamlet. A line without a key goes to the streamlet that its number says,
/// so that it is the same one when the line is sent again.
struct Lines<'a> {
    clock: &'a dyn Clock,
    producers: Vec<StreamProducer>,
    separator: Option<memmem::Finder<'a>>,
    number: usize,
    /// Taken anew for every block.
    time: Timestamp,
    acks: bool,
    acknowledged: u64,
}

impl<'a> Lines<'a> {
    fn new(stream: &Stream, args: &'a ProduceArgs, clock: &'a dyn Clock) -> anyhow::Result<Self> {
        let producer = args.producer.map_or(ProducerId::NONE, ProducerId);
        let producers = (0..stream.config().streamlets)
            .map(|streamlet| {
                StreamProducer::for_streamlet(stream, StreamletIndex(streamlet), producer)
            })
            .collect::<Result<_, _>>()?;
        Ok(Lines {
            clock,
            producers,
            separator: args.key_separator.as_deref().map(memmem::Finder::new),
            number: 0,
            time: clock.now(),
            acks: args.acks,
            acknowledged: 0,
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

    /// Prints how many lines are durable, if that has grown.
    fn acknowledge(&mut self) -> anyhow::Result<()> {
        let durable = self.totals().durable_records;
        if !self.acks || durable <= self.acknowledged {
            return Ok(());
        }
        self.acknowledged = durable;
        match print(|out| writeln!(out, "{durable}")) {
            // A reader who has gone wants no more; the lines are stored all the same.
            Err(error) if is_broken_pipe(&error) => {
                self.acks = false;
                Ok(())
            }
            result => result,
        }
    }
}

impl LineTarget for Lines<'_> {
    fn line(&mut self, line: &[u8]) -> Result<(), LogError> {
        let found = self
            .separator
            .as_ref()
            .and_then(|separator| Some((separator.find(line)?, separator.needle().len())));
        let (key, value) = match found {
            Some((at, length)) => (Some(&line[..at]), &line[at + length..]),
            None => (None, line),
        };
        let count = self.producers.len();
        let streamlet = match key {
            // Scaled down, since the remainder of a CRC spreads short keys badly.
            Some(key) => ((u64::from(crc32c(key)) * count as u64) >> 32) as usize,
            None => self.number % count,
        };
        self.number += 1;
        self.producers[streamlet].push(self.time, key, Some(value), &[])
    }

    fn end_block(&mut self, is_drained: bool) -> anyhow::Result<()> {
        if is_drained {
            for producer in &mut self.producers {
                match self.acks {
                    // Whoever waits for acknowledgements may send no more before they come.
                    true => producer.flush()?,
                    false => producer.send()?,
                }
            }
        }
        self.time = self.clock.now();
        self.acknowledge()
    }
}
