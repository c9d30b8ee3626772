//! Messages in all versions, bad ones, and what happens to memory.

mod bad_input;
mod documented;
mod fetching;
mod golden;
mod refusals;
mod round_trips;
mod table;
