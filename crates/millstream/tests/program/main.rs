//! The program from end to end.

mod bad_input;
mod crash;
mod quickstart;
mod support;
mod verbs;
