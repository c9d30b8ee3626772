//! The trait for networks, and TCP.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// A network, on which servers listen and clients connect.
pub trait Network: Clone + Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// A listening socket.
    type Listener: Listener<Stream = Self::Stream>;

    /// Listens on `address`; port 0 picks a free one.
    fn listen(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::Listener>> + Send;

    /// Connects to `address`.
    fn connect(&self, address: SocketAddr)
    -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// A listening socket.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream;

    /// Waits for the next connection.
    fn accept(&mut self) -> impl Future<Output = io::Result<Accepted<Self::Stream>>> + Send;

    /// The address on which it listens.
    ///
    /// # Errors
    /// When the operating system does not return the address.
    fn local_address(&self) -> io::Result<SocketAddr>;
}

/// A connection that a listener accepted.
#[derive(Debug)]
pub struct Accepted<S> {
    /// The connection.
    pub stream: S,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
}

/// Returns whether only this machine reaches a server that listens on `address`.
///
/// ```
/// use millstream_base::is_loopback;
///
/// assert!(is_loopback("127.1.2.3".parse().unwrap()));
/// assert!(is_loopback("::ffff:127.0.0.1".parse().unwrap()));
/// assert!(!is_loopback("0.0.0.0".parse().unwrap()));
/// ```
pub fn is_loopback(address: IpAddr) -> bool {
    // The standard library does not count IPv4 addresses that are written as IPv6.
    address.to_canonical().is_loopback()
}

/// TCP through the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpNetwork;

impl Network for TcpNetwork {
    type Stream = TcpStream;
    type Listener = TcpListener;

    async fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address).await
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<Accepted<TcpStream>> {
        let (stream, peer) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        Ok(Accepted {
            stream,
            peer,
            local,
        })
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }
}
