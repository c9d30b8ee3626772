//! Consumer groups, from request to answer.

mod classic;
mod consumer;
mod errors;
mod offsets;
mod records;
mod static_members;
mod support;
