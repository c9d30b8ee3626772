//! The listener, and the bounds of the machine's resources that clients can use.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::response::Response;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use millstream_base::{Accepted, Listener, Network, is_loopback};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::Content;
use crate::addresses::Addresses;
use crate::connection::Connection;
use crate::connection_time::ConnectionTime;
use crate::gate::{Gate, Open, Visitor};
use crate::guard::{Guarded, Rules};
use crate::keyed::{KEY_READERS_MAX, KEY_WATCHERS_MAX, KEY_WRITERS_MAX};
use crate::routes::router;
use crate::shown::{STATE_READERS_MAX, Shown};

/// The most open connections beside those of watches. Others wait in the operating system's backlog until one of these ends; the
/// time-outs below make that certain.
const OTHER_CONNECTIONS_MAX: usize = 1_024;

/// The open files that the limit of the process leaves to its other work.
const OTHER_FILES: usize = 4_096;

/// The most bytes of a request's first line and headers; larger ones get 431.
const REQUEST_HEAD_BYTES_MAX: usize = 16 << 10;

/// The most requests at once on one connection of HTTP/2. Clients hold further ones back.
const REQUESTS_AT_ONCE_MAX: u32 = 32;

/// Bytes of unread bodies on one connection of HTTP/2.
const UNREAD_BYTES_MAX: u32 = 64 << 10;

/// The names of HTTP/2 and HTTP/1.1 in the TLS handshake.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The time for the whole head of the first request, from the opening of a connection, and with HTTP/1 of the next one, from
/// the last answer.
const REQUEST_HEAD_TIME_MAX: Duration = Duration::from_secs(5);

/// The longest life of a connection, unless a watch extends it. Then the next answer says that the server closes it: a client of
/// HTTP/1 would not know whether the server has seen a request that it sends while the server closes.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);

/// The time for that answer, so that a client that reads slowly cannot hold its connection forever.
const LAST_REQUEST_TIME_MAX: Duration = REQUEST_HEAD_TIME_MAX;

/// The time that a closing connection has for its last answer.
const LAST_ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// The number of threads that read content, beside those that look up keys.
const READERS_MAX: usize = 4;

/// All threads for blocking work.
const THREADS_MAX: usize =
    READERS_MAX + KEY_READERS_MAX + KEY_WRITERS_MAX + KEY_WATCHERS_MAX + STATE_READERS_MAX;

/// The pause between attempts to accept while the machine lacks resources for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The time for the TLS handshake.
const TLS_HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);

/// The most watches of a server, unless its options say otherwise.
pub const WATCHES_DEFAULT: usize = 2_048;

/// Access to a server: its gate and its host names, and its bound of watches.
pub struct Options {
    /// The gate that admits visitors. Without one the server admits every client, so it listens only where no other
    /// machine reaches it.
    pub gate: Option<Arc<dyn Gate>>,
    /// The names that requests may have in `Host`, beside IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// The most watches at once. The server has connections for all of them, and for other requests.
    pub watches: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            gate: None,
            hosts: Vec::new(),
            watches: WATCHES_DEFAULT,
        }
    }
}

/// The error for an address on which clients of other machines could read everything without a login.
#[derive(Debug, thiserror::Error)]
#[error(
    "other machines can reach {address}, and HTTP without logins would be open to all of them: listen on an address of this \
     machine alone, for instance 127.0.0.1:{}, and let a proxy or a tunnel with logins pass requests on",
    .address.port()
)]
struct Exposed {
    address: SocketAddr,
}

