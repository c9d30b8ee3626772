//! Appends lines of files to the stream `lines`, and counts its words.

mod table;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use millstream_base::{Clock, ProducerId, Timestamp};
use millstream_connect::{LogCheckpoints, StoredChunks, StreamProducer, StreamSource};
use millstream_flow::{Checkpointing, Flow, Parts, Resume, Running};
use millstream_log::{Log, Stream, StreamConfig};
use millstream_serve::{Content, Metric};
use serde::Serialize;
use serde_json::Value;

use self::table::WordCounts;
use super::live::{Ingested, Live};
use super::run::{Kept, Run, explained};
use crate::console::{Align, Table, count_of, grouped, print, print_json};
use crate::http::serve;
use crate::input::Input;
use crate::lines::{LineError, LineTarget, read_lines};

/// The stream of lines.
const STREAM: &str = "lines";

/// The name of the flow, under which its checkpoints are stored.
const FLOW: &str = "words";

/// How often a finishing flow checks whether it has read everything.
const LAG_INTERVAL: Duration = Duration::from_millis(2);

/// Number of the most frequent words that are shown.
const TOP: usize = 20;

/// The document that `--json` prints. The words include all runs since the first one.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    ingested: Ingested,
    words: u64,
    prefixed_words: u64,
    top: Vec<(String, u64)>,
    retain_bytes: Kept,
}

pub fn run(run: &mut Run<'_>, files: &[PathBuf], prefix: &str) -> anyhow::Result<()> {
    // All of them, before anything is read of the first.
    let inputs: Vec<Input> = files
        .iter()
        .map(|path| Input::open(path, run.stop))
        .collect::<Result<_, _>>()?;
    let config = StreamConfig::default();
    let stream = run.log.stream_or_create(STREAM, config)?;
    let kept = Kept::of(run.log, &[STREAM])?;
    kept.note(run.progress);

    let place = LogCheckpoints::new(run.log, FLOW);
    if run.is_anew {
        let forgotten = place.forget();
        forgotten.map_err(|error| anyhow!("cannot forget the checkpoint: {error}"))?;
    }
    let mut settings = run.flow_settings.clone();
    settings.checkpoints = Some(Checkpointing {
        store: Arc::new(place),
        interval: None,
        resume: Resume::IfAny,
    });
    let workers = settings.workers.get();
    let flow = Flow::with_settings(FLOW, settings);
    let counts = flow.partial::<WordCounts>("counts");
    flow.sources("lines", StreamSource::new(&stream).split(workers))
        .fold_local(&counts, count_words);
    let running = Arc::new(flow.run().map_err(explained)?);
    let live = Arc::new(Live::new(&stream, &running));
    let content = Arc::new(WordsContent {
        running: Arc::clone(&running),
        live: Arc::clone(&live),
        log: run.log.clone(),
    });
    let server = serve(run.settings, None, content, run.progress)?;

    let clock = Arc::clone(run.log.clock());
    let has_failed = || running.is_finished();
    let (ingested, counted) = run.watch(&live, has_failed, || {
        let ingested = ingest(inputs, &stream, &*clock, &live);
        // Lines stored before an error are counted as well.
        while live.lag_records() > 0 && !running.is_finished() {
            thread::sleep(LAG_INTERVAL);
        }
        running.stop();
        (ingested, running.join())
    })?;
    drop(server);
    counted?;
    ingested?;

    let counts = counts.merged().into_counts();
    let prefixed = counts
        .iter()
        .filter(|(word, _)| word.starts_with(prefix.as_bytes()));
    let top = counts.top(TOP).into_iter();
    let report = Report {
        ingested: live.summary(),
        words: counts.iter().map(|(_, count)| count).sum(),
        prefixed_words: prefixed.map(|(_, count)| count).sum(),
        top: top
            .map(|(word, count)| (String::from_utf8_lossy(word).into_owned(), count))
            .collect(),
        retain_bytes: kept,
    };
    match run.is_json {
        true => print_json(&report),
        false => report.print(prefix),
    }
}

struct WordsContent {
    running: Arc<Running>,
    live: Arc<Live>,
    log: Log,
}

impl Content for WordsContent {
    fn flows(&self) -> Vec<Arc<Running>> {
        vec![Arc::clone(&self.running)]
    }

    fn overview(&self) -> Value {
        self.live.overview()
    }

    fn metrics(&self) -> Vec<Metric> {
        self.live.metrics(&self.log)
    }
}

/// Appends the lines of all inputs; returns when they are durable.
fn ingest(
    inputs: Vec<Input>,
    stream: &Stream,
    clock: &dyn Clock,
    live: &Live,
) -> anyhow::Result<()> {
    let mut lines = Lines {
        producer: StreamProducer::new(stream, ProducerId::NONE)?,
        clock,
        time: clock.now(),
        live,
        records: 0,
        bytes: 0,
    };
    let bytes_max = stream.config().segment;
    let result = inputs
        .into_iter()
        .try_for_each(|input| read_lines(input, bytes_max, &mut lines));
    lines.producer.flush()?;
    lines.count();
    result
}

struct Lines<'a> {
    producer: StreamProducer,
    clock: &'a dyn Clock,
    /// Taken anew for every block.
    time: Timestamp,
    live: &'a Live,
    /// Not yet added to `live`.
    records: u64,
    bytes: u64,
}

impl Lines<'_> {
    fn count(&mut self) {
        self.live.ingested(self.records, self.bytes);
        self.records = 0;
        self.bytes = 0;
    }
}

impl LineTarget for Lines<'_> {
    #[inline]
    fn line(&mut self, line: &[u8]) -> Result<(), LineError> {
        self.producer.push(self.time, None, Some(line), &[])?;
        self.records += 1;
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn end_block(&mut self, is_drained: bool) -> anyhow::Result<()> {
        if is_drained {
            self.producer.send()?;
        }
        self.count();
        self.time = self.clock.now();
        Ok(())
    }
}

/// Adds the words of some lines.
fn count_words(counts: &mut WordCounts, chunks: &StoredChunks) {
    chunks.for_each_part(|record| counts.add_line(record.value.unwrap_or_default()));
}

impl Report {
    fn print(&self, prefix: &str) -> anyhow::Result<()> {
        let mut table = Table::new(&[("word", Align::Left), ("count", Align::Right)]);
        for (word, count) in &self.top {
            table.row([word.clone(), grouped(*count)]);
        }
        let Ingested {
            ingested_records,
            durable_records,
            seconds,
            ..
        } = self.ingested;
        let start = match self.prefixed_words {
            1 => "starts",
            _ => "start",
        };
        print(|out| {
            table.write(out)?;
            writeln!(
                out,
                "{}, {} of them {start} with {prefix:?}, in {}; {} taken in and counted in {seconds:.2} s",
                count_of(self.words, "word"),
                grouped(self.prefixed_words),
                count_of(durable_records, "line"),
                count_of(ingested_records, "line"),
            )
        })
    }
}
