//! The client against a server.

mod consuming;
mod cuts;
mod damage;
mod epochs;
mod gate;
mod groups;
mod growth;
mod holds;
mod keyed;
mod pauses;
mod plain;
mod producing;
mod push;
mod push_ends;
mod push_local;
mod push_paths;
mod secure;
mod support;
mod together;
mod transactional;
mod transactions;
mod watch;
