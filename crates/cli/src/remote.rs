//! The server to which a command connects.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, bail};
use millstream_base::nearest;
use millstream_client::native::DescribeStreamResponse;
use millstream_client::{
    Client, ClientConfig, ClientError, Login, ResponseError, Tls, TokenSource,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::console::CANNOT_WRITE;
use crate::settings::{LISTEN_DEFAULT, MECHANISM_DEFAULT, Settings};
use crate::usage::WrongUsage;

/// The number of network threads beside the command's own thread.
const THREADS: usize = 2;

/// How long a command waits for the next item before it checks for a stop signal.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest password, in bytes.
const PASSWORD_BYTES_MAX: usize = 4096;

/// The longest end of a line, `\r\n`.
const LINE_END_BYTES_MAX: usize = 2;

/// A client, and the threads that it works on.
pub struct Remote {
    runtime: Runtime,
    client: Client,
}

impl Remote {
    /// Creates a client of the server in the settings. Sends nothing yet.
    pub fn new(settings: &Settings) -> anyhow::Result<Remote> {
        let server = settings.server.clone();
        let mut config = ClientConfig::new(server.unwrap_or_else(|| LISTEN_DEFAULT.to_string()));
        config.login = login(settings)?;
        config.token = settings.token_file.clone().map(token_source).transpose()?;
        config.tls = tls(settings)?;
        Remote::with(config)
    }

    /// Creates a client from its configuration.
    pub fn with(config: ClientConfig) -> anyhow::Result<Remote> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("millstream-client")
            .enable_all()
            .build()
            .context("no threads for the network")?;
        Ok(Remote {
            runtime,
            client: Client::new(config),
        })
    }

    /// As [`new`](Self::new), for commands that do not work on a data directory.
    pub fn only(settings: &Settings, what: &str) -> anyhow::Result<Remote> {
        match settings.is_local() {
            true => Err(WrongUsage::error(format!(
                "a server stores {what}, not a data directory: name the server with --server"
            ))),
            false => Remote::new(settings),
        }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Waits for an answer.
    pub fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, ClientError>>,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(answer).map_err(explained)
    }

    /// Returns the next item of a stream of items, or `None` if none comes for a moment. Flushes `out` before it waits, so that
    /// the reader of a pipe gets each printed item at once, also while others come one after the other.
    pub fn next<T>(
        &self,
        next: impl Future<Output = Result<T, ClientError>>,
        out: &mut impl Write,
    ) -> anyhow::Result<Option<T>> {
        self.runtime.block_on(async {
            let mut next = pin!(next);
            let at_hand = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
            let item = match at_hand {
                Poll::Ready(item) => item,
                Poll::Pending => {
                    out.flush().context(CANNOT_WRITE)?;
                    match timeout(PAUSE, next).await {
                        Ok(item) => item,
                        Err(_) => return Ok(None),
                    }
                }
            };
            item.map(Some).map_err(explained)
        })
    }

    /// Returns the description of a stream; the error names the nearest existing stream.
    pub fn stream(&self, name: &str) -> anyhow::Result<DescribeStreamResponse> {
        let error = match self.runtime.block_on(self.client.stream(name)) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if error.response_error() != Some(ResponseError::UnknownTopicOrPartition) {
            return Err(explained(error));
        }
        let streams = self.wait(self.client.streams(""))?;
        if streams.is_empty() {
            bail!(
                "unknown stream {name}; there are none, `millstream stream create {name}` creates it"
            );
        }
        match nearest(name, streams.iter().map(|stream| stream.name.as_str())) {
            Some(nearest) => bail!(
                "unknown stream {name}; did you mean {nearest}? `millstream stream create {name}` creates it"
            ),
            None => bail!(
                "unknown stream {name}; `millstream stream list` shows those that exist, and `millstream stream create {name}` creates it"
            ),
        }
    }
}

/// Adds the next step for the user to an error.
pub fn explained(error: ClientError) -> anyhow::Error {
    match &error {
        ClientError::Connect { .. } => anyhow::anyhow!(
            "{error}; `millstream start` starts a server, --server names another one, and --data a data \
             directory that no server works on"
        ),
        _ if matches!(
            error.response_error(),
            Some(ResponseError::IllegalSaslState | ResponseError::SaslAuthenticationFailed)
        ) =>
        {
            anyhow::anyhow!("{error}; --user and --password-file log in, or --token-file")
        }
        _ if error.is_denied() => {
            anyhow::anyhow!("{error}; `millstream acl add allow` adds a rule")
        }
        _ => error.into(),
    }
}

fn login(settings: &Settings) -> anyhow::Result<Option<Login>> {
    let Some(user) = settings.user.clone() else {
        return Ok(None);
    };
    let Some(path) = &settings.password_file else {
        return Err(WrongUsage::error(format!(
            "the password of {user} is missing: name the file that it is in with --password-file"
        )));
    };
    Ok(Some(Login {
        mechanism: settings.mechanism.unwrap_or(MECHANISM_DEFAULT),
        user,
        password: read_password(path)?,
    }))
}

/// The authorities that the client trusts, and the client's certificate unless it logs in with a password.
fn tls(settings: &Settings) -> anyhow::Result<Option<Tls>> {
    let Some(path) = &settings.tls_authorities else {
        return Ok(None);
    };
    let tls = Tls::new(&read(path)?);
    let tls = tls.with_context(|| format!("the authorities in {}", path.display()))?;
    let login = settings.user.is_some() || settings.token_file.is_some();
    let (Some(certificate), Some(key), false) =
        (&settings.tls_certificate, &settings.tls_key, login)
    else {
        return Ok(Some(tls));
    };
    let shown = tls.with_certificate(&read(certificate)?, &read(key)?);
    let of = || {
        let (certificate, key) = (certificate.display(), key.display());
        format!("the client's certificate in {certificate} with the key in {key}")
    };
    Ok(Some(shown.with_context(of)?))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the source of tokens: the file's first line, read for each connection, since a newer token replaces one that
/// expires.
///
/// # Errors
/// If the file cannot be read now, so that the user does not take the error for one of the server.
fn token_source(path: PathBuf) -> anyhow::Result<TokenSource> {
    read_token(&path)?;
    Ok(TokenSource::new(move || read_token(&path)))
}

fn read_token(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot read {}: {error}", path.display()),
        )
    })?;
    let token = text.lines().next().unwrap_or_default().trim();
    Ok(token.to_owned())
}

fn read_password(path: &Path) -> anyhow::Result<String> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    password_of(BufReader::new(file), &name)
}

/// Returns the password in the first line of an input, which `name` names in errors.
pub fn password_of(input: impl BufRead, name: &str) -> anyhow::Result<String> {
    let mut line = Vec::new();
    let bytes_max = PASSWORD_BYTES_MAX + LINE_END_BYTES_MAX;
    let read = input.take(bytes_max as u64).read_until(b'\n', &mut line);
    read.with_context(|| format!("cannot read {name}"))?;
    let is_of_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let length = line.iter().rposition(|byte| !is_of_end(byte));
    line.truncate(length.map_or(0, |last| last + 1));
    if line.is_empty() {
        bail!("there is no password in the first line of {name}");
    }
    if line.len() > PASSWORD_BYTES_MAX {
        bail!("the password in the first line of {name} is longer than {PASSWORD_BYTES_MAX} bytes");
    }
    String::from_utf8(line).with_context(|| format!("the password in {name} is not UTF-8"))
}
