//! Windows against a dumb model, and at the edges of time.

mod aggregates;
mod alone;
mod edges;
mod model;
mod plant;
mod random;
