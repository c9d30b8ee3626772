//! The broker over TCP: a server on a free port of this machine, and clients that send what real ones
//! send, and what none should.

mod bounds;
mod fetch;
mod frames;
mod groups;
mod offsets;
mod order;
mod produce;
mod producers;
mod sessions;
mod shutdown;
mod support;
mod topics;
