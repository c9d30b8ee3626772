//! `millstream repair` as a process.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::project::our_program;
use crate::server::Settings;

/// It has ended by then, however busy the machine is.
const REPAIR_MAX: Duration = Duration::from_secs(120);

/// The files in the trial's folder that take its output.
const OUT: &str = "repair.json";
const ERRORS: &str = "repair.log";

#[derive(Deserialize)]
struct List {
    damaged: Vec<DamagedPartition>,
}

/// A partition that `repair` lists as damaged.
#[derive(Deserialize)]
pub struct DamagedPartition {
    pub stream: String,
    pub partition: u32,
}

/// Returns the damaged partitions that `repair` lists in the data directory of a trial.
pub fn list(folder: &Path, data: &Path, settings: &Settings) -> Result<Vec<DamagedPartition>> {
    let printed = run(folder, data, settings, &[])?;
    let list: List =
        serde_json::from_str(&printed).with_context(|| format!("repair: {printed:?}"))?;
    Ok(list.damaged)
}

/// Cuts a stream.
pub fn cut(folder: &Path, data: &Path, settings: &Settings, stream: &str) -> Result<()> {
    run(folder, data, settings, &["--cut", stream]).map(drop)
}

fn run(folder: &Path, data: &Path, settings: &Settings, words: &[&str]) -> Result<String> {
    let (out, errors) = (folder.join(OUT), folder.join(ERRORS));
    let program = our_program().context("build the program millstream first")?;
    let mut child = millstream_testing::command(program)
        .args(["repair", "--json", "--data"])
        .arg(data)
        .args(words)
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&errors)?)
        .spawn()?;
    let started_at = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started_at.elapsed() > REPAIR_MAX {
            child.kill()?;
            child.wait()?;
            bail!("repair {words:?} has not ended after {REPAIR_MAX:?}");
        }
        sleep(Duration::from_millis(2));
    };
    let printed = fs::read_to_string(&errors)?;
    let is_done = status.success() && !printed.contains("panicked at");
    ensure!(is_done, "repair {words:?} ends with {status}: {printed}");
    Ok(fs::read_to_string(&out)?)
}
