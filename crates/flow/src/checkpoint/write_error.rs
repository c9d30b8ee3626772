//! Errors by which a checkpoint cannot be written, where it matters what can heal them.

use crate::error::BoxError;

/// A change of a state element cannot be encoded: the same shard never gets written. The next one may have another value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unencodable(pub String);

/// Puts words before an error, and leaves its kind.
pub fn named(name: &str, error: &BoxError) -> BoxError {
    let text = format!("{name}: {error}");
    match error.is::<Unencodable>() {
        true => Unencodable(text).into(),
        false => text.into(),
    }
}
