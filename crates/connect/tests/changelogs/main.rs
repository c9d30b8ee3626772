//! Changelogs of state elements: in the streams of a log, and in the streams of a server.

mod anew;
mod clocks;
mod contract;
mod elements;
mod flows;
mod killed_at_end;
mod killed_server;
mod lazy;
mod lifetimes;
mod refused;
mod starts;
mod streams;
mod support;
mod windows;
