//! Prints the records of a stream of a server.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use millstream_base::Offset;
use millstream_client::{
    Consumer, ConsumerConfig, Decompressor, Fetched, Isolation, OnDamage, Reset, SkippedRecords,
    Start, TopicPartition,
};

use super::Printer;
use crate::args::ConsumeArgs;
use crate::console::{CANNOT_WRITE, count_of, tell};
use crate::remote::{Remote, explained};
use crate::stop::Stop;
use crate::usage::WrongUsage;
use crate::values::Place;

/// How often a group member without partitions checks that the stream still exists.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub fn run(args: &ConsumeArgs, remote: &Remote, is_json: bool, stop: &Stop) -> anyhow::Result<()> {
    remote.stream(&args.stream)?;
    let mut consumer = match &args.group {
        Some(group) => member(args, group, remote)?,
        None => reader(args, remote)?,
    };
    let mut printer = Printer::new(args, is_json);
    printer.begin().context(CANNOT_WRITE)?;
    let printed = print_all(args, remote, &mut consumer, &mut printer, stop);
    if printed.is_ok() {
        // An error drops the consumer, which commits nothing then.
        printer.end().context(CANNOT_WRITE)?;
    }
    let closed = remote.wait(consumer.close());
    printed?;
    closed
}

fn reader(args: &ConsumeArgs, remote: &Remote) -> anyhow::Result<Consumer> {
    let stream = &args.stream;
    let topic = remote.wait(remote.client().topic(stream))?;
    let partitions = topic.leaders.len();
    let count = count_of(partitions as u64, "partition");
    let chosen = match args.partition {
        Some(partition) if partition as usize >= partitions => {
            bail!("stream {stream} has {count}, and none has the number {partition}")
        }
        Some(partition) => partition as usize..partition as usize + 1,
        None => 0..partitions,
    };
    let start: Start = match args.from {
        Place::At(_) if chosen.len() > 1 => bail!(
            "stream {stream} has {count}, each with offsets of its own; choose one with --partition"
        ),
        place => place.into(),
    };
    let chosen = topic
        .partitions()
        .skip(chosen.start)
        .take(chosen.len())
        .map(|place| (place, start));
    let places: Vec<(TopicPartition, Start)> = chosen.collect();
    if let (Place::At(offset), [(place, _)]) = (args.from, places.as_slice()) {
        check_offset(remote, place, offset)?;
    }
    let config = ConsumerConfig {
        reset: None,
        ..config(args)
    };
    let mut consumer = remote.wait(Consumer::assigned(remote.client(), config, &places))?;
    if args.follow && args.partition.is_none() {
        let _runtime = remote.runtime().enter();
        consumer.follow(&topic, |_, _| true);
    }
    Ok(consumer)
}

fn config(args: &ConsumeArgs) -> ConsumerConfig {
    ConsumerConfig {
        delivery: args.delivery.unwrap_or_default().into(),
        filter: args.filter.clone(),
        on_damage: match args.skip_damaged {
            true => OnDamage::Skip(Arc::new(tell_skipped)),
            false => OnDamage::Fail,
        },
        ..ConsumerConfig::default()
    }
}

fn tell_skipped(skipped: &SkippedRecords) {
    let SkippedRecords {
        place,
        offsets,
        reason,
    } = skipped;
    let (partition, stream) = (place.partition, &place.topic);
    let (first, last) = (offsets.start, Offset(offsets.end.0.saturating_sub(1)));
    tell(format_args!(
        "skipped offsets {first} to {last} of partition {partition} of {stream}: {reason}"
    ));
}

/// Nothing would ever come from behind the end, or only much later.
fn check_offset(remote: &Remote, place: &TopicPartition, offset: Offset) -> anyhow::Result<()> {
    let client = remote.client();
    let mut ends = [Offset::default(); 2];
    for (end, start) in ends.iter_mut().zip([Start::Earliest, Start::Latest]) {
        let asked = [(place.clone(), start)];
        let found = remote.wait(client.offsets(&asked, Isolation::Uncommitted))?;
        *end = found.get(place).copied().unwrap_or_default();
    }
    let [first, next] = ends;
    match (first..=next).contains(&offset) {
        true => Ok(()),
        false => bail!(
            "offset {offset} does not exist: partition {} of {} starts at offset {first} and ends before {next}",
            place.partition,
            place.topic
        ),
    }
}

