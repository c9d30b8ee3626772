//! Windows against a dumb model, and at the edges of time.

mod edges;
mod model;
mod plant;
mod random;
