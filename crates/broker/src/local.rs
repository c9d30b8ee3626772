//! The socket for clients that run on the same machine, as the same user: it speaks the same
//! protocol as every other connection, and also serves shared-memory subscriptions.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use millstream_base::{Accepted, Listener, Network};
use millstream_log::SOCKET;
use tokio::net::{UnixListener, UnixStream};

/// Only its owner may use it.
const MODE: u32 = 0o600;

/// A network that only programs of the same user on this machine reach: the socket in a folder stands
/// for every address. The server that listens there has no other socket.
#[derive(Debug, Clone)]
pub struct LocalNetwork {
    dir: PathBuf,
}

impl LocalNetwork {
    /// Returns the network of a folder that no other process uses.
    pub fn new(dir: impl Into<PathBuf>) -> LocalNetwork {
        LocalNetwork { dir: dir.into() }
    }
}

impl Network for LocalNetwork {
    type Stream = UnixStream;
    type Listener = LocalListener;

    async fn listen(&self, _: SocketAddr) -> io::Result<LocalListener> {
        LocalListener::bind(&self.dir)
    }

    async fn connect(&self, _: SocketAddr) -> io::Result<UnixStream> {
        let folder = File::open(&self.dir)?;
        UnixStream::connect(short_path(&folder)).await
    }
}

/// Returns a path of the socket in a folder: it has a small length limit, and the folder's path may be long.
fn short_path(folder: &File) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())
}

/// A listening socket in a folder. Dropping it removes its file.
pub struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalListener {
    /// Listens in a folder that no other process uses. Removes the socket that a killed server left
    /// there.
    pub fn bind(dir: &Path) -> io::Result<LocalListener> {
        let path = dir.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let folder = File::open(dir)?;
        let listener = UnixListener::bind(short_path(&folder))?;
        let listener = LocalListener { listener, path };
        std::fs::set_permissions(&listener.path, std::fs::Permissions::from_mode(MODE))?;
        Ok(listener)
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

impl Listener for LocalListener {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<Accepted<UnixStream>> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let user = stream.peer_cred()?.uid();
            if user == rustix::process::geteuid().as_raw() {
                let address = self.local_address()?;
                return Ok(Accepted {
                    stream,
                    peer: address,
                    local: address,
                });
            }
            tracing::warn!(
                "connection over {} refused: it is of user {user}",
                self.path.display()
            );
        }
    }

    /// Returns a stand-in: as if the client came from this machine over the network.
    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok((Ipv4Addr::LOCALHOST, 0).into())
    }
}
