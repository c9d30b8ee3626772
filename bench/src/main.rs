//! Benchmarks of Millstream, each beside its limit: the same work done by hand, on the same bytes,
//! in the same run.

mod ads;
mod arguments;
mod benchmark;
mod broker;
mod catalog;
mod child;
mod clock;
mod connection;
mod docs;
mod engine;
mod fetcher;
mod fixed_share;
mod folder;
mod http;
mod keys;
mod librdkafka;
mod log;
mod machine;
mod measure;
mod memory_group;
mod nexmark;
mod pi;
mod plot;
mod proc;
mod project;
mod push;
mod ranks;
mod report;
mod rocksdb;
mod server;
mod serving;
mod slo;
mod soak;
mod stamp;
mod state;
mod tasks;
mod text;
mod thread_cpu;
mod torture;
mod windows;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::arguments::{Arguments, usage};
use crate::benchmark::Benchmark;
use crate::measure::Bench;
use crate::report::Report;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, task] = &words[..]
        && first == child::CHILD
    {
        return exit(tasks::run(name, task));
    }
    match Arguments::parse(&words) {
        Ok(arguments) => exit(run(&arguments)),
        Err(error) => {
            eprintln!("bench: {error}\n{}", usage());
            ExitCode::from(2)
        }
    }
}

fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => project::root().join("target/bench"),
    };
    if arguments.write_docs {
        return docs::write(&project::root().join("docs"), &out);
    }
    if arguments.torture.loop_disk {
        torture::enter_own_mounts()?;
    }
    for benchmark in arguments.benchmarks() {
        run_one(benchmark, arguments, &out.join(benchmark.name))?;
    }
    Ok(())
}

fn run_one(benchmark: &Benchmark, arguments: &Arguments, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {out:?}"))?;
    let data = arguments.dir.clone().unwrap_or_else(|| out.join("data"));
    // Flink's state refuses relative paths.
    let data = std::path::absolute(data)?;
    let soak = arguments.soak.clone();
    let mut bench = Bench::new(data, out.to_owned(), arguments.quick, soak);
    bench.budget = arguments.budget;
    bench.lasts = arguments.lasts;
    bench.torture = arguments.torture.clone();
    let cases = benchmark.run(&bench, arguments.case.as_deref())?;
    let json = out.join(format!("{}.json", benchmark.name));
    let mut report = Report::now(benchmark.name, cases);
    let ran = report.clone();
    if arguments.case.is_some() && json.exists() {
        // A single case replaces its earlier result.
        report = Report::read(&json)?.updated(report);
    }
    report.write(&json)?;
    plot::draw(&report, out)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&ran)?);
    } else {
        print!("{}", ran.table());
        eprintln!("JSON and plots: {}", out.display());
    }
    Ok(())
}
