//! Flows from end to end.

mod alignment;
mod boxes;
mod checkpoints;
mod collected;
mod ends;
mod engine;
mod forks;
mod graphs;
mod idle;
mod joins;
mod keys;
mod late;
mod lines;
mod much_at_once;
mod pace;
mod panics;
mod partitions;
mod parts;
mod pool;
mod ranks;
mod records;
mod refused;
mod running;
mod shapes;
mod sizes;
mod skew;
mod sleeps;
#[path = "../support/mod.rs"]
mod support;
mod top;
mod tuples;
mod turns;
mod two_phase;
mod window_kinds;
mod windows;
