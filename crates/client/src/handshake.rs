//! The first requests on a connection: negotiates the versions of requests, and logs in.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use millstream_base::{Random, SystemRandom};
use millstream_wire::messages::{
    ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest,
};
use millstream_wire::sasl::{self, Mechanism, NONCE_BYTES, Nonce, Progress};
use millstream_wire::{ApiKey, Question, ResponseError, StrBytes};

use crate::config::{Login, TokenSource};
use crate::connection::Connection;
use crate::error::ClientError;
use crate::reason::NATIVE_FROM;

/// The version of ApiVersions: all servers know it that are new enough for the other requests.
const API_VERSIONS: i16 = 3;

/// The newest versions that name topics; later ones use topic ids.
const VERSIONS_MAX: [(ApiKey, i16); 3] = [
    (ApiKey::Fetch, 12),
    (ApiKey::OffsetCommit, 9),
    (ApiKey::OffsetFetch, 9),
];

/// The feature by which a cluster announces its transaction protocol.
const TRANSACTION_VERSION: &str = "transaction.version";

#[cfg(test)]
thread_local! {
    /// The newest transaction protocol to use: lets tests cover older servers.
    pub(crate) static TRANSACTIONS_MAX: std::cell::Cell<i16> = const { std::cell::Cell::new(i16::MAX) };
}

/// The versions of requests that both sides know.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    newest: HashMap<ApiKey, i16>,
    /// The level of the feature `transaction.version` that the cluster has settled on; 0 if it has none.
    transactions: i16,
}

impl Versions {
    /// Returns the newest one; `None` if there is none.
    pub fn newest(&self, api: ApiKey) -> Option<i16> {
        self.newest.get(&api).copied()
    }

    /// Returns the level of the transaction protocol; see
    /// `PER_TRANSACTION_EPOCHS`.
    pub fn transactions(&self) -> i16 {
        self.transactions
    }
}

/// Asks the server for the versions of its requests.
pub(crate) async fn versions(
    connection: &Connection,
    with_native: bool,
) -> Result<Versions, ClientError> {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("millstream"))
        .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
    let pending = connection.send_version(request, API_VERSIONS).await?;
    let answer = pending.wait().await?;
    let code = answer.error_code;
    // The server lists its versions even with this error.
    if code != ResponseError::UnsupportedVersion.code() {
        ClientError::check(code, None, "asking for the server's versions")?;
    }
    let is_wanted = |key: i16| with_native || key < NATIVE_FROM;
    let known = answer.api_keys.iter();
    let known = known.filter(|known| is_wanted(known.api_key));
    let common = known.filter_map(|known| {
        let api = ApiKey::try_from(known.api_key).ok()?;
        let ours = api.versions();
        let bound = VERSIONS_MAX.iter().find(|(bounded, _)| *bounded == api);
        let ours_max = bound.map_or(*ours.end(), |(_, max)| *max);
        let newest = known.max_version.min(ours_max);
        (newest >= known.min_version.max(*ours.start())).then_some((api, newest))
    });
    let mut features = answer.finalized_features.iter();
    let transactions = features.find(|feature| &*feature.name == TRANSACTION_VERSION);
    let transactions = transactions.map_or(0, |feature| feature.max_version_level);
    #[cfg(test)]
    let transactions = transactions.min(TRANSACTIONS_MAX.get());
    Ok(Versions {
        newest: common.collect(),
        transactions,
    })
}

/// Returns the version of an answer: a server that does not know a version of ApiVersions answers in the oldest one.
pub(crate) fn answered_version(api: ApiKey, version: i16, frame: &[u8]) -> i16 {
    let unsupported = ResponseError::UnsupportedVersion.code().to_be_bytes();
    match api {
        ApiKey::ApiVersions if frame.get(4..6) == Some(&unsupported) => 0,
        _ => version,
    }
}

/// Logs in with a user and a credential.
pub(crate) async fn log_in(connection: &Connection, login: &Login) -> Result<(), ClientError> {
    choose(connection, login.mechanism).await?;
    let mut random = [0; NONCE_BYTES];
    SystemRandom
        .fill(&mut random)
        .map_err(|error| ClientError::Connect {
            address: connection.address().to_string(),
            error: std::sync::Arc::new(error),
        })?;
    let nonce = Nonce::from_random(&random);
    let started = sasl::Client::start(login.mechanism, &login.user, &login.password, &nonce);
    let what = format!("logging in as {}", login.user);
    exchange(connection, started, what).await
}

/// Logs in with a token.
pub(crate) async fn log_in_with_token(
    connection: &Connection,
    source: &TokenSource,
) -> Result<(), ClientError> {
    let token = source.token().map_err(|error| ClientError::Connect {
        address: connection.address().to_string(),
        error: std::sync::Arc::new(io::Error::new(
            error.kind(),
            format!("there is no token to log in with: {error}"),
        )),
    })?;
    choose(connection, Mechanism::OAuthBearer).await?;
    let started = sasl::Client::start_with_token(&token);
    exchange(connection, started, "logging in with a token".to_owned()).await
}

/// Announces the mechanism of the login.
async fn choose(connection: &Connection, mechanism: Mechanism) -> Result<(), ClientError> {
    let name = StrBytes::from_static_str(mechanism.name());
    let request = SaslHandshakeRequest::default().with_mechanism(name);
    let answer = ask(connection, request).await?;
    ClientError::check(
        answer.error_code,
        None,
        format!("logging in with {mechanism}"),
    )
}

/// Sends the client's SASL messages, and takes the answers.
async fn exchange(
    connection: &Connection,
    started: Result<(sasl::Client, Bytes), sasl::ClientError>,
    what: String,
) -> Result<(), ClientError> {
    let failed = |error| ClientError::Login {
        address: connection.address().to_string(),
        error,
    };
    let (mut client, mut message) = started.map_err(failed)?;
    // Each step of SASL consumes the client, and there are at most two.
    loop {
        let request = SaslAuthenticateRequest::default().with_auth_bytes(message);
        let answer = ask(connection, request).await?;
        let message_of_server = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message_of_server, what.clone())?;
        match client.answer(&answer.auth_bytes).map_err(failed)? {
            Progress::Done => return Ok(()),
            Progress::Send(next, bytes) => (client, message) = (next, bytes),
        }
    }
}

async fn ask<Q: Question>(connection: &Connection, question: Q) -> Result<Q::Answer, ClientError> {
    connection.send(question).await?.wait().await
}
