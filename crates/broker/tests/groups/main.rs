//! Consumer groups, from request to answer.

mod classic;
mod consumer;
mod consumer_groups;
mod errors;
mod member;
mod offsets;
mod random;
mod random_classic;
mod random_consumer;
mod records;
mod shares;
mod static_members;
mod streams;
mod support;
