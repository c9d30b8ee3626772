//! Errors that prevent a checkpoint from being written, grouped by whether another attempt can succeed.

use std::time::Duration;

use crate::error::BoxError;

/// A change of a state element cannot be encoded: the same shard never gets written. The next one may have another value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unencodable(pub String);

/// An error of a store of checkpoints, or of a changelog, that ends the flow: no later attempt can succeed, as when another
/// run has taken the place of this one. After other errors the flow continues and tries again.
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct FinalError(pub String);

millstream_base::debug_as_display!(FinalError);

/// An error of a store of checkpoints, or of a changelog, that may pass, as while a server is away. A flow that goes on tries
/// again, as after most errors. A flow that has reached its end tries again for `retry_for` after this error; after other
/// errors it ends at once.
///
/// ```
/// use std::time::Duration;
///
/// use millstream_flow::{BoxError, PassingError};
///
/// let error: BoxError = PassingError {
///     error: "no server answers".to_owned(),
///     retry_for: Duration::from_secs(30),
/// }
/// .into();
/// assert_eq!(error.to_string(), "no server answers");
/// ```
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct PassingError {
    /// The reason.
    pub error: String,
    /// The time from the first failed attempt, or from the end of the flow if that comes later, to the last attempt.
    pub retry_for: Duration,
}

millstream_base::debug_as_display!(PassingError);

/// Puts words before an error, and leaves its kind.
pub fn named(name: &str, error: &BoxError) -> BoxError {
    let text = format!("{name}: {error}");
    if error.is::<Unencodable>() {
        return Unencodable(text).into();
    }
    if error.is::<FinalError>() {
        return FinalError(text).into();
    }
    match error.downcast_ref() {
        Some(&PassingError { retry_for, .. }) => {
            let error = text;
            PassingError { error, retry_for }.into()
        }
        None => text.into(),
    }
}
