//! The client against a server.

mod consuming;
mod cuts;
mod groups;
mod plain;
mod producing;
mod secure;
mod support;
mod transactions;
