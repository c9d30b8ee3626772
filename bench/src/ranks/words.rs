//! A word count over a file on any number of ranks: the same counts, word by word.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::launch::{Launcher, Setting};
use crate::measure::{Bench, ROUNDS, rounds_of};
use crate::report::{Better, Case};
use crate::text::Text;

pub const WORDS: &str = "words";

/// More than there are different words.
const ALL: &str = "1000000";

const SETTINGS: [Setting; 5] = [
    Setting::threads(1, 2),
    Setting::threads(2, 1),
    Setting::threads(4, 1),
    Setting::mpi(2, 1),
    Setting::mpi(4, 1),
];

/// The line that the program prints.
#[derive(Debug, Deserialize)]
struct Printed {
    top: Vec<Counted>,
    words: u64,
    /// The whole time, with the start of MPI.
    seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Counted {
    word: String,
    count: u64,
}

/// Runs each setting in turn; all must count the same.
pub fn words(bench: &Bench) -> Result<Vec<Case>> {
    let Some(launcher) = Launcher::find(WORDS) else {
        return Ok(Vec::new());
    };
    let bytes = bench.size(512 << 20, 1 << 20);
    let text = Text::of_words(bench.folder("text", bytes)?, bytes)?;
    bench.settle_disk();
    let path = text.path.to_str().context("the text's path is no UTF-8")?;
    let settings = launcher.startable(SETTINGS);
    let mut counted: Option<Vec<Counted>> = None;
    let rates = rounds_of(bench.size(ROUNDS, 1), settings.len(), |place| {
        let setting = settings[place];
        let mut printed: Printed =
            launcher.run(setting, &["words", "--top", ALL, "--file", path])?;
        let expected = text.expected.words;
        ensure!(
            printed.words == expected,
            "{}: {} words of {expected}",
            setting.name(),
            printed.words
        );
        // Words that occur as often are in no particular order.
        printed.top.sort_unstable();
        let first = counted.get_or_insert_with(|| printed.top.clone());
        ensure!(
            *first == printed.top,
            "{}: other counts than before",
            setting.name()
        );
        Ok(text.bytes as f64 / 1e6 / printed.seconds)
    })?;
    let different = counted.unwrap_or_default().len() as f64;
    let cases = settings.iter().zip(&rates).map(|(setting, ours)| {
        let name = format!("{WORDS}/{}", setting.name());
        let case = Case::new(name, "MB/s", Better::Higher, ours.clone());
        match *setting == settings[0] {
            true => case.detail("different_words", different),
            false => case.by_hand(rates[0].clone()),
        }
    });
    Ok(cases.collect())
}
