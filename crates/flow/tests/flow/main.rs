//! Flows from end to end.

mod graphs;
mod lines;
mod running;
mod support;
mod windows;
