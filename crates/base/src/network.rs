//! The trait for networks, and TCP.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::net::sockopt;
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

/// A client may wait for minutes on a connection. Firewalls forget it after a few minutes without packets, and neither side
/// would learn that the other one is gone. The system sends a probe after this time, and then in these intervals.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);
/// This many unanswered probes end the connection.
const KEEP_ALIVE_COUNT: u32 = 4;

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_COUNT)?;
    Ok(())
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
        keep_alive(&stream)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection without traffic was forgotten on its way, and a client waited for ever.
    #[tokio::test]
    async fn a_client_asks_on_a_quiet_connection_whether_its_peer_is_there() {
        let listener = TcpNetwork.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpNetwork.connect(address).await.unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEP_ALIVE_AFTER);
    }
}
