//! Where the servers are, and who asks.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use millstream_wire::sasl::Mechanism;

use crate::tls::Tls;

/// How servers are reached.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Some servers of the cluster, each as `HOST:PORT`: the first one that answers tells of the others.
    pub servers: Vec<String>,
    /// What the client calls itself; servers count and limit by it.
    pub client_id: String,
    /// Who the client is; nobody, unless it is said.
    pub login: Option<Login>,
    /// Where the client takes the token from that it logs in with, by OAUTHBEARER, if there is no `login`.
    pub token: Option<TokenSource>,
    /// Whom to believe to be the server; without it, connections are not encrypted.
    pub tls: Option<Tls>,
    /// A server that is not reached after so long is not there.
    pub connect_timeout: Duration,
    /// A request that is not answered after so long is given up, and its connection with it.
    pub request_timeout: Duration,
    /// How long to wait before something that failed is tried again.
    pub backoff: Duration,
    /// A stream that servers which answer do not know for so long was deleted: they know one that was just
    /// made before.
    pub unknown_timeout: Duration,
    /// Whether native requests are sent to servers that know them; others get Kafka's in any case.
    pub native: bool,
    /// The largest answer that is taken in, in bytes.
    pub answer_bytes_max: usize,
}

impl ClientConfig {
    /// The defaults, for a server at `HOST:PORT`.
    pub fn new(server: impl Into<String>) -> ClientConfig {
        ClientConfig {
            servers: vec![server.into()],
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
}

/// Gives the token to log in with. Each new connection asks for it, since tokens expire and are renewed.
#[derive(Clone)]
pub struct TokenSource(Arc<dyn Fn() -> io::Result<String> + Send + Sync>);

impl TokenSource {
    /// A source that asks this function, which must not take long.
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

/// A user and what proves it.
#[derive(Clone)]
pub struct Login {
    /// How it is proved.
    pub mechanism: Mechanism,
    /// The user's name.
    pub user: String,
    /// The password, which is never shown.
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
