//! The client against a server.

mod consuming;
mod cuts;
mod groups;
mod producing;
mod support;
