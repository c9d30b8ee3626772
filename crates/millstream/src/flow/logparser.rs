//! `millstream flow run logparser`: words of files that start with a prefix.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use millstream_base::SystemDisk;
use millstream_flow::sources::{LineFiles, LineLimits};
use millstream_logparser::{LogParser, Staging};
use serde::Serialize;

use super::flow_settings;
use super::observe::{Observed, Observer, record};
use crate::args::{LogparserArgs, Stages};
use crate::console::{Align, Progress, Table, count_of, grouped, print, print_json};
use crate::settings::Settings;
use crate::stop::Stop;

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    /// Words that start with the prefix.
    count: u64,
    words: u64,
    bytes: u64,
    #[serde(flatten)]
    observed: Observed,
}

pub fn run(
    args: &LogparserArgs,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    args.file.iter().try_for_each(|path| check_file(path))?;
    let files = LineFiles::open(&SystemDisk, args.file.clone(), LineLimits::default())?;
    let input_bytes = files.len_bytes();
    let record = record(&args.run)?;
    let staging = match args.stages {
        Stages::Fused => Staging::Fused,
        Stages::Separate => Staging::Separate,
    };
    let prefix = args.prefix.as_bytes();
    let parser = LogParser::start(files, prefix, staging, flow_settings(&args.run, settings))?;
    let observer = Observer {
        running: parser.running(),
        bytes: &|| parser.bytes(),
        input_bytes,
        kills: args.run.kill_workers,
        record,
        stop,
        progress: Progress::new(is_json),
    };
    let observed = observer.run()?;
    let report = Report {
        count: parser.count(),
        words: parser.words(),
        bytes: parser.bytes(),
        observed,
    };
    match is_json {
        true => print_json(&report),
        false => report.print(&args.prefix, input_bytes),
    }
}

/// The reader goes to several places of a file at once, which only regular files have. Opening a
/// FIFO would wait for its writer.
fn check_file(path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {name}"))?;
    if metadata.is_dir() {
        bail!("{name} is a folder; name files in it");
    }
    if !metadata.is_file() {
        bail!(
            "{name} is no regular file, which is read in several places at once; quickstart takes any with --file"
        );
    }
    Ok(())
}

impl Report {
    fn print(&self, prefix: &str, input_bytes: u64) -> anyhow::Result<()> {
        let mut table = Table::new(&[
            ("stage", Align::Left),
            ("items", Align::Right),
            ("µs/item", Align::Right),
            ("results/item", Align::Right),
            ("busy s", Align::Right),
        ]);
        for stage in &self.observed.stages {
            table.row([
                stage.stage.clone(),
                grouped(stage.items_in),
                format!("{:.2}", stage.item_ns / 1e3),
                format!("{:.2}", stage.selectivity),
                format!("{:.2}", stage.busy_seconds),
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
        let joules = joules.map(|joules| format!(" and {joules:.0} J"));
        print(|out| {
            table.write(out)?;
            writeln!(
                out,
                "latency: half within {:.1} ms, 99 % within {:.1} ms; {cpu_seconds:.2} s of CPU time{}",
                latency.p50_us / 1e3,
                latency.p99_us / 1e3,
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
                self.bytes as f64 / 1e6 / seconds,
            )
        })
    }
}
