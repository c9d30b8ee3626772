//! `millstream flow run logparser`: counts the words of files that start with a prefix.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use millstream_base::SystemDisk;
use millstream_flow::sources::{LineFiles, LineLimits};
use millstream_flow::{FlowSettings, Order, Running};
use millstream_logparser::{LogParser, Staging};
use millstream_serve::{Content, Metric};
use serde::Serialize;
use serde_json::{Value, json};

use super::checkpoints::CheckpointWatch;
use super::flow_settings;
use super::observe::{Observed, Observer, record};
use super::ranks::on_ranks;
use crate::args::{LogparserArgs, Stages};
use crate::console::{Align, Progress, Table, count_of, grouped, print, print_json, time};
use crate::http::serve;
use crate::settings::Settings;
use crate::stop::Stop;

/// The document that `--json` prints.
#[derive(Serialize)]
struct Report {
    /// Words that start with the prefix.
    count: u64,
    words: u64,
    bytes: u64,
    /// Bytes that were read before the checkpoint from which the run resumed.
    bytes_before: u64,
    #[serde(flatten)]
    observed: Observed,
}

pub fn run(
    args: &LogparserArgs,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    // No count depends on the order.
    let of_rank = flow_settings(&args.run, settings, Order::Free);
    let report = on_ranks(&args.ranks, &args.run.checkpoints, &of_rank, |of_rank| {
        run_rank(args, settings, of_rank, is_json, stop)
    })?;
    match report {
        Some((report, _)) if is_json => print_json(&report),
        Some((report, input_bytes)) => report.print(&args.prefix, input_bytes),
        // The process of the gathering rank prints the result.
        None => Ok(()),
    }
}

/// Counts the part of one rank; on the gathering rank, which is looked at, everything.
fn run_rank(
    args: &LogparserArgs,
    settings: &Settings,
    of_rank: FlowSettings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<(Report, u64)> {
    args.file.iter().try_for_each(|path| check_file(path))?;
    let files = LineFiles::open(&SystemDisk, args.file.clone(), LineLimits::default())?;
    let input_bytes = files.len_bytes();
    let is_gathering = of_rank.ranks.rank() == args.ranks.gather_at;
    let record = match is_gathering {
        true => record(&args.run, &args.file)?,
        false => None,
    };
    let staging = match args.stages {
        Stages::Fused => Staging::Fused,
        Stages::Separate => Staging::Separate,
    };
    let prefix = args.prefix.as_bytes();
    let progress = Progress::new(is_json || !is_gathering);
    let checkpoints = CheckpointWatch::new(&of_rank.ranks);
    let parser = Arc::new(LogParser::start(files, prefix, staging, of_rank)?);
    let content = Arc::new(LogParserContent {
        parser: Arc::clone(&parser),
        input_bytes,
        started_at: Instant::now(),
    });
    let server = match is_gathering {
        true => serve(settings, None, content, &progress)?,
        false => None,
    };
    let observer = Observer {
        running: parser.running(),
        bytes: &|| parser.bytes(),
        bytes_before: parser.bytes_before(),
        input_bytes,
        kills: args.run.kill_workers,
        record,
        checkpoints,
        stop,
        progress,
    };
    let observed = observer.run()?;
    drop(server);
    let totals = parser.gather(args.ranks.gather_at)?;
    let report = Report {
        count: totals.count,
        words: totals.words,
        bytes: totals.bytes,
        bytes_before: totals.bytes_before,
        observed,
    };
    Ok((report, input_bytes))
}

/// Refuses files that are not regular: the reader reads several positions of a file at once, and opening a FIFO would
/// wait for its writer.
pub fn check_file(path: &Path) -> anyhow::Result<()> {
    const WHY: &str = "logparser reads a file in several places at once; \
                       millstream quickstart --file takes anything that can be read";
    if path == Path::new("-") {
        bail!("stdin is no regular file: {WHY}");
    }
    let name = path.display();
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {name}"))?;
    if metadata.is_dir() {
        bail!("{name} is a folder; name files in it");
    }
    if !metadata.is_file() {
        bail!("{name} is no regular file: {WHY}");
    }
    Ok(())
}

struct LogParserContent {
    parser: Arc<LogParser>,
    input_bytes: u64,
    started_at: Instant,
}

impl Content for LogParserContent {
    fn flows(&self) -> Vec<Arc<Running>> {
        vec![Arc::clone(self.parser.running())]
    }

    fn overview(&self) -> Value {
        let bytes = self.parser.bytes();
        let seconds = self.started_at.elapsed().as_secs_f64();
        json!({
            "name": "flow run",
            "flow": self.parser.running().name(),
            "uptime_s": seconds,
            "input_bytes": self.input_bytes,
            "bytes": bytes,
            "bytes_per_second": (bytes - self.parser.bytes_before()) as f64 / seconds,
            "words": self.parser.words(),
            "count": self.parser.count(),
        })
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

impl Report {
    fn print(&self, prefix: &str, input_bytes: u64) -> anyhow::Result<()> {
        let mut table = Table::new(&[
            ("stage", Align::Left),
            ("items", Align::Right),
            ("time/item", Align::Right),
            ("results/item", Align::Right),
            ("busy", Align::Right),
        ]);
        for stage in &self.observed.stages {
            let items = stage.items_in as f64;
            let by_item = |is_known: bool, figure: String| match is_known && stage.items_in > 0 {
                true => figure,
                false => "-".to_owned(),
            };
            // The last stage has no outputs.
            let results = format!("{:.2}", stage.items_out as f64 / items);
            table.row([
                stage.stage.clone(),
                grouped(stage.items_in),
                by_item(true, time(stage.busy_seconds / items)),
                by_item(stage.room.is_some(), results),
                format!("{:.2} s", stage.busy_seconds),
            ]);
        }
        let Observed {
            seconds,
            is_stopped,
            cpu_seconds,
            joules,
            workers_replaced,
            latency,
            ..
        } = &self.observed;
        let start = match self.count {
            1 => "starts",
            _ => "start",
        };
        let bytes_now = self.bytes - self.bytes_before;
        let joules = joules.map(|joules| format!(" and {joules:.0} J"));
        print(|out| {
            table.write(out)?;
            if let Some(p50_us) = latency.p50_us {
                let half = time(p50_us / 1e6);
                let samples = count_of(latency.samples, "sample");
                let rest = match latency.p99_us {
                    Some(p99_us) => format!("99 % within {}", time(p99_us / 1e6)),
                    None => format!("the slowest {}", time(latency.max_us / 1e6)),
                };
                writeln!(
                    out,
                    "from source to end: half of the records within {half}, {rest} ({samples})",
                )?;
            }
            writeln!(
                out,
                "{cpu_seconds:.2} s of CPU time{}",
                joules.unwrap_or_default(),
            )?;
            if *workers_replaced > 0 {
                writeln!(out, "{} replaced", count_of(*workers_replaced, "worker"))?;
            }
            if *is_stopped {
                writeln!(
                    out,
                    "stopped before the end: {} of {} bytes were read",
                    grouped(self.bytes),
                    grouped(input_bytes)
                )?;
            }
            writeln!(
                out,
                "{}, {} of them {start} with {prefix:?}, in {} bytes; {seconds:.2} s, {:.0} MB/s",
                count_of(self.words, "word"),
                grouped(self.count),
                grouped(self.bytes),
                bytes_now as f64 / 1e6 / seconds,
            )
        })
    }
}
