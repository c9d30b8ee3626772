//! The errors of flows.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use millstream_exchange::ExchangeError;

/// An error of a source or a sink.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// An error because of which a flow could not start, or did not reach its end.
#[derive(Clone, thiserror::Error)]
pub enum FlowError {
    /// A graph without any stage.
    #[error("flow \"{flow}\" has no operators; give it a source and an end")]
    Empty {
        /// The flow.
        flow: String,
    },
    /// A handle of a flow that was run already.
    #[error("flow \"{flow}\" has run already: build a new one")]
    HasRun {
        /// The flow.
        flow: String,
    },
    /// An operator whose results go nowhere.
    #[error(
        "flow \"{flow}\": the results of \"{operator}\" go nowhere; end it with a sink or a state"
    )]
    Unconnected {
        /// The flow.
        flow: String,
        /// The stage whose chain has no end.
        operator: String,
    },
    /// An operator that gives its items to channels or branches, and has none.
    #[error(
        "flow \"{flow}\": \"{operator}\" has no channels or branches to give its items to; name at least one"
    )]
    NoOutputs {
        /// The flow.
        flow: String,
        /// The operator, by its stage and its place in it.
        operator: String,
    },
    /// A join of two streams that has only the first.
    #[error(
        "flow \"{flow}\": the join \"{join}\" has no second stream; end one in it with `.to_join(…)`"
    )]
    OneSided {
        /// The flow.
        flow: String,
        /// The join.
        join: String,
    },
    /// Two streams that were connected, of different flows.
    #[error(
        "flow \"{flow}\": \"{operator}\" connects two streams of different flows; read both in the same flow"
    )]
    ForeignStream {
        /// The flow.
        flow: String,
        /// The operator.
        operator: String,
    },
    /// A join by event time whose interval ends before it begins.
    #[error(
        "flow \"{flow}\": the interval of \"{operator}\" begins at {lower} ms and ends before that, at {upper} ms; name the smaller bound first"
    )]
    JoinInterval {
        /// The flow.
        flow: String,
        /// The join.
        operator: String,
        /// Its first bound, in milliseconds.
        lower: i64,
        /// Its second bound, in milliseconds.
        upper: i64,
    },
    /// A channel that is not written, or not read by one stage.
    #[error(
        "flow \"{flow}\": channel \"{channel}\" has {writers} stages that write to it and {readers} that read it; it needs at least one that writes and exactly one that reads"
    )]
    Channel {
        /// The flow.
        flow: String,
        /// The channel.
        channel: String,
        /// The number of stages that write to it.
        writers: usize,
        /// The number of stages that read it.
        readers: usize,
    },
    /// Windows in a cycle: they would close when the cycle is at rest, and their results would begin it anew.
    #[error(
        "flow \"{flow}\": the windows of \"{operator}\" are part of a cycle, which would never end; send their results on, not back"
    )]
    WindowsInCycle {
        /// The flow.
        flow: String,
        /// The stage with the windows.
        operator: String,
    },
    /// Ranks in a cycle: no rank would know when the cycle is at rest on all.
    #[error(
        "flow \"{flow}\": \"{operator}\" leads to other ranks and is part of a cycle, which would never end; send its results on, not back"
    )]
    RanksInCycle {
        /// The flow.
        flow: String,
        /// The stage that leads to other ranks.
        operator: String,
    },
    /// Windows that wait for a source which emits no watermarks.
    #[error(
        "flow \"{flow}\": the windows of \"{operator}\" close by event time, and source \"{source_stage}\" emits no watermarks; add `.watermarks(…)` there"
    )]
    NoWatermarks {
        /// The flow.
        flow: String,
        /// The stage with the windows.
        operator: String,
        /// The stage of the source.
        source_stage: String,
    },
    /// Windows where items overtake each other, and so overtake watermarks.
    #[error(
        "flow \"{flow}\": the windows of \"{operator}\" close by event time, which needs Order::Kept"
    )]
    TimeWithoutOrder {
        /// The flow.
        flow: String,
        /// The stage with the windows.
        operator: String,
    },
    /// Windows that an operator cannot have.
    #[error("flow \"{flow}\": \"{operator}\" cannot have these windows: {why}")]
    Windows {
        /// The flow.
        flow: String,
        /// The operator.
        operator: String,
        /// The reason.
        why: &'static str,
    },
    /// Changes of rows where items overtake each other.
    #[error(
        "flow \"{flow}\": \"{operator}\" emits changes of rows, and their order counts, which needs Order::Kept"
    )]
    ChangesWithoutOrder {
        /// The flow.
        flow: String,
        /// The operator.
        operator: String,
    },
    /// An operator gathers items on a rank that does not exist.
    #[error(
        "flow \"{flow}\": \"{operator}\" gathers on rank {rank}, and there are {ranks}, counted from 0"
    )]
    NoSuchRank {
        /// The flow.
        flow: String,
        /// The operator.
        operator: String,
        /// The rank that it names.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// A state of windows that another operator fills.
    #[error(
        "flow \"{flow}\": the windows that \"{operator}\" fills belong to another operator; give it a state of its own"
    )]
    StateTaken {
        /// The flow.
        flow: String,
        /// The second operator.
        operator: String,
    },
    /// A state element that cannot have the lifetime.
    #[error("flow \"{flow}\": state \"{element}\" cannot have a lifetime of {lifetime:?}: {why}")]
    Lifetime {
        /// The flow.
        flow: String,
        /// The name of the state element.
        element: String,
        /// The lifetime.
        lifetime: Duration,
        /// The reason, and the remedy.
        why: &'static str,
    },
    /// State elements that one operator cannot change together.
    #[error("flow \"{flow}\": \"{operator}\" cannot change its state elements together: {why}")]
    Elements {
        /// The flow.
        flow: String,
        /// The operator.
        operator: String,
        /// The reason, and the remedy.
        why: &'static str,
    },
    /// Two stages, two state elements, or two sinks of one name.
    #[error("flow \"{flow}\" has two elements named \"{name}\"; rename one")]
    DuplicateName {
        /// The flow.
        flow: String,
        /// The name.
        name: String,
    },
    /// Not all ranks run the same, or one of them has failed.
    #[error("flow \"{flow}\": {error}")]
    Ranks {
        /// The flow.
        flow: String,
        /// The rank, and its error.
        error: ExchangeError,
    },
    /// There is no checkpoint to resume from, or one where there should be none.
    #[error("flow \"{flow}\": {error}")]
    Checkpoint {
        /// The flow.
        flow: String,
        /// The error.
        error: Arc<dyn Error + Send + Sync>,
    },
    /// The operating system gives no thread.
    #[error("flow \"{flow}\": cannot start a worker thread: {error}")]
    Worker {
        /// The flow.
        flow: String,
        /// The error of the operating system.
        error: Arc<std::io::Error>,
    },
    /// A source or a sink reported an error.
    #[error("flow \"{flow}\": \"{operator}\" failed: {error}")]
    Operator {
        /// The flow.
        flow: String,
        /// The operator.
        operator: String,
        /// Its error.
        error: Arc<dyn Error + Send + Sync>,
    },
    /// User code panicked.
    #[error("flow \"{flow}\": \"{operator}\" panicked: {message}")]
    Panicked {
        /// The flow.
        flow: String,
        /// The operator whose code it was.
        operator: String,
        /// The message of the panic.
        message: String,
    },
}

millstream_base::debug_as_display!(FlowError);

impl FlowError {
    /// Returns the kind of the error in a few words, without names and messages: for those that may not read them.
    pub fn class(&self) -> &'static str {
        match self {
            FlowError::Operator { .. } => "an operator returned an error",
            FlowError::Panicked { .. } => "an operator panicked",
            FlowError::Ranks { .. } => "another rank failed",
            FlowError::Checkpoint { .. } => "it cannot take or read a checkpoint",
            FlowError::Worker { .. } => "the system gives it no thread",
            _ => "it is not built right",
        }
    }
}

/// The reason for which an activation ends the flow.
pub enum Failure {
    /// The error of a source or sink, with its name.
    Error { operator: Arc<str>, error: BoxError },
    /// User code panicked twice on an item, and the flow has no keeper of dead letters.
    Panicked { operator: Arc<str>, message: String },
}
