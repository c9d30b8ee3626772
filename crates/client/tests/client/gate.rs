//! A proxy that delays single requests, or swallows them.

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_wire::ApiKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::support::Node;

/// Starts a server that sends clients to a proxy in front of it. The proxy passes on a request when `gate` returns true, and
/// swallows it otherwise.
pub async fn node_behind_gate<F>(
    gate: impl Fn(ApiKey) -> F + Send + Sync + 'static,
) -> (Node, SocketAddr)
where
    F: Future<Output = bool> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let node = Node::with(|config| {
        config.listeners[0].advertised = Some((address.ip().to_string(), address.port()));
    });
    let (to, gate) = (node.address(), Arc::new(gate));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // The server may be away.
            let Ok(server) = TcpStream::connect(to).await else {
                continue;
            };
            let (from_client, mut to_client) = client.into_split();
            let (mut from_server, to_server) = server.into_split();
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                tokio::select! {
                    _ = pass_requests(from_client, to_server, &*gate) => {}
                    _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
                }
            });
        }
    });
    (node, address)
}

async fn pass_requests<F: Future<Output = bool>>(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    gate: &(impl Fn(ApiKey) -> F + Sync),
) -> std::io::Result<()> {
    loop {
        let mut frame = vec![0; client.read_u32().await? as usize];
        client.read_exact(&mut frame).await?;
        let api = ApiKey::try_from(i16::from_be_bytes([frame[0], frame[1]])).unwrap();
        if gate(api).await {
            server.write_u32(frame.len() as u32).await?;
            server.write_all(&frame).await?;
        }
    }
}
