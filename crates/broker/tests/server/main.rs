//! The broker over TCP: a server on a free port of this machine, and clients that send valid
//! requests, and invalid ones.

mod administration;
mod answers;
mod authorized_operations;
mod bounds;
mod configs;
mod damage;
mod fetch;
mod frames;
mod groups;
mod keyed;
mod listeners;
mod logins;
mod offsets;
mod order;
mod permissions;
mod poison;
mod produce;
mod producers;
mod push;
mod push_shared;
mod quotas;
mod sessions;
mod shares;
mod shutdown;
mod streams;
mod support;
mod telemetry;
mod tls;
mod token_urls;
mod tokens;
mod topic_ids;
mod topics;
mod transactions;
