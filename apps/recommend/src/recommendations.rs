//! Recommendations, computed when a reader asks for them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use millstream::flow::{BoxError, Matrices, PartialMatrix, StateReader, StateSize};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most items that are recommended to a user.
pub const RECOMMENDED_MAX: usize = 10;

/// The rated items for which a reader holds the lock of a replica at a time. The instance of the replica waits meanwhile.
const ROWS_PER_LOCK: usize = 16;

/// An item that a user has not rated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Recommended {
    /// The number of the item.
    pub item: u64,
    /// The sum over the items that the user has rated: the rating, times the number of users that have rated both items.
    pub score: f64,
}

/// The replicas of `co_occurrence` of all ranks of a flow. They are in one process, since an answer needs all of them. A clone is
/// another handle of the same replicas.
#[derive(Clone)]
pub struct Replicas {
    matrices: Arc<Mutex<Vec<PartialMatrix<u64, u64>>>>,
    ranks: u32,
}

impl Default for Replicas {
    /// Returns those of a flow on one rank.
    fn default() -> Self {
        Replicas {
            matrices: Arc::default(),
            ranks: 1,
        }
    }
}

impl Replicas {
    /// Returns a handle of the same replicas for a flow on this number of ranks.
    #[must_use]
    pub fn of_ranks(&self, ranks: u32) -> Replicas {
        Replicas {
            matrices: Arc::clone(&self.matrices),
            ranks,
        }
    }

    /// Adds the replicas of a rank of this process.
    pub(crate) fn add(&self, matrix: &PartialMatrix<u64, u64>) {
        self.matrices.lock().push(matrix.clone());
    }

    /// Multiplies a row of ratings by the sum of all replicas.
    fn multiply(&self, row: &[(u64, f64)]) -> HashMap<u64, f64> {
        let matrices = self.matrices.lock().clone();
        let mut product: HashMap<u64, f64> = HashMap::new();
        for matrix in &matrices {
            for rated in row.chunks(ROWS_PER_LOCK) {
                let ratings = rated.iter().map(|(item, rating)| (item, *rating));
                for (item, score) in matrix.multiply(ratings) {
                    *product.entry(item).or_default() += score;
                }
            }
        }
        product
    }

    /// Returns an error if a rank has no replicas in this process.
    fn check(&self) -> Result<(), BoxError> {
        let (here, ranks) = (self.matrices.lock().len(), self.ranks as usize);
        match here >= ranks {
            true => Ok(()),
            false => Err(format!(
                "recommendations need the counts of all ranks, and {here} of {ranks} have begun in this process: run them in \
                 one process, with `--ranks {ranks}`"
            )
            .into()),
        }
    }
}

/// The state element `recommendations`. Checkpoints hold the elements that it reads, and nothing of it. A clone is another
/// handle of the same state.
#[derive(Clone)]
pub struct Recommendations {
    user_item: Matrices<String, u64>,
    replicas: Replicas,
}

impl Recommendations {
    pub fn new(user_item: Matrices<String, u64>, replicas: Replicas) -> Self {
        Recommendations {
            user_item,
            replicas,
        }
    }

    /// Returns an error if a rank has no replicas in this process.
    pub fn check(&self) -> Result<(), BoxError> {
        self.replicas.check()
    }

    /// Returns the items with the highest scores for a user, the highest first; `None` if the user has rated nothing, if
    /// another rank owns the user, or before all ranks have begun.
    pub fn of(&self, user: &str) -> Option<Vec<Recommended>> {
        self.check().ok()?;
        let row = self.user_item.row(&user.to_owned());
        if row.is_empty() {
            return None;
        }
        let rated: HashSet<u64> = row.iter().map(|(item, _)| *item).collect();
        let product = self.replicas.multiply(&row).into_iter();
        let scores = product.map(|(item, score)| Recommended { item, score });
        // Replicas may have counts of 1 and -1 for a pair that was taken back.
        let found = scores.filter(|it| it.score > 0.0 && !rated.contains(&it.item));
        let mut found: Vec<Recommended> = found.collect();
        found.sort_unstable_by(|one, other| {
            let by_score = other.score.total_cmp(&one.score);
            by_score.then(one.item.cmp(&other.item))
        });
        found.truncate(RECOMMENDED_MAX);
        Some(found)
    }
}

impl StateReader for Recommendations {
    fn get(&self, user: &str) -> Option<Value> {
        serde_json::to_value(self.of(user)?).ok()
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        self.user_item.rows(limit)
    }

    fn size(&self) -> StateSize {
        StateSize::unknown("computed")
    }

    fn is_whole(&self) -> Result<bool, BoxError> {
        self.check().map(|()| true)
    }

    fn types(&self) -> String {
        "recommendations".to_owned()
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        Ok(Vec::new())
    }

    fn restore(&self, _saved: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
}
