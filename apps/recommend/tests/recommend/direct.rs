//! The same results, computed directly from all ratings.

use std::collections::BTreeMap;

use millstream_recommend::{RECOMMENDED_MAX, Rating, Recommended};

/// The last ratings of all users.
#[derive(Debug, Default)]
pub struct Direct {
    users: BTreeMap<String, BTreeMap<u64, f64>>,
}

/// The users that have rated both items of a pair, in both orders.
pub type Counts = BTreeMap<(u64, u64), f64>;

impl Direct {
    pub fn of<'a>(ratings: impl IntoIterator<Item = &'a Rating>) -> Direct {
        let mut direct = Direct::default();
        for rating in ratings {
            let row = direct.users.entry(rating.user.clone()).or_default();
            match rating.rating == 0.0 {
                true => drop(row.remove(&rating.item)),
                false => drop(row.insert(rating.item, rating.rating)),
            }
        }
        direct.users.retain(|_, row| !row.is_empty());
        direct
    }

    pub fn users(&self) -> impl Iterator<Item = &String> {
        self.users.keys()
    }

    /// Returns the ratings by user and item.
    pub fn user_item(&self) -> BTreeMap<(String, u64), f64> {
        let rows = self.users.iter();
        rows.flat_map(|(user, row)| {
            row.iter()
                .map(move |(item, rating)| ((user.clone(), *item), *rating))
        })
        .collect()
    }

    pub fn co_occurrence(&self) -> Counts {
        let mut counts = Counts::new();
        for row in self.users.values() {
            for one in row.keys() {
                for other in row.keys().filter(|other| *other != one) {
                    *counts.entry((*one, *other)).or_default() += 1.0;
                }
            }
        }
        counts
    }

    pub fn recommendations(&self, user: &str, counts: &Counts) -> Vec<Recommended> {
        let row = &self.users[user];
        let mut scores: BTreeMap<u64, f64> = BTreeMap::new();
        for (rated, rating) in row {
            for ((_, item), count) in counts.range((*rated, 0)..=(*rated, u64::MAX)) {
                *scores.entry(*item).or_default() += rating * count;
            }
        }
        scores.retain(|item, _| !row.contains_key(item));
        let scores = scores.into_iter();
        let mut scores: Vec<_> = scores
            .map(|(item, score)| Recommended { item, score })
            .collect();
        // Items with the same score stay in their order.
        scores.sort_by(|one, other| other.score.total_cmp(&one.score));
        scores.truncate(RECOMMENDED_MAX);
        scores
    }
}
