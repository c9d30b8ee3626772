//! The server as its clients see it, byte for byte over TCP.

mod connections;
mod http2;
mod keys;
mod metrics;
mod pages;
mod positions;
mod queries;
mod reads;
mod rights;
mod serving;
mod state;
mod support;
