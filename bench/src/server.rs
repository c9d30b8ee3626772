//! The server as a process: starts, samples, kills, restarts and stops it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::proc::status_mib;
use crate::project::our_program;

/// Settings of the server, by the names that they have in its environment.
pub type Settings = Vec<(&'static str, String)>;

/// The longest times that the server may take to listen, and to end after SIGTERM.
const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Ports outside of the system's ephemeral range: a client that connects to one of them without a listener cannot
/// connect to itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// The smallest request: ApiVersions, version 0, number 1, of a client without a name.
const API_VERSIONS: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];

/// Words that the log must not have.
const ERRORS: [&str; 2] = ["ERROR", "panicked at"];

/// Begins the line that the server prints when it serves, and ends in good order when it is asked to.
const LISTENS: &str = "{\"listen\"";

pub struct Server {
    child: Child,
    address: SocketAddr,
    data: PathBuf,
    log: PathBuf,
    settings: Settings,
    /// Where the log of this process begins, in bytes.
    log_start: usize,
}

/// The resources that the process holds now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// All resident memory, and the pool's share of it, in MiB.
    pub resident_mib: f64,
    pub pool_mib: f64,
    pub sockets: usize,
    /// Files that were removed and are still open.
    pub removed_files: usize,
    pub threads: usize,
}

impl Server {
    /// Starts the server on the data in a folder of `data`, and waits until it serves. All that it prints goes to the
    /// file `log`.
    pub fn start(data: &Path, log: &Path, settings: Settings) -> Result<Server> {
        File::create(log).with_context(|| format!("cannot create {log:?}"))?;
        let address = free_address()?;
        let mut server = Server {
            child: spawn(address, data, log, &settings)?,
            address,
            data: data.to_owned(),
            log: log.to_owned(),
            settings,
            log_start: 0,
        };
        server.wait_until_it_serves()?;
        Ok(server)
    }

    /// Kills it, so that it can do nothing more.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again, on the same data and address.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch_again()?;
        self.wait_until_it_serves()
    }

    /// Starts its process again, and does not wait for it.
    pub fn launch_again(&mut self) -> Result<()> {
        self.log_start = self.log()?.len();
        self.child = spawn(self.address, &self.data, &self.log, &self.settings)?;
        Ok(())
    }

    /// Asks it to end in good order.
    ///
    /// # Errors
    /// When the server does not end, or ends with an error.
    pub fn stop(&mut self) -> Result<()> {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(id.context("it has no id")?, Signal::TERM)?;
        let asked_at = Instant::now();
        while asked_at.elapsed() < STOP_MAX {
            if let Some(status) = self.child.try_wait()? {
                ensure!(
                    status.success(),
                    "the server ended with {status} after SIGTERM"
                );
                return Ok(());
            }
            sleep(LOOK_EVERY);
        }
        bail!("the server has not ended {STOP_MAX:?} after SIGTERM")
    }

    fn wait_until_it_serves(&mut self) -> Result<()> {
        match self.outcome_of_start()? {
            None => Ok(()),
            Some(status) => bail!("the server has ended: {status}; see {:?}", self.log),
        }
    }

    /// Waits until it serves, or has ended: then this is its status. It takes its address before it opens its log, and
    /// answers after that.
    pub fn outcome_of_start(&mut self) -> Result<Option<ExitStatus>> {
        let started_at = Instant::now();
        while started_at.elapsed() < START_MAX {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if self.is_answering().is_ok() && self.printed()?.contains(LISTENS) {
                return Ok(None);
            }
            sleep(LOOK_EVERY);
        }
        bail!("the server does not answer after {START_MAX:?}")
    }

    /// All that the process has printed since it was started last.
    pub fn printed(&self) -> Result<String> {
        let log = self.log()?;
        Ok(String::from_utf8_lossy(log.get(self.log_start..).unwrap_or_default()).into_owned())
    }

    fn log(&self) -> Result<Vec<u8>> {
        fs::read(&self.log).with_context(|| format!("cannot read {:?}", self.log))
    }

    /// Asks for the versions that it speaks.
    fn is_answering(&self) -> io::Result<()> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(START_MAX))?;
        stream.write_all(&API_VERSIONS)?;
        stream.read_exact(&mut [0; 4])
    }

    /// # Errors
    /// When it has ended.
    pub fn check_it_runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the server has ended: {status}; see {:?}", self.log),
            None => Ok(()),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn sample(&self) -> Result<Sample> {
        let id = self.child.id();
        let mut sample = Sample {
            resident_mib: status_mib(id, "VmRSS")?,
            pool_mib: status_mib(id, "RssShmem")?,
            threads: fs::read_dir(format!("/proc/{id}/task"))?.count(),
            ..Sample::default()
        };
        for entry in fs::read_dir(format!("/proc/{id}/fd"))? {
            // It may have been closed since.
            let Ok(target) = fs::read_link(entry?.path()) else {
                continue;
            };
            let target = target.to_string_lossy();
            sample.sockets += usize::from(target.starts_with("socket:"));
            let is_removed = target.ends_with(" (deleted)") && !target.starts_with("/memfd:");
            sample.removed_files += usize::from(is_removed);
        }
        Ok(sample)
    }

    /// Returns the lines of the log with errors, and the number of all lines.
    pub fn log_lines(&self) -> Result<(Vec<String>, usize)> {
        let bytes = self.log()?;
        let text = String::from_utf8_lossy(&bytes);
        let is_error = |line: &&str| ERRORS.iter().any(|word| line.contains(word));
        let errors = text.lines().filter(is_error).map(str::to_owned).collect();
        Ok((errors, text.lines().count()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where it was not stopped, the run has failed.
        let _ = self.kill();
    }
}

/// The command that starts the server, with its data in a folder of `data`.
pub fn command(address: SocketAddr, data: &Path) -> Result<Command> {
    let program = our_program().context("build the program millstream first")?;
    let mut command = millstream_testing::command(program);
    command.args([
        "start",
        "--json",
        "--listen",
        &address.to_string(),
        "--data",
    ]);
    command.arg(data.join("data"));
    Ok(command)
}

fn spawn(address: SocketAddr, data: &Path, log: &Path, settings: &Settings) -> Result<Child> {
    let printed = File::options().append(true).open(log)?;
    let mut command = command(address, data)?;
    command
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed);
    command.spawn().context("cannot start the server")
}

/// A free port of this machine.
pub fn free_address() -> Result<SocketAddr> {
    for _ in 0..100 {
        let address = SocketAddr::from(([127, 0, 0, 1], fastrand::u16(PORTS)));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("there is no free port among {PORTS:?}")
}
