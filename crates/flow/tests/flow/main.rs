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
mod lanes;
mod lines;
mod much_at_once;
mod panics;
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
