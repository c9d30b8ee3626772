//! The command line of an application.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::{Args, Parser, ValueEnum};
use millstream_exchange::{ExchangeError, Ranks};
use millstream_flow::{FlowSettings, Resume};
use millstream_node::ServedNode;
use millstream_serve::Server;
use tracing_subscriber::filter::LevelFilter;

use crate::error::Error;
use crate::flow_builder::Flow;
use crate::job::Job;
use crate::listen::{ListenOptions, bind};
use crate::node::Node;
use crate::running::{Begun, serve};

/// The exit code of a process that a second signal ends: 128 + SIGINT, as shells have it.
const INTERRUPTED: i32 = 130;

/// The command line of an application with the options `A` of its own.
#[derive(Debug, Parser)]
#[command(about = None, version = env!("CARGO_PKG_VERSION"))]
struct Line<A: Args> {
    #[command(flatten)]
    own: A,
    #[command(flatten)]
    options: Options,
}

/// No options of its own.
#[derive(Debug, Args)]
#[command(about = None)]
struct NoOptions {}

/// The options that every application has. They are no group of clap's, since an application may have a type of this name.
#[derive(Debug, Args)]
#[command(about = None)]
#[group(skip)]
struct Options {
    /// The server that has the topics
    #[arg(long, value_name = "HOST:PORT", default_value = "localhost:9092")]
    server: String,
    /// A data directory that this process opens itself, in place of a server
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    data: Option<PathBuf>,
    #[command(flatten)]
    listen: ListenOptions,
    /// Run on this number of ranks, as threads of this process; mpirun and srun start ranks as processes
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,
    /// Serve the page, the state and the metrics over HTTP at this address, with --listen also the keys of topics; other
    /// machines must not reach it without --authentication, since visitors do not log in
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,
    /// End at the present ends of the topics, in place of waiting for further records
    #[arg(long)]
    until_now: bool,
    /// Whether to go on from the last checkpoint
    #[arg(long, value_enum, default_value_t = When::IfAny)]
    resume: When,
}

/// Whether a flow resumes from its last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    /// If there is one
    IfAny,
    /// There must be one
    Always,
    /// There must be none
    Never,
}

/// A rank of an application that [`main`] runs.
pub struct App {
    node: Node,
    resume: Resume,
    until_now: bool,
    settings: FlowSettings,
}

impl App {
    /// Returns the node that the command line names.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the number of ranks of the application: threads of this process, or processes.
    pub fn ranks(&self) -> u32 {
        self.settings.ranks.count()
    }

    /// Returns an empty flow with the settings of the command line. Its name also names its checkpoints, its state and
    /// its transactions.
    pub fn flow(&self, name: &str) -> Flow {
        let flow = Flow::with_settings(name, self.settings.clone()).resume(self.resume);
        match self.until_now {
            true => flow.until_now(),
            false => flow,
        }
    }
}

/// Runs an application with the options of the command line: the node (`--server` or `--data`), `--listen`, `--ranks`, `--http`,
/// `--until-now` and `--resume`; `--help` lists them. `flow` builds the same flow on each rank, or several ones in the same
/// order, as an array or a [`Job`], which one HTTP server serves. The first Ctrl-C stops
/// the flow behind its last checkpoint, and a second one ends the process. Warnings go to stderr, or all from the level on
/// that the environment variable `MILLSTREAM_LOG` names, as `debug`. An error is printed, and makes the exit code 1.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     millstream::main(|app| {
///         let node = app.node();
///         let lines = app.flow("upper").read(node.topic("lines").text());
///         Ok(lines.map(|line| line.to_uppercase()).write(node.topic("upper").text()))
///     })
/// }
/// ```
pub fn main<J: Into<Job>>(flow: impl Fn(&App) -> Result<J, Error> + Sync) -> ExitCode {
    main_with(|app, _: &NoOptions| flow(app))
}

