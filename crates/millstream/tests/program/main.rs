//! The program from end to end.

mod bad_input;
mod crash;
mod flow;
mod output;
mod quickstart;
mod security;
mod signals;
mod support;
mod verbs;
