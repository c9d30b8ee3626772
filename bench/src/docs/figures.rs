//! All figures of a benchmark in a file: web pages show it as a table, programs read it.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::report::{Case, Report, Stamp, number, verdict};

/// The [figure](Row::figure) of the case itself.
pub const OURS: &str = "ours";

/// A line of the file. Fields that do not apply are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    /// [`OURS`], the name of another program or way, or the name of a further figure, which ends with its unit.
    pub figure: String,
    /// The unit of the value and of the limit; empty for a further figure.
    pub unit: String,
    /// The median of the rounds.
    pub value: String,
    /// The distance from the lowest to the highest round, in percent of the value.
    pub spread_percent: String,
    pub rounds: String,
    pub limit: String,
    /// Ours beside the limit, or beside this other program; above 1 ours is better.
    pub ratio: String,
    /// The least ratio that reaches the target.
    pub target: String,
    pub verdict: String,
    /// The commit of the sources, the day, in UTC, and the machine.
    pub commit: String,
    pub date: String,
    pub machine: String,
}

impl Row {
    /// Returns the run that measured it.
    pub fn stamp(&self) -> Stamp {
        Stamp {
            commit: Some(self.commit.clone()).filter(|commit| !commit.is_empty()),
            date: self.date.clone(),
            machine: self.machine.clone(),
        }
    }
}

/// Returns the rows of each case. The first one is [`OURS`].
pub fn by_case(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|one, other| one.case == other.case)
}

/// Returns the figures of all cases: for each one the result, those of other programs, and further figures.
pub fn rows(report: &Report) -> Vec<Row> {
    let cases = report.cases.iter();
    cases
        .flat_map(|case| rows_of(case, &report.stamp))
        .collect()
}

fn rows_of(case: &Case, stamp: &Stamp) -> Vec<Row> {
    let stamp = case.stamp.as_ref().unwrap_or(stamp);
    let row = |figure: &str, value: f64| Row {
        case: case.case.clone(),
        figure: figure.to_owned(),
        value: number(value),
        commit: stamp.commit.clone().unwrap_or_default(),
        date: stamp.date.clone(),
        machine: stamp.machine.clone(),
        ..Row::default()
    };
    let optional = |value: Option<f64>| value.map(number).unwrap_or_default();
    let rounds = case.rounds.ours.len().max(1);
    let mut rows = vec![Row {
        unit: case.unit.clone(),
        spread_percent: match rounds {
            1 => String::new(),
            _ => format!("{:.0}", case.spread * 100.0),
        },
        rounds: rounds.to_string(),
        limit: optional(case.limit),
        ratio: optional(case.ratio_to_limit),
        target: optional(case.target),
        verdict: verdict(case).to_owned(),
        ..row(OURS, case.ours)
    }];
    rows.extend(case.peers.iter().map(|(name, value)| Row {
        unit: case.unit.clone(),
        ratio: optional(case.ratio_to_peers.get(name).copied()),
        ..row(name, *value)
    }));
    let details = case.details.iter();
    rows.extend(details.map(|(name, value)| row(&name.replace('_', " "), *value)));
    rows
}

pub fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let mut file =
        csv::Writer::from_path(path).with_context(|| format!("cannot write {path:?}"))?;
    for row in rows {
        file.serialize(row)?;
    }
    file.flush()
        .with_context(|| format!("cannot write {path:?}"))
}

/// # Errors
/// If the file is missing, or is not one of figures.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let mut file = csv::Reader::from_path(path).with_context(|| format!("cannot read {path:?}"))?;
    let rows: Result<Vec<Row>, csv::Error> = file.deserialize().collect();
    rows.with_context(|| format!("{path:?} has no figures"))
}
