//! The addresses of the servers, and the client's identity.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millstream_wire::sasl::Mechanism;

use crate::tls::Tls;

/// Settings of a client: its servers, login and time-outs.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Some servers of the cluster, each as `HOST:PORT`: the first one that answers names the
    /// others.
    pub servers: Vec<String>,
    /// The Unix socket of the only server, which runs as the same user on this machine. With it, the
    /// client opens no TCP connection, whatever addresses the server names.
    pub socket: Option<PathBuf>,
    /// The client id; servers apply statistics and quotas by it.
    pub client_id: String,
    /// The user that the client logs in as; without it, the client is anonymous.
    pub login: Option<Login>,
    /// The source of the token for a login by OAUTHBEARER, if there is no `login`.
    pub token: Option<TokenSource>,
    /// The certificates by which the client verifies the server; without it, connections are not
    /// encrypted.
    pub tls: Option<Tls>,
    /// The timeout for connecting to a server.
    pub connect_timeout: Duration,
    /// The timeout of a request; when it passes, the client also closes the connection.
    pub request_timeout: Duration,
    /// The pause before the client retries a failed request.
    pub backoff: Duration,
    /// The time for which servers must report a stream as unknown before the client takes it for
    /// deleted; a new stream becomes known within it.
    pub unknown_timeout: Duration,
    /// Whether the client sends native requests to servers that know them; others always get
    /// Kafka's requests.
    pub native: bool,
    /// The largest answer that the client accepts, in bytes.
    pub answer_bytes_max: usize,
}

impl ClientConfig {
    /// Returns the defaults, for a server at `HOST:PORT`.
    pub fn new(server: impl Into<String>) -> ClientConfig {
        ClientConfig {
            servers: vec![server.into()],
            socket: None,
            client_id: "millstream".to_owned(),
            login: None,
            token: None,
            tls: None,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            backoff: Duration::from_millis(50),
            unknown_timeout: Duration::from_secs(5),
            native: true,
            answer_bytes_max: 128 << 20,
        }
    }

    /// Returns the defaults, for the server behind a Unix socket.
    pub fn of_socket(path: impl Into<PathBuf>) -> ClientConfig {
        let path = path.into();
        ClientConfig {
            socket: Some(path.clone()),
            ..ClientConfig::new(path.display().to_string())
        }
    }
}

/// Supplies the token for a login. Each new connection asks for it, since tokens expire and are
/// renewed.
#[derive(Clone)]
pub struct TokenSource(Arc<dyn Fn() -> io::Result<String> + Send + Sync>);

impl TokenSource {
    /// Returns a source that calls this function, which must not take long.
    pub fn new(source: impl Fn() -> io::Result<String> + Send + Sync + 'static) -> TokenSource {
        TokenSource(Arc::new(source))
    }

    pub(crate) fn token(&self) -> io::Result<String> {
        (self.0)()
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSource(…)")
    }
}

/// A user with its credential.
#[derive(Clone)]
pub struct Login {
    /// The SASL mechanism of the login.
    pub mechanism: Mechanism,
    /// The user's name.
    pub user: String,
    /// The password, which no output shows.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("mechanism", &self.mechanism)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}
