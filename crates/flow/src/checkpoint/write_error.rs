//! Errors that prevent a checkpoint from being written, grouped by whether another attempt can succeed.

use crate::error::BoxError;

/// A change of a state element cannot be encoded: the same shard never gets written. The next one may have another value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unencodable(pub String);

/// An error of a store of checkpoints, or of a changelog, that ends the flow: no later attempt can succeed, as when another
/// run has taken the place of this one. After other errors the flow continues and tries again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FinalError(pub String);

/// Puts words before an error, and leaves its kind.
pub fn named(name: &str, error: &BoxError) -> BoxError {
    let text = format!("{name}: {error}");
    if error.is::<Unencodable>() {
        return Unencodable(text).into();
    }
    match error.is::<FinalError>() {
        true => FinalError(text).into(),
        false => text.into(),
    }
}
