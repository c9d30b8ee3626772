//! Reads records by key: a lane's chunks into its [`key index`](crate::keys), key files, and the records that these point to.

pub mod build;
pub mod cover;
pub mod files;
pub mod find;
pub mod history;
pub mod hot;
pub mod scan;
pub mod tail;
pub mod update;
pub mod version;
pub mod versions;
