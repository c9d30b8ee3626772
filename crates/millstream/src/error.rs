//! Errors of applications.

use std::net::SocketAddr;
use std::path::PathBuf;

use millstream_broker::StartError;
use millstream_client::ClientError;
use millstream_connect::BadFlowName;
use millstream_exchange::ExchangeError;
use millstream_flow::FlowError;
use millstream_log::LogError;
use millstream_node::NoAddress;

/// The reason for which an application cannot begin, or has ended.
#[derive(thiserror::Error)]
pub enum Error {
    /// The data directory cannot be opened.
    #[error("cannot open the data directory {}: {error}", dir.display())]
    Open {
        /// The directory.
        dir: PathBuf,
        /// The log's error.
        error: LogError,
    },
    /// The server cannot be reached, or refuses.
    #[error("server {server}: {error}")]
    Server {
        /// The server's address, as it was given.
        server: String,
        /// The client's error.
        error: ClientError,
    },
    /// A topic cannot be made, read or written.
    #[error("topic {topic}: {error}")]
    Topic {
        /// The topic.
        topic: String,
        /// The reason.
        error: millstream_flow::BoxError,
    },
    /// The flow's name is not valid.
    #[error(transparent)]
    FlowName(#[from] BadFlowName),
    /// The flow reads no topic, and so has no node.
    #[error("flow {flow} reads no topic: begin it with `read`")]
    NoInput {
        /// The flow.
        flow: String,
    },
    /// State was asked for before the flow has a node.
    #[error(
        "flow {flow}: `engine` was called while the flow read no topic: call `read` first, since its topic names the node of the state"
    )]
    NoEngine {
        /// The flow.
        flow: String,
    },
    /// A flow cannot take requests in this way.
    #[error("flow {flow} cannot take requests: {why}")]
    Requests {
        /// The flow.
        flow: String,
        /// The reason, and the remedy.
        why: &'static str,
    },
    /// The flow cannot begin, or has failed.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// The HTTP server cannot listen.
    #[error("cannot listen on {address}: {error}")]
    Http {
        /// The address.
        address: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The process cannot serve Kafka's clients.
    #[error(transparent)]
    Listen(#[from] StartError),
    /// The host of a listener has no address.
    #[error(transparent)]
    NoAddress(#[from] NoAddress),
    /// Clients of other machines could do everything without a login.
    #[error(
        "other machines can reach {address}, and clients need not log in there: turn authentication on, or use an address of \
         this machine alone, for instance 127.0.0.1:{}",
        .address.port()
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// A job has listeners for a node that is a server.
    #[error(
        "only the process that has a data directory open serves it: leave out `Job::listen`, since the node is a server"
    )]
    ListensForServer,
    /// A job has listeners, and the command line decides about these.
    #[error(
        "`millstream::main` has listeners of its own: leave out `Job::listen`, and name them with `--listen`"
    )]
    ListensInMain,
    /// The environment names no level of events.
    #[error(
        "MILLSTREAM_LOG is {0:?}, which is no level: set it to off, error, warn, info, debug or trace, or unset it"
    )]
    LogLevel(String),
    /// The ranks cannot work together.
    #[error(transparent)]
    Ranks(ExchangeError),
    /// The operating system refuses something.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

millstream_base::debug_as_display!(Error);

#[cfg(test)]
mod tests {
    use millstream_flow::AskError;
    use millstream_flow::serving::CallError;

    use super::*;

    /// `fn main() -> Result<(), Error>` prints an error by `Debug`, also in a box.
    #[test]
    fn an_error_that_leaves_main_reads_like_one_of_a_command() {
        let error = Error::Http {
            address: "127.0.0.1:80".to_owned(),
            error: std::io::Error::other("the port is taken"),
        };
        let text = "cannot listen on 127.0.0.1:80: the port is taken";
        assert_eq!(format!("{error:?}"), text);
        let boxed: Box<dyn std::error::Error> = error.into();
        assert_eq!(format!("{boxed:?}"), text);
    }

    /// Applications call the crates that the library re-exports, too.
    #[test]
    fn errors_of_the_crates_below_read_like_those_of_a_command() {
        let flow = || "totals".to_owned();
        let errors: [Box<dyn std::error::Error>; 8] = [
            FlowError::HasRun { flow: flow() }.into(),
            CallError::Dropped { flow: flow() }.into(),
            AskError::Silent { rank: 1 }.into(),
            ClientError::NoTransaction.into(),
            LogError::Closed.into(),
            millstream_connect::SinkError {
                stream: "totals".to_owned(),
                error: LogError::Closed,
            }
            .into(),
            millstream_record::RecordFault::CutOff.into(),
            millstream_serve::KeyedError::UnknownStream("totals".to_owned()).into(),
        ];
        for error in errors {
            assert_eq!(format!("{error:?}"), error.to_string());
        }
        let ended: Result<(), LogError> = Err(LogError::Closed);
        assert_eq!(format!("{ended:?}"), "Err(the log is closed)");
    }
}
