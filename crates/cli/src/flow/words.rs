//! `millstream flow run words`: counts each word of files, on any number of ranks.

use std::io::Write;
use std::time::Instant;

use millstream_base::SystemDisk;
use millstream_flow::sources::{LineFiles, LineLimits};
use millstream_flow::{Counts, FlowSettings, Order};
use millstream_logparser::WordCount;
use serde_json::json;

use super::checkpoints::CheckpointWatch;
use super::flow_settings;
use super::logparser::check_file;
use super::ranks::{join, on_ranks};
use crate::args::WordsArgs;
use crate::console::{Align, Table, count_of, grouped, print, print_json};
use crate::http::serve_flow;
use crate::settings::Settings;
use crate::stop::Stop;

/// The result on the gathering rank.
struct Found {
    counts: Counts,
    input_bytes: u64,
    is_stopped: bool,
}

pub fn run(
    args: &WordsArgs,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    let started_at = Instant::now();
    let of_rank = flow_settings(&args.run, settings, Order::Free);
    let found = on_ranks(&args.ranks, &args.run.checkpoints, &of_rank, |of_rank| {
        count(args, settings, of_rank, is_json, stop)
    })?;
    let seconds = started_at.elapsed().as_secs_f64();
    let Some(found) = found else {
        // The process of the gathering rank prints the result.
        return Ok(());
    };
    let top = found.counts.top(args.top as usize);
    let words: u64 = found.counts.iter().map(|(_, count)| count).sum();
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    if is_json {
        let top: Vec<_> = top
            .iter()
            .map(|(word, count)| json!({ "word": text(word), "count": count }))
            .collect();
        return print_json(&json!({
            "top": top,
            "words": words,
            "different": found.counts.len(),
            "bytes": found.input_bytes,
            "seconds": seconds,
            "is_stopped": found.is_stopped,
        }));
    }
    let mut table = Table::new(&[("word", Align::Left), ("count", Align::Right)]);
    for (word, count) in top {
        table.row([text(word), grouped(count)]);
    }
    let different = grouped(found.counts.len() as u64);
    print(|out| {
        table.write(out)?;
        let stopped = match found.is_stopped {
            true => "stopped before the end: ",
            false => "",
        };
        writeln!(
            out,
            "{stopped}{}, {different} different ones; {seconds:.2} s",
            count_of(words, "word"),
        )
    })
}

fn count(
    args: &WordsArgs,
    settings: &Settings,
    of_rank: FlowSettings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<Found> {
    args.file.iter().try_for_each(|path| check_file(path))?;
    let files = LineFiles::open(&SystemDisk, args.file.clone(), LineLimits::default())?;
    let input_bytes = files.len_bytes();
    let watch = CheckpointWatch::new(&of_rank.ranks);
    let is_gathering = of_rank.ranks.rank() == args.ranks.gather_at;
    let count = WordCount::start(files, args.prefix.as_bytes(), of_rank)?;
    let server = serve_flow(settings, count.running(), is_gathering, is_json)?;
    let summary = join(count.running(), stop, watch)?;
    drop(server);
    Ok(Found {
        counts: count.gather(args.ranks.gather_at)?,
        input_bytes,
        is_stopped: summary.is_stopped,
    })
}
