//! The program from end to end.

mod administration;
mod advice;
mod bad_input;
mod crash;
mod damage;
mod dead_letters;
mod flow;
mod http;
mod kv;
mod kv_watch;
mod listeners;
mod log_lines;
mod network;
mod output;
mod quickstart;
mod ranks;
mod resume;
mod security;
mod signals;
mod start;
mod support;
mod tls;
mod tokens;
mod transactions;
mod transfer;
mod verbs;
