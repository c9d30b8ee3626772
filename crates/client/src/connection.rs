//! One connection: it sends requests in the order of the calls, and the answers come back in the
//! same order.
//!
//! Two tasks work on it. The writer takes requests from a queue. Before it writes a request, it
//! adds an entry for the expected answer to a second queue; the reader takes these entries as
//! answers arrive. When either task fails, both end, and all pending requests fail with the error
//! that the connection is lost.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use millstream_base::{Network, TcpNetwork};
use millstream_wire::{
    ApiKey, Pieces, Question, Request, RequestHeader, Response, StrBytes, correlation_id,
    decode_response, encode_request, missing_bytes, take_frame,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::config::ClientConfig;
use crate::error::ClientError;
use crate::handshake::{self, Versions};

/// The capacity of each queue, of requests to write and of requests without an answer yet; when one
/// is full, senders wait.
const QUEUE_MAX: usize = 256;

/// The initial size of the receive buffer, and the step by which it grows for a large answer.
const READ_BYTES: usize = 64 << 10;
const READ_MORE_BYTES_MAX: usize = 1 << 20;

/// A connection that is ready for requests.
#[derive(Debug)]
pub struct Connection {
    address: Arc<str>,
    client_id: StrBytes,
    versions: Versions,
    request_timeout: Duration,
    next_id: AtomicI32,
    outgoing: mpsc::Sender<Outgoing>,
    tasks: [AbortHandle; 2],
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Outgoing {
    frame: Pieces,
    waiting: Waiting,
}

/// An expected answer, and the channel to its caller.
#[derive(Debug)]
struct Waiting {
    id: i32,
    api: ApiKey,
    version: i16,
    reply: oneshot::Sender<Result<Response, ClientError>>,
}

/// An entry for an answer that has not arrived yet.
#[derive(Debug)]
pub struct Pending<Q> {
    reply: oneshot::Receiver<Result<Response, ClientError>>,
    address: Arc<str>,
    question: std::marker::PhantomData<fn() -> Q>,
}

impl Connection {
    /// Connects to `HOST:PORT`, or to the socket of the settings instead; encrypts and logs in
    /// according to the settings.
    ///
    /// # Errors
    /// When the address cannot be reached, or the other side is no server that accepts this client.
    pub async fn open(address: &str, config: &ClientConfig) -> Result<Connection, ClientError> {
        if let Some(socket) = &config.socket {
            return Connection::open_local(socket, config).await;
        }
        let opened = timeout(config.connect_timeout, Connection::set_up(address, config)).await;
        opened.unwrap_or_else(|_| {
            Err(connect_error(
                address,
                std::io::Error::from(std::io::ErrorKind::TimedOut),
            ))
        })
    }

    async fn set_up(address: &str, config: &ClientConfig) -> Result<Connection, ClientError> {
        let stream = connect(address).await;
        let stream = stream.map_err(|error| connect_error(address, error))?;
        let connection = match &config.tls {
            None => Connection::over(stream, address, config),
            Some(tls) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let stream = tls.connect(host, stream).await;
                let stream = stream.map_err(|error| connect_error(address, error))?;
                Connection::over(stream, address, config)
            }
        };
        connection.greet(config).await
    }

    /// Connects over the socket at `path`, which needs no encryption, and logs in according to the
    /// settings.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) async fn open_local(
        path: &Path,
        config: &ClientConfig,
    ) -> Result<Connection, ClientError> {
        let address = path.display().to_string();
        let set_up = async {
            let stream = connect_local(path).await;
            let stream = stream.map_err(|error| connect_error(&address, error))?;
            Connection::over(stream, &address, config)
                .greet(config)
                .await
        };
        let opened = timeout(config.connect_timeout, set_up).await;
        opened.unwrap_or_else(|_| {
            let error = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Err(connect_error(&address, error))
        })
    }

    /// Performs the handshake and the login.
    async fn greet(mut self, config: &ClientConfig) -> Result<Connection, ClientError> {
        self.versions = handshake::versions(&self, config.native).await?;
        if let Some(login) = &config.login {
            handshake::log_in(&self, login).await?;
        } else if let Some(token) = &config.token {
            handshake::log_in_with_token(&self, token).await?;
        }
        Ok(self)
    }

    fn over(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        address: &str,
        config: &ClientConfig,
    ) -> Connection {
        let address: Arc<str> = address.into();
        let (read_half, write_half) = tokio::io::split(stream);
        let (outgoing, to_write) = mpsc::channel(QUEUE_MAX);
        let (noted, waiting) = mpsc::channel(QUEUE_MAX);
        let writer = tokio::spawn(write_all(write_half, to_write, noted));
        let reader = Reader {
            input: read_half,
            buffer: BytesMut::with_capacity(READ_BYTES),
            bytes_max: config.answer_bytes_max,
            address: Arc::clone(&address),
        };
        let stop_writer = writer.abort_handle();
        let reader = tokio::spawn(async move {
            reader.run(waiting).await;
            stop_writer.abort();
        });
        Connection {
            address,
            client_id: StrBytes::from_string(config.client_id.clone()),
            versions: Versions::default(),
            request_timeout: config.request_timeout,
            next_id: AtomicI32::new(0),
            outgoing,
            tasks: [writer.abort_handle(), reader.abort_handle()],
        }
    }

    /// Returns the server's address.
    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Returns whether the server and this client share a version of a request.
    pub(crate) fn knows(&self, api: ApiKey) -> bool {
        self.versions.newest(api).is_some()
    }

    /// Returns whether requests can still be sent.
    pub fn is_open(&self) -> bool {
        !self.outgoing.is_closed()
    }

    /// Closes the connection: all pending requests fail.
    pub fn close(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// When the request cannot be sent, or is not answered in time.
    pub async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer, ClientError> {
        self.ask_within(question, self.request_timeout).await
    }

    /// As [`ask`](Self::ask), with a timeout of its own.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_within<Q: Question>(
        &self,
        question: Q,
        after: Duration,
    ) -> Result<Q::Answer, ClientError> {
        self.ask_up_to(question, i16::MAX, after).await
    }

    /// As [`ask_within`](Self::ask_within), in a version that is not newer than `version_max`.
    pub(crate) async fn ask_up_to<Q: Question>(
        &self,
        question: Q,
        version_max: i16,
        after: Duration,
    ) -> Result<Q::Answer, ClientError> {
        let answer = async { self.send_up_to(question, version_max).await?.wait().await };
        self.within(Q::API, after, answer).await
    }

    /// Waits for the answer to a request. Closes the connection if it does not come in time: a late answer would have no
    /// caller, and would hold up the answers behind it.
    pub(crate) async fn within<T>(
        &self,
        api: ApiKey,
        after: Duration,
        answer: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match timeout(after, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                self.close();
                Err(ClientError::Timeout {
                    what: format!("the request {api:?} to {}", self.address),
                    after,
                    trouble: None,
                })
            }
        }
    }

    /// Returns the versions of the requests that the server knows.
    pub(crate) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Sends a request, behind those that were sent before. Waits only while the queue is full.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub async fn send<Q: Question>(&self, question: Q) -> Result<Pending<Q>, ClientError> {
        self.send_up_to(question, i16::MAX).await
    }

    /// As [`send`](Self::send), in a version that is not newer than `version_max`.
    pub(crate) async fn send_up_to<Q: Question>(
        &self,
        question: Q,
        version_max: i16,
    ) -> Result<Pending<Q>, ClientError> {
        let newest = self
            .versions
            .newest(Q::API)
            .ok_or_else(|| ClientError::Unsupported {
                api: Q::API,
                address: self.address.to_string(),
            })?;
        self.send_version(question, newest.min(version_max)).await
    }

    pub(crate) async fn send_version<Q: Question>(
        &self,
        question: Q,
        version: i16,
    ) -> Result<Pending<Q>, ClientError> {
        let header = RequestHeader {
            api: Q::API,
            version,
            correlation_id: self.next_id.fetch_add(1, Ordering::Relaxed),
            client_id: Some(self.client_id.clone()),
        };
        let request: Request = question.into();
        let frame = encode_request(&header, &request)?;
        let (reply, receiver) = oneshot::channel();
        let waiting = Waiting {
            id: header.correlation_id,
            api: Q::API,
            version,
            reply,
        };
        let sent = self.outgoing.send(Outgoing { frame, waiting }).await;
        sent.map_err(|_| disconnected(&self.address))?;
        Ok(Pending {
            reply: receiver,
            address: Arc::clone(&self.address),
            question: std::marker::PhantomData,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

impl<Q: Question> Pending<Q> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// When the connection is lost, or the answer is malformed.
    pub async fn wait(self) -> Result<Q::Answer, ClientError> {
        let response = self.reply.await;
        let response = response.map_err(|_| disconnected(&self.address))??;
        Q::answer(response).ok_or_else(|| ClientError::Protocol {
            address: self.address.to_string(),
            what: "an answer is to another request".to_owned(),
        })
    }
}

/// Connects to the first of the host's addresses that answers.
async fn connect(address: &str) -> std::io::Result<tokio::net::TcpStream> {
    let mut last = None;
    for address in tokio::net::lookup_host(address).await? {
        match TcpNetwork.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::other("the host has no address")))
}

/// Connects through the folder's descriptor: the path of a socket must be short, that of its folder
/// may be long.
async fn connect_local(path: &Path) -> std::io::Result<UnixStream> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let folder = std::fs::File::open(folder)?;
    let short = format!("/proc/self/fd/{}", folder.as_raw_fd());
    let stream = UnixStream::connect(Path::new(&short).join(name)).await?;
    // Check the socket's owner before the login: a foreign listener would otherwise learn the user
    // and its credential.
    let (user, own) = (
        stream.peer_cred()?.uid(),
        rustix::process::geteuid().as_raw(),
    );
    match user == own {
        true => Ok(stream),
        false => Err(std::io::Error::other(format!("it is of user {user}"))),
    }
}

