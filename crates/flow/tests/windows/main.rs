//! Windows against a dumb model, and at the edges of time.

mod aggregates;
mod alone;
mod edges;
mod many_keys;
mod model;
mod plant;
mod random;
