//! Lines of files into the stream `lines`, and its words counted.

mod table;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{Clock, ProducerId, Timestamp};
use millstream_connect::{StoredChunks, StreamProducer, StreamSource};
use millstream_flow::{Flow, Parts, Running};
use millstream_log::{Log, Stream, StreamConfig};
use millstream_serve::{Content, Metric};
use serde::Serialize;
use serde_json::Value;

use self::table::WordCounts;
use super::Run;
use super::live::{Ingested, Live};
use crate::console::{Align, Table, count_of, grouped, print, print_json};
use crate::http::serve;
use crate::input::Input;
use crate::lines::{LineError, LineTarget, read_lines};

/// The stream of lines.
const STREAM: &str = "lines";

/// How many of the most frequent words are shown.
const TOP: usize = 20;

/// What `--json` prints. The words are those of everything stored.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    ingested: Ingested,
    words: u64,
    prefixed_words: u64,
    top: Vec<(String, u64)>,
}

pub fn run(run: &mut Run<'_>, files: &[PathBuf], prefix: &str) -> anyhow::Result<()> {
    // All of them, before anything is read of the first.
    let inputs: Vec<Input> = files
        .iter()
        .map(|path| Input::open(path, run.stop))
        .collect::<Result<_, _>>()?;
    let config = StreamConfig::default();
    let stream = run.log.stream_or_create(STREAM, config)?;

    let read_records = Arc::new(AtomicU64::new(0));
    let reading = Arc::clone(&read_records);
    let live = Arc::new(Live::new(&stream, move || reading.load(Ordering::Relaxed)));
    let source = StreamSource::new(&stream);
    let ending = source.ending();
    let workers = run.flow_settings.workers.get();
    let mut flow = Flow::with_settings("words", run.flow_settings.clone());
    let counts = flow.partial::<WordCounts>("counts");
    flow.sources("lines", source.split(workers))
        .fold_local(&counts, move |counts, chunks| {
            read_records.fetch_add(count_words(counts, chunks), Ordering::Relaxed);
        });
    let running = Arc::new(flow.run()?);
    let content = Arc::new(WordsContent {
        running: Arc::clone(&running),
        live: Arc::clone(&live),
        log: run.log.clone(),
    });
    let server = serve(run.settings.http, None, content, run.progress)?;

    let clock = Arc::clone(run.log.clock());
    let has_failed = || running.is_finished();
    let (ingested, counted) = run.watch(&live, has_failed, || {
        let ingested = ingest(inputs, &stream, &*clock, &live);
        // What was stored before an error is counted as well.
        ending.end_at_durable_head();
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
        self.live.overview(self.running.name())
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

/// Adds the words of some lines; returns how many lines there were.
fn count_words(counts: &mut WordCounts, chunks: &StoredChunks) -> u64 {
    let mut records = 0;
    chunks.for_each_part(|record| {
        records += 1;
        counts.add_line(record.value.unwrap_or_default());
    });
    records
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
