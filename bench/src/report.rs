//! Results of benchmarks in one format: JSON for programs, a table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::measure::median;

/// One run of a benchmark.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    pub name: String,
    #[serde(flatten)]
    pub stamp: Stamp,
    pub cases: Vec<Case>,
}

/// The program, the machine and the day of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The commit of the sources, with `-dirty` behind it if they were changed since; `None` where there is no
    /// repository, as for an installed program.
    #[serde(default)]
    pub commit: Option<String>,
    /// The day, in UTC: `2026-01-31`.
    pub date: String,
    pub machine: String,
}

impl Stamp {
    fn now() -> Stamp {
        Stamp {
            commit: machine::commit(),
            date: machine::today(),
            machine: machine::describe(),
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        let commit = self.commit.as_deref().unwrap_or("unknown");
        format!("Commit {commit}, {}; {}", self.date, self.machine)
    }
}

/// Which way a number is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// One number beside its limit. A ratio above 1 always means that ours is better.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Case {
    pub case: String,
    pub unit: String,
    pub better: Better,
    /// The median of the rounds.
    pub ours: f64,
    /// The distance from the lowest to the highest round, as a part of the median.
    pub spread: f64,
    /// The same work done by hand with nothing around it, or a bound that ours must keep.
    pub limit: Option<f64>,
    /// The median of the rounds' ratios: both sides of one ratio met the same machine.
    pub ratio_to_limit: Option<f64>,
    /// The least `ratio_to_limit` that reaches the target.
    pub target: Option<f64>,
    pub peers: BTreeMap<String, f64>,
    pub ratio_to_peers: BTreeMap<String, f64>,
    /// Other figures, each with its unit last in its name.
    pub details: BTreeMap<String, f64>,
    /// Every round, in order.
    pub rounds: Rounds,
    /// The run that measured it, unless that is the report's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<Stamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rounds {
    pub ours: Vec<f64>,
    /// Empty where the limit is a bound.
    pub limit: Vec<f64>,
}

impl Case {
    /// A case with one number for each round.
    pub fn new(case: impl Into<String>, unit: &str, better: Better, ours: Vec<f64>) -> Case {
        let middle = median(&ours);
        let lowest = ours.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = ours.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Case {
            case: case.into(),
            unit: unit.to_owned(),
            better,
            ours: middle,
            spread: (highest - lowest) / middle,
            limit: None,
            ratio_to_limit: None,
            target: None,
            peers: BTreeMap::new(),
            ratio_to_peers: BTreeMap::new(),
            details: BTreeMap::new(),
            rounds: Rounds {
                ours,
                limit: Vec::new(),
            },
            stamp: None,
        }
    }

    /// Adds the limit: the results of the same work done by hand in the same rounds.
    pub fn by_hand(mut self, limit: Vec<f64>) -> Case {
        let pairs = self.rounds.ours.iter().zip(&limit);
        let ratios: Vec<f64> = pairs
            .map(|(ours, limit)| self.ratio(*ours, *limit))
            .collect();
        self.limit = Some(median(&limit));
        self.ratio_to_limit = Some(median(&ratios));
        self.rounds.limit = limit;
        self
    }

    /// Adds a bound that must hold.
    pub fn bound(mut self, bound: f64) -> Case {
        self.limit = Some(bound);
        self.ratio_to_limit = Some(self.ratio(self.ours, bound));
        self.target = Some(1.0);
        self
    }

    /// Adds a target: the least ratio to the limit.
    pub fn target(mut self, ratio: f64) -> Case {
        self.target = Some(ratio);
        self
    }

    /// Adds another contender's number.
    pub fn peer(mut self, name: &str, value: f64) -> Case {
        let ratio = self.ratio(self.ours, value);
        self.peers.insert(name.to_owned(), value);
        self.ratio_to_peers.insert(name.to_owned(), ratio);
        self
    }

    /// Adds another figure.
    pub fn detail(mut self, name: &str, value: f64) -> Case {
        self.details.insert(name.to_owned(), value);
        self
    }

    /// Returns the distance from the lowest to the highest round, and the number of rounds.
    pub fn spread_of_rounds(&self) -> String {
        match self.rounds.ours.len() {
            0 | 1 => "one run".to_owned(),
            rounds => format!("{:.0} % of {rounds}", self.spread * 100.0),
        }
    }

    /// Returns whether the ratio reaches its target; `None` without a target.
    pub fn is_reached(&self) -> Option<bool> {
        Some(self.ratio_to_limit? >= self.target?)
    }

    fn ratio(&self, ours: f64, other: f64) -> f64 {
        match self.better {
            Better::Higher => ours / other,
            Better::Lower => other / ours,
        }
    }
}

impl Report {
    /// The report of a run that ends now.
    pub fn now(name: &str, cases: Vec<Case>) -> Report {
        Report {
            name: name.to_owned(),
            stamp: Stamp::now(),
            cases,
        }
    }

