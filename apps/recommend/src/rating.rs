//! Ratings.

use serde::{Deserialize, Serialize};

/// The highest number of a rating.
pub const RATING_MAX: f64 = 1_000_000.0;

/// The longest name of a user. It is part of a key of the state, and keys have a bound.
pub const USER_BYTES_MAX: usize = 1_000;

/// A rating of an item by a user. A later one of the same item replaces it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Rating {
    /// The user's name: 1 to [`USER_BYTES_MAX`] bytes.
    pub user: String,
    /// The number of the item.
    pub item: u64,
    /// From 0 to [`RATING_MAX`]. 0 takes the rating back.
    pub rating: f64,
}

/// A rating as a record has it.
#[derive(Deserialize)]
struct Unchecked {
    user: String,
    item: u64,
    rating: f64,
}

/// The reason for which a record is no rating.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadRating {
    /// The name of the user is empty or too long.
    #[error("the user's name has {0} bytes: it needs 1 to {USER_BYTES_MAX}")]
    User(usize),
    /// The number is out of bounds.
    #[error("the rating is {0}: it must be a number from 0 to {RATING_MAX}")]
    Number(f64),
}

impl TryFrom<Unchecked> for Rating {
    type Error = BadRating;

    fn try_from(unchecked: Unchecked) -> Result<Rating, BadRating> {
        let Unchecked { user, item, rating } = unchecked;
        match user.len() {
            1..=USER_BYTES_MAX => {}
            bytes => return Err(BadRating::User(bytes)),
        }
        match (0.0..=RATING_MAX).contains(&rating) {
            true => Ok(Rating { user, item, rating }),
            false => Err(BadRating::Number(rating)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(user: &str, rating: &str) -> Result<Rating, String> {
        let text = format!(r#"{{"user":{user:?},"item":7,"rating":{rating}}}"#);
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_rating_is_a_number_within_bounds_by_a_user_with_a_name() {
        for (text, rating) in [("0", 0.0), ("4.5", 4.5), ("1e6", RATING_MAX)] {
            assert_eq!(parse("ann", text).map(|it| it.rating), Ok(rating));
        }
        for text in ["-0.5", "1000001", "1e300"] {
            let error = parse("ann", text).expect_err(text);
            assert!(error.starts_with("the rating is "), "{error}");
            assert!(error.contains("from 0 to 1000000"), "{error}");
        }
        assert!(parse("ann", "null").is_err());
        assert!(parse(&"a".repeat(USER_BYTES_MAX), "1").is_ok());
        for user in [String::new(), "a".repeat(USER_BYTES_MAX + 1)] {
            let error = parse(&user, "1").expect_err("its length is wrong");
            let expected = format!("the user's name has {} bytes", user.len());
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
