//! Random changes of rows, and the answers that a plain program gives about the rows.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use millstream_base::murmur2;
use millstream_flow::RowChange;
use serde::{Deserialize, Serialize};

use super::TOP;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Row {
    pub group: u64,
    pub id: u64,
    pub score: i64,
}

/// Number, sum, least and largest of scores.
pub type Totals = (u64, i64, Option<i64>, Option<i64>);

pub const GROUPS: u64 = 6;

/// Groups and scores of retractions that match no row.
const NOWHERE: i64 = 1_000;

/// Returns the order of rows with equal scores in a top.
pub fn order_of_equals(row: &impl Serialize) -> u32 {
    murmur2(&postcard::to_stdvec(row).unwrap())
}

/// Returns changes of rows that only this source has. Rows come several times, scores are often equal, and updates may move a
/// row to another group.
pub fn random_changes(seed: u64, source: u64, count: usize) -> Vec<RowChange<Row>> {
    let mut random = fastrand::Rng::with_seed(seed << 32 | source);
    let mut present: Vec<Row> = Vec::new();
    let mut changes = Vec::new();
    while changes.len() < count {
        let row = Row {
            group: random.u64(..GROUPS),
            id: source << 32 | random.u64(..4),
            score: random.i64(-5..5),
        };
        let dice = random.u32(..100);
        let chosen = (!present.is_empty()).then(|| random.usize(..present.len()));
        match chosen {
            Some(place) if dice < 30 => {
                let before = present[place];
                let group = if dice < 5 { row.group } else { before.group };
                let after = Row { group, ..row };
                present[place] = after;
                changes.push(RowChange::UpdateBefore(before));
                changes.push(RowChange::UpdateAfter(after));
            }
            Some(place) if dice < 58 => {
                changes.push(RowChange::Delete(present.swap_remove(place)));
            }
            _ if dice < 62 => {
                let group = NOWHERE as u64 + row.group;
                let score = NOWHERE + row.score;
                let row = Row {
                    group,
                    score,
                    ..row
                };
                changes.push(match dice {
                    60.. => RowChange::Delete(row),
                    _ => RowChange::UpdateBefore(row),
                });
            }
            _ => {
                present.push(row);
                changes.push(RowChange::Insert(row));
            }
        }
    }
    changes
}

/// The answers of all operators. Sets have the number of times of each row.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    pub totals: BTreeMap<u64, Totals>,
    pub scores: BTreeMap<i64, u64>,
    pub top: BTreeMap<Row, u64>,
}

impl Answer {
    /// Returns the answer over the rows that these changes leave, and the number of retractions that match no row.
    pub fn over<'a>(sources: impl IntoIterator<Item = &'a Vec<RowChange<Row>>>) -> (Answer, u64) {
        Answer::with_top(TOP, sources)
    }

    /// As [`over`](Self::over), with this number of rows in the top of each group.
    pub fn with_top<'a>(
        top: u64,
        sources: impl IntoIterator<Item = &'a Vec<RowChange<Row>>>,
    ) -> (Answer, u64) {
        let mut weights: BTreeMap<Row, i64> = BTreeMap::new();
        let mut retractions = 0;
        for change in sources.into_iter().flatten() {
            match change.row().score >= NOWHERE - 5 {
                true => retractions += 1,
                false => *weights.entry(*change.row()).or_default() += change.weight(),
            }
        }
        let mut groups: BTreeMap<u64, Vec<Row>> = BTreeMap::new();
        let mut answer = Answer::default();
        for (row, weight) in weights {
            for _ in 0..weight {
                groups.entry(row.group).or_default().push(row);
                answer.scores.insert(row.score, 1);
            }
        }
        for (group, mut rows) in groups {
            let scores = || rows.iter().map(|row| row.score);
            let totals = (
                rows.len() as u64,
                scores().sum(),
                scores().min(),
                scores().max(),
            );
            answer.totals.insert(group, totals);
            rows.sort_by_key(|row| Reverse((row.score, order_of_equals(row))));
            for row in rows.into_iter().take(top as usize) {
                *answer.top.entry(row).or_default() += 1;
            }
        }
        (answer, retractions)
    }
}