fn connect_error(address: &str, error: std::io::Error) -> ClientError {
    ClientError::Connect {
        address: address.to_owned(),
        error: Arc::new(error),
    }
}

fn disconnected(address: &str) -> ClientError {
    ClientError::Disconnected {
        address: address.to_owned(),
    }
}

/// Writes requests until the connection is dropped, or a write fails.
async fn write_all(
    mut output: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<Outgoing>,
    noted: mpsc::Sender<Waiting>,
) {
    while let Some(Outgoing { mut frame, waiting }) = outgoing.recv().await {
        if noted.send(waiting).await.is_err() || output.write_all_buf(&mut frame).await.is_err() {
            return;
        }
        if output.flush().await.is_err() {
            return;
        }
    }
}

struct Reader<R> {
    input: R,
    buffer: BytesMut,
    bytes_max: usize,
    address: Arc<str>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Hands out answers until the other side closes the connection, or sends an answer without a
    /// request.
    async fn run(mut self, mut waiting: mpsc::Receiver<Waiting>) {
        loop {
            let frame = self.frame().await;
            let Some(frame) = frame.transpose() else {
                return;
            };
            let Some(asked) = waiting.recv().await else {
                return;
            };
            let answer = frame.and_then(|frame| self.decode(&asked, frame));
            let is_failed = answer.is_err();
            // A caller that has stopped waiting does not need the answer.
            let _ = asked.reply.send(answer);
            if is_failed {
                return;
            }
        }
    }

    fn decode(&self, asked: &Waiting, frame: Bytes) -> Result<Response, ClientError> {
        if correlation_id(&frame) != Some(asked.id) {
            return Err(ClientError::Protocol {
                address: self.address.to_string(),
                what: "an answer has the number of another request".to_owned(),
            });
        }
        // A server that does not know our version of ApiVersions answers in the oldest one.
        let version = handshake::answered_version(asked.api, asked.version, &frame);
        let response = decode_response(asked.api, version, frame);
        response
            .map(|(_, response)| response)
            .map_err(|error| ClientError::malformed(&self.address, &error))
    }

    /// Returns the next frame; `None` at the end.
    async fn frame(&mut self) -> Result<Option<Bytes>, ClientError> {
        let refuse = |error| ClientError::frame(&self.address, &error);
        loop {
            if let Some(frame) = take_frame(&mut self.buffer, self.bytes_max).map_err(refuse)? {
                return Ok(Some(frame));
            }
            let missing = missing_bytes(&self.buffer, self.bytes_max).map_err(refuse)?;
            self.buffer
                .reserve(missing.clamp(READ_BYTES, READ_MORE_BYTES_MAX));
            match self.input.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Ok(None),
                Ok(_) => {}
            }
        }
    }
}
