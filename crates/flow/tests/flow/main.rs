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
mod lines;
mod much_at_once;
mod panics;
mod partitions;
mod parts;
mod ranks;
mod running;
mod shapes;
mod skew;
mod support;
mod top;
mod turns;
mod two_phase;
mod window_kinds;
mod windows;
