//! Flows from end to end.

mod checkpoints;
mod collected;
mod engine;
mod graphs;
mod lines;
mod parts;
mod running;
mod support;
mod windows;
