//! Reports the state of the server to systemd, which starts units of `Type=notify` and names a socket to them.

use std::os::unix::net::UnixDatagram;

/// The server serves clients.
pub const READY: &str = "READY=1";

/// The server ends.
pub const STOPPING: &str = "STOPPING=1";

/// Sends the state to the service manager, if one started the program. A failure is a warning, since the server works
/// without its service manager.
pub fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = UnixDatagram::unbound().and_then(|from| from.send_to(state.as_bytes(), &socket));
    if let Err(error) = sent {
        tracing::warn!(%error, socket = %socket.display(), "cannot report {state} to systemd");
    }
}
