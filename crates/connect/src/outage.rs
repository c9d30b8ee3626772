//! Errors of a server that may pass: the server restarts, or cannot be reached for a while.

use std::time::Instant;

use millstream_client::{ClientConfig, ClientError, ResponseError};
use millstream_flow::{BoxError, PassingError};
use tokio::time::sleep;

/// Whether another attempt may succeed. Damaged records stay as they are, although Kafka's clients read them again.
fn may_pass(error: &ClientError) -> bool {
    error.is_retriable() && error.response_error() != Some(ResponseError::CorruptMessage)
}

/// Returns `error`, which `cause` has led to. If it may pass, a flow at its end tries again, for as long as a consumer tries. A
/// stream that a server does not know is missing: the flow has written to it before.
pub fn of_write(config: &ClientConfig, cause: &ClientError, error: BoxError) -> BoxError {
    if !may_pass(cause) || cause.is_unknown_stream() {
        return error;
    }
    let (error, retry_for) = (error.to_string(), config.request_timeout);
    PassingError { error, retry_for }.into()
}

/// The time without an answer of the server. Reads are tried again for as long as a consumer tries.
pub struct Outage<'a> {
    config: &'a ClientConfig,
    since: Option<Instant>,
}

impl Outage<'_> {
    pub fn new(config: &ClientConfig) -> Outage<'_> {
        Outage {
            config,
            since: None,
        }
    }

    /// Notes that the server has answered.
    pub fn end(&mut self) {
        self.since = None;
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// With `error`, if another try would fail, too, or the outage is too long.
    pub async fn wait(&mut self, error: ClientError) -> Result<(), ClientError> {
        let retry_for = match error.is_unknown_stream() {
            true => self.config.unknown_timeout,
            false => self.config.request_timeout,
        };
        let since = self.since.get_or_insert_with(Instant::now);
        if !may_pass(&error) || since.elapsed() >= retry_for {
            return Err(error);
        }
        sleep(self.config.backoff).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn errors_of_a_server_that_is_away_pass_and_refusals_do_not() {
        let config = ClientConfig::new("localhost:1");
        let refused = |error| ClientError::Refused {
            what: "it".to_owned(),
            error,
            message: None,
        };
        let address = "localhost:1".to_owned();
        let error = Arc::new(io::Error::from(io::ErrorKind::ConnectionRefused));
        let passing = [
            ClientError::Connect { address, error },
            refused(ResponseError::CoordinatorLoadInProgress),
        ];
        let final_ones = [
            refused(ResponseError::UnknownTopicOrPartition),
            refused(ResponseError::TopicAuthorizationFailed),
            refused(ResponseError::CorruptMessage),
            refused(ResponseError::MessageTooLarge),
        ];
        let is_passing = |cause: &ClientError| {
            let error = of_write(&config, cause, cause.to_string().into());
            assert_eq!(error.to_string(), cause.to_string());
            let passing = error.downcast_ref::<PassingError>();
            passing.is_some_and(|error| error.retry_for == config.request_timeout)
        };
        assert!(passing.iter().all(is_passing));
        assert!(!final_ones.iter().any(is_passing));
    }
}