/// As [`main`], for an application with options of its own, which `--help` lists first.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use clap::Args;
///
/// #[derive(Args)]
/// struct Options {
///     /// Keep the lines with this word
///     #[arg(long)]
///     word: String,
/// }
///
/// fn main() -> ExitCode {
///     millstream::main_with(|app, options: &Options| {
///         let (node, word) = (app.node(), options.word.clone());
///         let lines = app.flow("search").read(node.topic("lines").text());
///         Ok(lines.filter(move |line| line.contains(&word)).write(node.topic("found").text()))
///     })
/// }
/// ```
pub fn main_with<A: Args + Sync, J: Into<Job>>(
    flow: impl Fn(&App, &A) -> Result<J, Error> + Sync,
) -> ExitCode {
    let Line { own, options } = Line::<A>::parse();
    let flow = |app: &App| -> Result<Job, Error> { flow(app, &own).map(Into::into) };
    match write_events().and_then(|()| run(&options, &flow)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes events to stderr, unless the program has a subscriber of its own.
fn write_events() -> Result<(), Error> {
    let level = match std::env::var_os("MILLSTREAM_LOG") {
        Some(level) => {
            let level = level.to_string_lossy();
            level
                .parse()
                .map_err(|_| Error::LogLevel(level.into_owned()))?
        }
        None => LevelFilter::WARN,
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        // A failed write to stderr would panic otherwise.
        .log_internal_errors(false)
        .with_writer(io::stderr)
        .finish();
    let _ = tracing::subscriber::set_global_default(lines);
    Ok(())
}

/// The parts of a process around its flows. HTTP ends first, then the broker, which so answers clients until the flows have
/// committed their last checkpoints, then the log.
struct Open {
    _http: Option<Server>,
    _served: Option<ServedNode>,
    node: Node,
}

/// Opens the node, and serves it and the flows. An address may be in use: then nothing is made on disk, and no rank begins.
fn open(options: &Options, ranks: &[Ranks], begun: &Begun) -> Result<Open, Error> {
    // Only one process serves the flow, wherever the others run.
    let http = options
        .http
        .filter(|_| ranks.iter().any(|ranks| ranks.rank() == 0));
    let listen = options.listen.config()?;
    let bound = listen.map(|config| bind(config, http)).transpose()?;
    let scheme = match &bound {
        Some(bound) if bound.has_tls() => "https",
        _ => "http",
    };
    let http = http.map(|address| match &bound {
        Some(bound) => bound.serve_http(begun, address),
        None => serve(begun, address),
    });
    let http = http.transpose()?;
    let node = match &options.data {
        Some(dir) => Node::embedded(dir),
        None => Node::connect(&options.server),
    }?;
    let served = bound.map(|bound| bound.serve(&node)).transpose()?;
    if let Some(served) = &served {
        let addresses = served.server().local_addresses().iter();
        let addresses: Vec<_> = addresses.map(SocketAddr::to_string).collect();
        eprintln!("listening on {}", addresses.join(" and "));
    }
    if let Some(http) = &http {
        eprintln!("watch it at {scheme}://{}/", http.local_address());
    }
    Ok(Open {
        _http: http,
        _served: served,
        node,
    })
}

fn run(
    options: &Options,
    flow: &(impl Fn(&App) -> Result<Job, Error> + Sync),
) -> Result<(), Error> {
    let stop = stop_on_signals()?;
    let ranks = match options.ranks {
        Some(count) => Ranks::threads(count),
        None => vec![Ranks::from_environment()?],
    };
    let begun = Begun::default();
    let open = open(options, &ranks, &begun).inspect_err(|error| fail(&ranks, error))?;
    let in_process = ranks.len();
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|ranks| {
                let (node, begun, stop) = (open.node.clone(), &begun, &stop);
                scope.spawn(move || {
                    let app = App {
                        node,
                        resume: options.resume.into(),
                        until_now: options.until_now,
                        settings: settings(&ranks, in_process),
                    };
                    let ran = flow(&app).and_then(|job| {
                        let running = job.start_in(begun)?;
                        running.join(|| stop.load(Ordering::Relaxed))
                    });
                    let ran = ran.inspect_err(|error| ranks.fail(&error.to_string()));
                    ran.and_then(|()| Ok(ranks.leave()?))
                })
            })
            .collect();
        let mut result = Ok(());
        for thread in threads {
            let ended = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    })
}

/// Tells ranks in other processes why this process ends before it begins.
fn fail(ranks: &[Ranks], error: &Error) {
    ranks
        .iter()
        .for_each(|ranks| ranks.fail(&error.to_string()));
}

/// The workers of the machine are shared by the ranks in this process.
fn settings(ranks: &Ranks, in_process: usize) -> FlowSettings {
    let settings = FlowSettings::default();
    let workers = (settings.workers.get() / in_process).max(1);
    FlowSettings {
        workers: workers.try_into().unwrap_or(settings.workers),
        ranks: ranks.clone(),
        ..settings
    }
}

fn stop_on_signals() -> Result<Arc<AtomicBool>, Error> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Registered first: the first signal finds the flag not set yet.
        let flag = Arc::clone(&stop);
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, flag)?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

impl From<When> for Resume {
    fn from(when: When) -> Resume {
        match when {
            When::IfAny => Resume::IfAny,
            When::Always => Resume::Always,
            When::Never => Resume::Never,
        }
    }
}

impl From<ExchangeError> for Error {
    fn from(error: ExchangeError) -> Error {
        Error::Ranks(error)
    }
}
