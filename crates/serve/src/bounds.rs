//! The bounds of answers.

/// The entries of a state element in one answer to a request without `limit`.
pub const ENTRIES_DEFAULT: usize = 100;

/// The largest `limit`. The entries of an answer also have a bound in bytes.
pub const ENTRIES_MAX: usize = 10_000;

/// The keys of a state element that one request may name.
pub const KEYS_MAX: usize = 1_000;
