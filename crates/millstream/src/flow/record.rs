//! The metrics of a flow over time, as a file.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use millstream_flow::StageMetrics;

/// The first line of the file.
const HEADER: &str = "seconds,stage,items_in,items_out,readable,room,capacity,throughput,\
                      selectivity,item_ns,activations,blocked,idle,target,priority";

/// A CSV file with a line for each stage at each time.
pub struct Record {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Record {
    pub fn create(path: &Path) -> anyhow::Result<Record> {
        let cannot_write = || format!("cannot write {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(cannot_write)?);
        writeln!(file, "{HEADER}").with_context(cannot_write)?;
        Ok(Record {
            path: path.to_owned(),
            file,
        })
    }

    /// Adds what the stages of a flow are like at a time; written at once, for those who look on.
    pub fn add(&mut self, at: Duration, stages: &[StageMetrics]) -> anyhow::Result<()> {
        let seconds = at.as_secs_f64();
        let result = stages.iter().try_for_each(|metrics| {
            let StageMetrics {
                stage,
                items_in,
                items_out,
                readable,
                throughput,
                selectivity,
                item_ns,
                activations,
                blocked,
                idle,
                target,
                priority,
                ..
            } = metrics;
            let room = cell(metrics.room);
            let capacity = cell(metrics.capacity);
            writeln!(
                self.file,
                "{seconds:.3},{stage},{items_in},{items_out},{readable},{room},{capacity},\
                 {throughput:.1},{selectivity:.4},{item_ns:.1},{activations},{blocked},{idle},\
                 {target:.1},{priority:.1}"
            )
        });
        result
            .and_then(|()| self.file.flush())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Empty where a stage has no such figure.
fn cell(figure: Option<impl Display>) -> String {
    figure.map_or_else(String::new, |figure| figure.to_string())
}
