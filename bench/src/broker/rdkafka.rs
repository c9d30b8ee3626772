//! librdkafka's own program for measuring.

use std::process::Stdio;

use anyhow::{Result, ensure};

use super::contender::Node;
use crate::connection::RECORD_BYTES;
use crate::project::{self, is_built};

const PROGRAM: &str = "librdkafka/rdkafka_performance";

/// Returns whether the program is built, and prints a line if not.
pub fn is_there() -> bool {
    is_built(PROGRAM, "librdkafka's rdkafka_performance")
}

/// Sends records without keys to all partitions in turn, in batches of up to `batch_bytes`.
pub fn produce(node: &Node, topic: &str, records: u64, batch_bytes: usize) -> Result<()> {
    run(
        node,
        &[
            "-P",
            "-t",
            topic,
            "-s",
            &RECORD_BYTES.to_string(),
            "-a",
            "-1",
        ],
        records,
        &[
            &format!("batch.size={batch_bytes}"),
            "batch.num.messages=1000000",
            "queue.buffering.max.messages=1000000",
            "linger.ms=5",
        ],
    )
}

/// Reads the first records of a partition.
pub fn consume(node: &Node, topic: &str, records: u64) -> Result<()> {
    run(
        node,
        &["-C", "-t", topic, "-p", "0", "-o", "beginning"],
        records,
        &["queued.min.messages=1000000"],
    )
}

fn run(node: &Node, words: &[&str], records: u64, settings: &[&str]) -> Result<()> {
    let mut command = millstream_testing::command(project::peer(PROGRAM));
    command.args(["-q", "-b", &node.address().to_string()]);
    command.args(words).args(["-c", &records.to_string()]);
    for setting in settings {
        command.args(["-X", setting]);
    }
    let done = command.stdin(Stdio::null()).output()?;
    let text = [done.stdout, done.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    // It fails, too, if an event of another kind waits for it at the end: it takes that for a record.
    let is_delivered =
        text.contains(&format!("{records} delivered (")) && text.contains(" 0 failed)");
    ensure!(
        done.status.success() || is_delivered,
        "rdkafka_performance failed at {:?}: {}\n{text}",
        node.contender(),
        done.status
    );
    Ok(())
}