fn member(args: &ConsumeArgs, group: &str, remote: &Remote) -> anyhow::Result<Consumer> {
    let reset = match args.from {
        Place::Earliest => Reset::Earliest,
        Place::Latest => Reset::Latest,
        Place::At(_) => {
            return Err(WrongUsage::error(
                "a group starts at earliest or latest, or where it was",
            ));
        }
    };
    let config = ConsumerConfig {
        reset: Some(reset),
        ..config(args)
    };
    let _runtime = remote.runtime().enter();
    let consumer = Consumer::in_group(remote.client(), config, group, &[&args.stream]);
    consumer.map_err(explained)
}

fn print_all(
    args: &ConsumeArgs,
    remote: &Remote,
    consumer: &mut Consumer,
    printer: &mut Printer<impl Write>,
    stop: &Stop,
) -> anyhow::Result<()> {
    let mut decompressor = Decompressor::default();
    let mut ends = Ends::default();
    let mut looked_at = Instant::now();
    while !stop.is_set() && printer.left > 0 {
        if !args.follow && ends.are_reached(remote, consumer)? {
            // All readable records are printed, but the stream has lost others to damage.
            return match args.skip_damaged {
                true => Ok(()),
                false => check_faults(args, remote),
            };
        }
        match remote.next(consumer.next(), &mut printer.out)? {
            Some(fetched) => {
                let mut printed = print(&fetched, &mut decompressor, printer);
                // From the next call on, the consumer may commit these records.
                if printed.is_ok() && args.group.is_some() {
                    let flushed = printer.out.flush().context(CANNOT_WRITE);
                    printed = flushed.and(printed);
                }
                match &printed {
                    Ok(None) => {}
                    Ok(Some(done)) => consumer.mark(fetched.place(), *done),
                    Err(_) => consumer.mark(fetched.place(), fetched.from()),
                }
                printed?;
            }
            None if looked_at.elapsed() >= LOOK_EVERY && consumer.positions().is_empty() => {
                remote.stream(&args.stream)?;
                looked_at = Instant::now();
            }
            None => {}
        }
    }
    Ok(())
}

fn check_faults(args: &ConsumeArgs, remote: &Remote) -> anyhow::Result<()> {
    let lanes = remote.stream(&args.stream)?.lanes.into_iter();
    let mut read = lanes.filter(|lane| args.partition.is_none_or(|one| one == lane.partition));
    match read.find_map(|lane| Some((lane.partition, lane.fault?))) {
        Some((partition, fault)) => bail!("stream {}, partition {partition}: {fault}", args.stream),
        None => Ok(()),
    }
}

/// Returns the offset at which the damage stopped it, if that is before the end.
fn print(
    fetched: &Fetched,
    decompressor: &mut Decompressor,
    printer: &mut Printer<impl Write>,
) -> anyhow::Result<Option<Offset>> {
    let partition = u32::try_from(fetched.partition()).unwrap_or_default();
    let mut stopped_at = None;
    let mut error = None;
    let each = fetched.each(decompressor, |record| {
        match printer.print(partition, record) {
            Ok(ControlFlow::Continue(())) => return ControlFlow::Continue(()),
            Ok(ControlFlow::Break(())) => {}
            Err(failed) => error = Some(failed),
        }
        stopped_at = Some(record.offset);
        ControlFlow::Break(())
    });
    each.map_err(explained)?;
    error.map_or(Ok(stopped_at), Err)
}

/// The end offsets of the partitions at the first look.
#[derive(Default)]
struct Ends(HashMap<TopicPartition, Offset>);

impl Ends {
    /// Returns whether all records before these end offsets are printed. A group member without partitions waits for
    /// some.
    fn are_reached(&mut self, remote: &Remote, consumer: &Consumer) -> anyhow::Result<bool> {
        let positions: BTreeMap<TopicPartition, Offset> = consumer.positions();
        let new = positions.keys().filter(|place| !self.0.contains_key(place));
        let new: Vec<(TopicPartition, Start)> =
            new.map(|place| (place.clone(), Start::Latest)).collect();
        if !new.is_empty() {
            let found = remote.client().offsets(&new, Isolation::Committed);
            self.0.extend(remote.wait(found)?);
        }
        let is_reached = |(place, next): (&TopicPartition, &Offset)| {
            self.0.get(place).is_some_and(|end| next >= end)
        };
        Ok(!positions.is_empty() && positions.iter().all(is_reached))
    }
}