    /// This report with the cases of a newer one in the place of its own. Those that stay keep the stamp of their run
    /// where it is another one.
    pub fn updated(mut self, newer: Report) -> Report {
        for case in &mut self.cases {
            let stamp = case.stamp.take().unwrap_or_else(|| self.stamp.clone());
            case.stamp = (stamp != newer.stamp).then_some(stamp);
        }
        for case in newer.cases {
            match self.cases.iter_mut().find(|old| old.case == case.case) {
                Some(old) => *old = case,
                None => self.cases.push(case),
            }
        }
        self.stamp = newer.stamp;
        self
    }

    pub fn read(path: &Path) -> Result<Report> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read {path:?}: run the benchmark first"))?;
        serde_json::from_str(&text).with_context(|| format!("{path:?} is no report"))
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {path:?}"))
    }

    /// For the terminal.
    pub fn table(&self) -> String {
        let head = [
            "case", "unit", "ours", "spread", "limit", "ratio", "target", "",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        let optional = |value: Option<f64>| value.map(number).unwrap_or_default();
        for case in &self.cases {
            rows.push([
                case.case.clone(),
                case.unit.clone(),
                number(case.ours),
                case.spread_of_rounds(),
                optional(case.limit),
                optional(case.ratio_to_limit),
                optional(case.target),
                verdict(case).to_owned(),
            ]);
        }
        let mut text = format!("{}\n\n", self.name);
        for row in &rows {
            for (column, cell) in row.iter().enumerate() {
                let width = rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
                let is_name = column < 2 || column == head.len() - 1;
                let _ = match is_name {
                    true => write!(text, "{cell:width$}  "),
                    false => write!(text, "{cell:>width$}  "),
                };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        let _ = writeln!(text, "{}\n", self.stamp.line());
        for case in &self.cases {
            let others = case.ratio_to_peers.iter();
            let others = others.map(|(name, ratio)| (format!("ratio to {name}"), ratio));
            let details = case
                .details
                .iter()
                .map(|(name, value)| (name.clone(), value));
            for (name, value) in others.chain(details) {
                let _ = writeln!(text, "{}: {name} {}", case.case, number(*value));
            }
        }
        text
    }
}

/// Returns whether a case reaches its target, in words.
pub fn verdict(case: &Case) -> &'static str {
    match case.is_reached() {
        Some(true) => "reached",
        Some(false) => "missed",
        None => "",
    }
}

/// Three digits, and no more than people read.
pub fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        middle if middle >= 1.0 || middle == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_means_better_for_both_directions() {
        let faster = Case::new("a", "MB/s", Better::Higher, vec![10.0, 40.0, 20.0]);
        let faster = faster.by_hand(vec![20.0, 20.0, 40.0]).target(0.8);
        assert_eq!((faster.ours, faster.limit), (20.0, Some(20.0)));
        assert_eq!(faster.ratio_to_limit, Some(0.5));
        assert_eq!(faster.is_reached(), Some(false));
        let smaller = Case::new("b", "MiB", Better::Lower, vec![256.0]).bound(512.0);
        assert_eq!(smaller.ratio_to_limit, Some(2.0));
        assert_eq!(smaller.is_reached(), Some(true));
    }

    #[test]
    fn a_single_case_takes_its_place_in_the_last_report() {
        let case = |name: &str, ours| Case::new(name, "s", Better::Lower, vec![ours]);
        let old = Report::now("log", vec![case("a", 1.0), case("b", 2.0)]);
        let new = Report::now("log", vec![case("b", 3.0), case("c", 4.0)]);
        let names = old.updated(new).cases;
        let names: Vec<(&str, f64)> = names.iter().map(|c| (&c.case[..], c.ours)).collect();
        assert_eq!(names, [("a", 1.0), ("b", 3.0), ("c", 4.0)]);
    }

    #[test]
    fn cases_of_an_older_commit_keep_its_name() {
        let report = |commit: &str, names: &[&str]| {
            let case = |name: &&str| Case::new(*name, "s", Better::Lower, vec![1.0]);
            let mut report = Report::now("log", names.iter().map(case).collect());
            report.stamp.commit = Some(commit.to_owned());
            report
        };
        let commits = |report: &Report| -> Vec<Option<String>> {
            let stamps = report.cases.iter().map(|case| case.stamp.clone());
            stamps.map(|stamp| stamp?.commit).collect()
        };
        let twice = report("one", &["a", "b"]).updated(report("two", &["b"]));
        assert_eq!(twice.stamp.commit.as_deref(), Some("two"));
        assert_eq!(commits(&twice), [Some("one".to_owned()), None]);
        // Read and written, and again of one commit once all cases are.
        let text = serde_json::to_string(&twice).unwrap();
        let twice: Report = serde_json::from_str(&text).unwrap();
        let again = twice.updated(report("two", &["a"]));
        assert_eq!(commits(&again), [None, None]);
    }

    #[test]
    fn a_single_run_has_no_spread() {
        let case = |rounds: &[f64]| Case::new("a", "s", Better::Lower, rounds.to_vec());
        assert_eq!(case(&[1.0]).spread_of_rounds(), "one run");
        assert_eq!(case(&[1.0, 1.1, 1.0]).spread_of_rounds(), "10 % of 3");
    }
}
