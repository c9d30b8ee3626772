//! Transactions, from request to answer.

mod bounds;
mod endings;
mod errors;
mod lists;
mod newer_clients;
mod open;
mod producers;
mod random;
mod restarts;
mod simulation;
mod support;
mod two_phase;
