//! Records by key: reads a lane's chunks into its [`key index`](crate::keys), and the records that the index points to.

pub mod update;
pub mod versions;
