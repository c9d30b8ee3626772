//! State that is kept by key, and changes of rows, from end to end.

mod changelogs;
mod changes;
mod clocked;
mod committed;
mod counted;
mod elements;
mod fit;
mod lookups;
mod process;
mod ranks;
mod stream_joins;
#[path = "../support/mod.rs"]
mod support;
mod values;
