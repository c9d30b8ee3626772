//! The number of each event, and its outcomes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::report::{Better, Case};

/// The name of the only case.
pub const TRIALS: &str = "trials";

/// Counts the damage that `millstream repair` truncated.
pub const REPAIR: &str = "repair";

/// Everything that was done.
#[derive(Default)]
pub struct Tally {
    kinds: BTreeMap<&'static str, Counts>,
    pub trials: u32,
    /// Records that were read and are right, each time.
    pub records: u64,
}

/// The outcomes of one kind of crash or damage.
#[derive(Default)]
pub struct Counts {
    pub times: u32,
    /// Nothing was missing.
    pub whole: u32,
    /// Readers got an error, or `repair` listed the damage.
    pub reported: u32,
    /// The start was refused, and was not when the file was restored.
    pub refused: u32,
    /// The end of a partition was gone without an error, after a crash where the documents allow it.
    pub ends_lost: u32,
    pub findings: u32,
}

impl Tally {
    /// The counts of a kind.
    pub fn of(&mut self, kind: &'static str) -> &mut Counts {
        self.kinds.entry(kind).or_default()
    }

    /// A line for each kind.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let kinds = self.kinds.iter();
        kinds.map(|(kind, counts)| format!("{kind:<13} {counts}"))
    }

    pub fn cases(&self, seed: u32, lasted: Duration) -> Vec<Case> {
        let all = Case::new(TRIALS, "trials", Better::Higher, vec![self.trials.into()])
            .detail("seed", seed.into())
            .detail("run_s", lasted.as_secs_f64())
            .detail("records_checked", self.records as f64);
        let done = self.kinds.iter().filter(|(_, counts)| counts.times > 0);
        let kinds = done.map(|(kind, counts)| {
            let case = format!("{TRIALS}/{kind}");
            let mut case = Case::new(case, "times", Better::Higher, vec![counts.times.into()]);
            for (what, count) in counts.outcomes() {
                case = case.detail(&what.replace(' ', "_"), count.into());
            }
            case
        });
        std::iter::once(all).chain(kinds).collect()
    }
}

impl Counts {
    fn outcomes(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let outcomes = [
            ("whole", self.whole),
            ("reported", self.reported),
            ("start refused", self.refused),
            ("end lost after a crash", self.ends_lost),
            ("findings", self.findings),
        ];
        outcomes.into_iter().filter(|(_, count)| *count > 0)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} times", self.times)?;
        for (place, (what, count)) in self.outcomes().enumerate() {
            let before = if place == 0 { ": " } else { ", " };
            write!(f, "{before}{count} {what}")?;
        }
        Ok(())
    }
}
