//! The network door: listeners, requests, consumer groups, security.

pub mod groups;
