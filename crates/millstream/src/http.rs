//! What runs is served over HTTP.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use millstream_base::TcpNetwork;
use millstream_serve::{Content, Server};

use crate::console::Progress;

/// Where a command listens that is there to be looked at.
pub const HTTP_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Listens where the user asked for. Who did not ask gets the default, or a free port where that is
/// busy; without a default nothing is served.
pub fn serve(
    asked: Option<SocketAddr>,
    default: Option<SocketAddr>,
    content: Arc<dyn Content>,
    progress: &Progress,
) -> anyhow::Result<Option<Server>> {
    let Some(address) = asked.or(default) else {
        return Ok(None);
    };
    let mut started = Server::start(TcpNetwork, address, Arc::clone(&content));
    if asked.is_none()
        && let Err(error) = &started
        && error.kind() == ErrorKind::AddrInUse
    {
        progress.note(&format!("{address} is in use; taking a free port"));
        let free = SocketAddr::new(address.ip(), 0);
        started = Server::start(TcpNetwork, free, content);
    }
    let server = started
        .with_context(|| format!("cannot listen on {address}; choose another with --http"))?;
    let message = format!("watch it at http://{}/", server.local_address());
    match asked == Some(server.local_address()) {
        true => progress.note(&message),
        // Nobody can know it.
        false => progress.insist(&message),
    }
    Ok(Some(server))
}
