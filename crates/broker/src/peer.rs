//! The other side of a connection, and the bytes to and from it.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::listener::LogIn;

/// The other side of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether it came in over the socket for clients on this machine, which is open to the same
    /// user only.
    pub is_same_user: bool,
    /// The host and the port that the broker tells it to connect to.
    pub advertised: (String, u16),
    /// Whether it logs in.
    pub log_in: LogIn,
}

/// The bytes of a connection, in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}
