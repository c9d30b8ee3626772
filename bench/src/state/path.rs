//! The path from a stream over a flow to its state: edits are counted by user and by page.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use hashbrown::HashMap;
use millstream_base::ByteSize;
use millstream_connect::{LogCheckpoints, StreamSource};
use millstream_flow::{Checkpointing, Emit, Flow, FlowSettings, Resume, StateReader as _, Values};
use millstream_log::{Log, LogConfig, Stream};
use millstream_record::Decompressor;

use super::counting::{INSTANCES, INTERVAL};
use super::edits::{self, Edit, PARTITIONS};
use crate::measure::{Bench, Took, cpu_median, ended, median, time};
use crate::report::{Better, Case};

pub const PATH: &str = "path";

/// All edits stay in memory.
const POOL_BYTES: u64 = 2 << 30;

const FLOW: &str = "edits";
const ELEMENTS: [&str; 2] = ["by_user", "by_page"];

/// How much a loop by hand reads at once.
const READ_BYTES: usize = 1 << 20;

type Counts = [HashMap<String, u64>; 2];

/// A run, the number of its checkpoints and the edits that it counted by each element.
struct Ran {
    took: Took,
    checkpoints: f64,
    counted: [u64; 2],
}

/// The limit is the same flow without checkpoints; beside it a loop by hand.
pub fn path(bench: &Bench) -> Result<Vec<Case>> {
    let edits = bench.size(6_000_000, 20_000);
    let folder = bench.folder(PATH, 4 << 30)?;
    let config = LogConfig::with_pool(folder.path().join("log"), ByteSize(POOL_BYTES));
    let log = Log::open(config)?;
    let stream = edits::create(&log, "topic", edits)?;
    let rounds = bench.turns(3, |place| {
        bench.settle_disk();
        let ran = match place {
            0 => run_kept(&log, &stream)?,
            1 => run_flow(&stream, None)?,
            _ => by_hand(&stream)?,
        };
        ensure!(
            ran.counted == [edits; 2],
            "{:?} edits were counted of {edits}",
            ran.counted
        );
        Ok(ran)
    })?;
    drop(stream);
    log.close()?;
    let took = |place: usize| rounds[place].iter().map(|ran| ran.took).collect::<Vec<_>>();
    let rates = |place| {
        let rate = |took: &Took| edits as f64 / 1e6 / took.seconds;
        took(place).iter().map(rate).collect::<Vec<f64>>()
    };
    let cpu_us = |place| cpu_median(&took(place)) * 1e6 / edits as f64;
    let checkpoints: Vec<f64> = rounds[0].iter().map(|ran| ran.checkpoints).collect();
    let case = Case::new(PATH, "M edits/s", Better::Higher, rates(0));
    Ok(vec![
        case.by_hand(rates(1))
            .peer("by hand without kept state", median(&rates(2)))
            .detail("checkpoints", median(&checkpoints))
            .detail("cpu_us_per_edit", cpu_us(0))
            .detail("cpu_us_per_edit_without_kept_state", cpu_us(1))
            .detail("cpu_us_per_edit_by_hand", cpu_us(2)),
    ])
}

/// Runs the flow with its state in the log, and removes the state.
fn run_kept(log: &Log, stream: &Stream) -> Result<Ran> {
    let store = LogCheckpoints::new(log, FLOW);
    let ran = run_flow(
        stream,
        Some(Checkpointing {
            store: Arc::new(store.clone()),
            interval: Some(INTERVAL),
            resume: Resume::Never,
        }),
    )?;
    store.forget().map_err(|error| anyhow!("{error}"))?;
    for element in ELEMENTS {
        log.delete_stream(&format!("{FLOW}.state.{element}"))?;
    }
    Ok(ran)
}

fn run_flow(stream: &Stream, checkpoints: Option<Checkpointing>) -> Result<Ran> {
    let mut ran = None;
    let took = time(|| {
        let settings = FlowSettings {
            workers: NonZeroUsize::new(INSTANCES as usize).expect("there are instances"),
            checkpoints,
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings(FLOW, settings);
        let values = ELEMENTS.map(|name| flow.values::<String, u64>(name));
        let sources = StreamSource::bounded(stream).split(INSTANCES as usize);
        flow.sources("edits", sources)
            .each(|record, emit: &mut Emit<(usize, String)>| {
                let edit: Edit<'_> = serde_json::from_slice(record.value.unwrap_or_default())?;
                emit(&(0, edit.user.into_owned()));
                emit(&(1, edit.page.into_owned()));
                Ok(())
            })
            .fork(
                &ELEMENTS,
                |(element, _)| *element,
                |element, keys| {
                    let name = ["count users", "count pages"][element];
                    keys.key_by(|(_, key)| key.clone())
                        .count(name, &values[element])
                },
            );
        let running = flow.run()?;
        ended(&running)?;
        let stored = running.checkpoints().unwrap_or_default();
        ensure!(
            stored.failed == 0,
            "a checkpoint failed: {:?}",
            stored.error
        );
        ran = Some((values, stored.kept));
        Ok(())
    })?;
    let (values, kept) = ran.expect("it ran");
    Ok(Ran {
        took,
        checkpoints: kept as f64,
        counted: values.map(|values| sum(&values)),
    })
}

fn sum(values: &Values<String, u64>) -> u64 {
    let keys = values.keys(usize::MAX);
    keys.iter().filter_map(|key| values.get(key)).sum()
}

/// In each of two threads a loop over half of the partitions; one sums up the counts at the end.
fn by_hand(stream: &Stream) -> Result<Ran> {
    let mut all = Counts::default();
    let took = time(|| {
        std::thread::scope(|scope| {
            let threads = INSTANCES as u32;
            let threads: Vec<_> = (0..threads)
                .map(|thread| {
                    let partitions = (0..PARTITIONS).filter(move |it| it % threads == thread);
                    scope.spawn(move || count(stream, partitions))
                })
                .collect();
            for thread in threads {
                let counts = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
                for (all, counts) in all.iter_mut().zip(counts) {
                    for (key, count) in counts {
                        *all.entry(key).or_default() += count;
                    }
                }
            }
            Ok(())
        })
    })?;
    Ok(Ran {
        took,
        checkpoints: 0.0,
        counted: all.map(|counts| counts.values().sum()),
    })
}

fn count(stream: &Stream, partitions: impl Iterator<Item = u32>) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut decompressor = Decompressor::default();
    for partition in partitions {
        let partition = stream.partition(partition)?;
        let mut reader = partition.reader(partition.earliest());
        while let Some(read) = reader.read(READ_BYTES)? {
            for chunk in read.chunks() {
                let chunk = chunk?;
                for record in chunk.records(&mut decompressor)? {
                    let value = record?.value.unwrap_or_default();
                    let edit: Edit<'_> = serde_json::from_slice(value)?;
                    for (counts, key) in counts.iter_mut().zip([edit.user, edit.page]) {
                        *counts.entry_ref(&*key).or_default() += 1;
                    }
                }
            }
        }
    }
    Ok(counts)
}