/// A running HTTP server; it stops when dropped.
pub struct Server {
    local_address: SocketAddr,
    /// `drop` takes it: without a sender, all watching tasks end.
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` (port 0: a free one), and answers admitted clients with `content`, on a separate
    /// thread.
    ///
    /// # Errors
    /// If it cannot listen there, or the operating system grants no thread; of the kind
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), if it has no gate and other machines reach the address.
    ///
    /// # Panics
    /// When called from asynchronous code: it blocks.
    pub fn start(
        network: impl Network,
        address: SocketAddr,
        content: Arc<dyn Content>,
        options: Options,
    ) -> io::Result<Server> {
        let gate = match options.gate {
            Some(gate) => gate,
            None if is_loopback(address.ip()) => Arc::new(Open),
            None => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    Exposed { address },
                ));
            }
        };
        let rules = Rules::new(options.hosts);
        let watches = options.watches;
        allow_files(watches + OTHER_CONNECTIONS_MAX + OTHER_FILES);
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(THREADS_MAX)
            .thread_name("millstream-http")
            .build()?;
        let listener = runtime.block_on(network.listen(address))?;
        let local_address = listener.local_address()?;
        let (stop, stopping) = watch::channel(());
        let thread = thread::Builder::new()
            .name("millstream-http".to_owned())
            .spawn(move || run(runtime, listener, content, gate, (rules, watches), stopping))?;
        Ok(Server {
            local_address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the address on which it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Accepts no more requests, finishes the current ones within a few seconds, and ends.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed a panic of the thread, and a destructor cannot return an error.
            let _ = thread.join();
        }
    }
}

/// Raises the limit of open files of the process to this number, or as far as it may: without files for its connections, the log
/// could not open its own.
fn allow_files(files: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit
        .maximum
        .map_or(files as u64, |most| most.min(files as u64));
    if limit.current.is_some_and(|current| current < most) {
        limit.current = Some(most);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the number of open files");
        }
    }
}

fn run(
    runtime: Runtime,
    listener: impl Listener<Stream: Stream>,
    content: Arc<dyn Content>,
    gate: Arc<dyn Gate>,
    (rules, watches): (Rules, usize),
    stopping: watch::Receiver<()>,
) {
    let connections = watches + OTHER_CONNECTIONS_MAX;
    let places = Arc::new(Semaphore::new(connections));
    runtime.block_on(async {
        let shown = Arc::new(Shown::new(Arc::clone(&content), watches, stopping.clone()));
        let history = Arc::clone(&shown.history);
        let pages = Arc::new(Guarded::new(rules, Arc::clone(&shown), router(shown)));
        let mut stopped = stopping.clone();
        tokio::select! {
            () = accept_all(listener, gate, pages, &places, stopping) => {}
            () = history.sample_forever(content) => {}
            _ = stopped.changed() => {}
        }
        // Wait until the last connection has ended, but no longer than the time for closing.
        let all_places = places.acquire_many(connections as u32);
        let _ = timeout(LAST_ANSWER_TIME_MAX, all_places).await;
    });
    runtime.shutdown_timeout(LAST_ANSWER_TIME_MAX);
}

/// The stream of a connection of a [`Network`].
trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

async fn accept_all(
    mut listener: impl Listener<Stream: Stream>,
    gate: Arc<dyn Gate>,
    pages: Arc<Guarded>,
    places: &Arc<Semaphore>,
    stopping: watch::Receiver<()>,
) {
    let addresses = Arc::new(Addresses::default());
    while let Ok(place) = Arc::clone(places).acquire_owned().await {
        match listener.accept().await {
            Ok(Accepted {
                stream, peer: from, ..
            }) => {
                let Some(counted) = addresses.count(from.ip()) else {
                    continue;
                };
                let (gate, pages) = (Arc::clone(&gate), Arc::clone(&pages));
                let stopping = stopping.clone();
                tokio::spawn(async move {
                    admit(stream, from, &*gate, pages, stopping).await;
                    drop((place, counted));
                });
            }
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::warn!("cannot accept HTTP connections, trying again: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns whether the client left before the server accepted it. The next client may be served.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Serves a connection, after the TLS handshake if the gate requires one.
async fn admit(
    stream: impl Stream,
    from: SocketAddr,
    gate: &dyn Gate,
    pages: Arc<Guarded>,
    mut stopping: watch::Receiver<()>,
) {
    let Some(config) = gate.tls() else {
        return serve(stream, gate.visitor(from, None), pages, stopping).await;
    };
    // The gate may give the same settings to another server, with other protocols.
    let mut config = ServerConfig::clone(&config);
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    let accepted = TlsAcceptor::from(Arc::new(config)).accept(stream);
    let accepted = tokio::select! {
        accepted = timeout(TLS_HANDSHAKE_TIME_MAX, accepted) => accepted,
        _ = stopping.changed() => return,
    };
    // A failed connection concerns its client alone, which sees the failure.
    let Ok(Ok(stream)) = accepted else {
        return;
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(|certificates| certificates.first());
    let visitor = gate.visitor(from, certificate);
    serve(stream, visitor, pages, stopping).await;
}

/// Serves a connection of HTTP/1 or, if it begins so, of HTTP/2.
async fn serve(
    stream: impl Stream,
    visitor: Arc<dyn Visitor>,
    pages: Arc<Guarded>,
    mut stopping: watch::Receiver<()>,
) {
    let time = Arc::new(ConnectionTime::new(REQUEST_HEAD_TIME_MAX));
    let connection = Arc::new(Connection {
        visitor,
        time: Arc::clone(&time),
    });
    let service =
        service_fn(move |request| answer(Arc::clone(&pages), Arc::clone(&connection), request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD_TIME_MAX)
        .max_buf_size(REQUEST_HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(REQUESTS_AT_ONCE_MAX)
        .max_header_list_size(REQUEST_HEAD_BYTES_MAX as u32)
        .initial_stream_window_size(UNREAD_BYTES_MAX)
        .initial_connection_window_size(UNREAD_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // A failed connection concerns its client alone, which sees the failure.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopping.changed() => {}
        () = time.is_over() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_ANSWER_TIME_MAX, connection).await;
}

async fn answer(
    pages: Arc<Guarded>,
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
) -> Result<Response, Infallible> {
    begin_request(&connection.time, &mut request);
    let is_http1 = request.version() < Version::HTTP_2;
    let mut response = pages.answer(Arc::clone(&connection), request).await?;
    if is_http1 && connection.time.is_older_than(CONNECTION_TIME_MAX) {
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Lets the connection of a request live on. Names the host of a request of HTTP/2 in the header that HTTP/1 has for it.
fn begin_request(time: &ConnectionTime, request: &mut Request<Incoming>) {
    time.live_for(CONNECTION_TIME_MAX + LAST_REQUEST_TIME_MAX);
    if request.version() == Version::HTTP_2
        && let Some(authority) = request.uri().authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        let headers = request.headers_mut();
        headers.entry(header::HOST).or_insert(host);
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use millstream_flow::Running;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::mpsc;
    use tokio::time::Instant;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

    use super::*;
    use crate::Metric;

    /// A node without content.
    struct Nothing;

    impl Content for Nothing {
        fn flows(&self) -> Vec<Arc<Running>> {
            Vec::new()
        }

        fn overview(&self) -> serde_json::Value {
            serde_json::Value::Null
        }

        fn metrics(&self) -> Vec<Metric> {
            Vec::new()
        }
    }

    fn guarded(pages: Router) -> Arc<Guarded> {
        let shown = Shown::new(Arc::new(Nothing), WATCHES_DEFAULT, watch::channel(()).1);
        Arc::new(Guarded::new(Rules::new(Vec::new()), Arc::new(shown), pages))
    }

    /// The bytes of the body of an answer.
    const ANSWER_BYTES: usize = 1 << 20;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// Returns the time that a connection of `client` lasts on a simulated clock.
    async fn time_served<C: Future<Output = ()> + Send + 'static>(
        client: impl FnOnce(DuplexStream) -> C,
    ) -> Duration {
        let (near, far) = duplex(1 << 10);
        let answer = || async { "x".repeat(ANSWER_BYTES) };
        let pages = guarded(Router::new().route("/", get(answer)));
        let (_stop, stopping) = watch::channel(());
        tokio::spawn(client(near));
        let start = Instant::now();
        serve(far, Arc::new(Open), pages, stopping).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_reads_its_answer_is_disconnected() {
        let time = time_served(|mut client| async move {
            client.write_all(REQUEST).await.expect("room");
            std::future::pending().await
        });
        let time = time.await;
        assert!(time >= CONNECTION_TIME_MAX, "{time:?}");
        let time_max = CONNECTION_TIME_MAX + LAST_REQUEST_TIME_MAX + 2 * LAST_ANSWER_TIME_MAX;
        assert!(time <= time_max, "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_connection_is_closed_behind_an_answer_that_says_so() {
        let (sender, mut answers) = mpsc::unbounded_channel();
        let time = time_served(|mut client| async move {
            loop {
                client.write_all(REQUEST).await.expect("it is open");
                let mut answer = Vec::new();
                let end_of_head = |answer: &[u8]| {
                    let mut fours = answer.windows(4);
                    fours.position(|four| four == b"\r\n\r\n")
                };
                while end_of_head(&answer).is_none_or(|at| answer.len() < at + 4 + ANSWER_BYTES) {
                    let read = client.read_buf(&mut answer).await.unwrap();
                    assert!(read > 0, "each request has an answer");
                }
                let head = &answer[..answer.len() - ANSWER_BYTES];
                let head = String::from_utf8_lossy(head).to_ascii_lowercase();
                let closes = head.contains("connection: close\r\n");
                sender.send(closes).unwrap();
                if closes {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
            }
        });
        let time = time.await;
        let mut last = None;
        while let Some(closes) = answers.recv().await {
            last = Some(closes);
        }
        assert_eq!(last, Some(true), "{time:?}");
        assert!(time >= CONNECTION_TIME_MAX, "{time:?}");
        let time_max = CONNECTION_TIME_MAX + Duration::from_secs(2);
        assert!(time <= time_max, "{time:?}");
    }

    /// A gate that encrypts.
    struct Encrypting(Arc<ServerConfig>);

    impl Gate for Encrypting {
        fn tls(&self) -> Option<Arc<ServerConfig>> {
            Some(Arc::clone(&self.0))
        }

        fn visitor(&self, _: SocketAddr, _: Option<&CertificateDer<'_>>) -> Arc<dyn Visitor> {
            Arc::new(Open)
        }
    }

    /// Returns the gate, and the certificate of its server `localhost`.
    fn encrypting() -> (Encrypting, CertificateDer<'static>) {
        let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
        let certificate = key.cert.der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], private)
            .unwrap();
        (Encrypting(Arc::new(config)), certificate)
    }

    #[tokio::test]
    async fn the_tls_handshake_chooses_the_protocol() {
        let (gate, certificate) = encrypting();
        let gate = Arc::new(gate);
        let mut authorities = RootCertStore::empty();
        authorities.add(certificate).unwrap();
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        let (_stop, stopping) = watch::channel(());
        for (offered, chosen) in [
            (&[&b"h2"[..], b"http/1.1"][..], Some(&b"h2"[..])),
            (&[b"http/1.1"], Some(b"http/1.1")),
            (&[], None),
        ] {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(authorities.clone())
                .with_no_client_auth();
            config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
            let (near, far) = duplex(1 << 10);
            let (gate, stopping) = (Arc::clone(&gate), stopping.clone());
            tokio::spawn(async move {
                admit(far, from, &*gate, guarded(Router::new()), stopping).await
            });
            let connector = TlsConnector::from(Arc::new(config));
            let name = "localhost".try_into().unwrap();
            let stream = connector.connect(name, near).await.unwrap();
            assert_eq!(stream.get_ref().1.alpn_protocol(), chosen);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_without_a_tls_handshake_is_disconnected() {
        let (gate, _) = encrypting();
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        let (_stop, stopping) = watch::channel(());
        // The first sends nothing, the second no TLS, the third the first bytes of a handshake.
        for sent in [&b""[..], REQUEST, b"\x16\x03\x01\x02"] {
            let (mut near, far) = duplex(1 << 10);
            near.write_all(sent).await.unwrap();
            let start = Instant::now();
            admit(far, from, &gate, guarded(Router::new()), stopping.clone()).await;
            let time = start.elapsed();
            assert!(time <= TLS_HANDSHAKE_TIME_MAX, "{time:?}");
        }
    }
}
