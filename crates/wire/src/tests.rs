//! Tests of messages in all versions, and of malformed ones.

mod bad_input;
mod documented;
mod fetching;
mod golden;
mod metadata;
mod newer_versions;
mod round_trips;
mod table;
