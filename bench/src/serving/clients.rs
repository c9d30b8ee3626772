//! Clients with connections to a server, in a process of their own: each asks for one thing after another. The process has a
//! fixed share of a processor.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use fastrand::Rng;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::time::{ClockId, Timespec};
use serde::{Deserialize, Serialize};

use crate::child::{self, Working, hear, report};
use crate::clock::cpu_s;
use crate::fixed_share::FixedShare;
use crate::http;
use crate::keys::valkey;
use crate::measure::percentile;

/// Answers are waited for at most this long after the last request.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(60);

/// How much is read at once.
const READ_BYTES: usize = 4 << 10;

/// How many connections may be ready at once.
const READY_MAX: usize = 64;

/// The answer of a server that admits no further requests.
const OVERLOADED: u16 = 503;

/// The child process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Clients {
    pub address: SocketAddr,
    pub connections: usize,
    pub asks: Asks,
    /// The share of a processor: this part of each period.
    pub period: Duration,
    pub part: Duration,
}

/// The things that clients ask for: random ones of this number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Asks {
    /// A path: this text with a number behind it.
    Path { before: String, numbers: u64 },
    /// The value of a key of Valkey, which is a number.
    Valkey { numbers: u64 },
}

/// A phase of the clients' work, which the parent asks for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Phase {
    /// Requests in a second of all clients together, at random times; without it each client asks again as soon as it has
    /// its answer.
    pub per_second: Option<f64>,
    pub lasts: Duration,
}

/// The figures of a phase. Latencies are those of answered requests, from the time when they were due.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Answered {
    /// Answers in the time of the phase, in a second.
    pub per_second: f64,
    /// Requests that the server refused, in percent of all.
    pub refused_percent: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// How late requests were sent, although their connection was free.
    pub late_p99_ms: f64,
    /// The processor time of the clients.
    pub cpu_s: f64,
}

/// Lets clients that work run a phase.
pub fn run(clients: &mut Working, phase: Phase) -> Result<Answered> {
    clients.send(&phase)?;
    clients.hear()
}

impl child::Task for Clients {
    const NAME: &'static str = "serving/clients";

    fn run(self) -> Result<()> {
        let mut asking = Asking::connect(&self)?;
        while let Some(phase) = hear()? {
            report(&asking.run(phase)?)?;
        }
        Ok(())
    }
}

impl Asks {
    fn request(&self, address: SocketAddr, rng: &mut Rng) -> Bytes {
        match self {
            Asks::Path { before, numbers } => {
                http::get(address, &format!("{before}{}", rng.u64(..numbers)))
            }
            Asks::Valkey { numbers } => {
                let key = rng.u64(..numbers).to_string();
                valkey::command(&[b"GET", key.as_bytes()])
            }
        }
    }

    /// Reads the first answer among received bytes; `None` if it is not whole.
    fn answer(&self, bytes: &[u8]) -> Result<Option<Outcome>> {
        match self {
            Asks::Valkey { .. } => Ok(valkey::answer(bytes)?.map(|length| Outcome {
                length,
                is_refused: false,
                closes: false,
            })),
            Asks::Path { .. } => {
                let Some(answer) = http::answer(bytes)? else {
                    return Ok(None);
                };
                let is_known = matches!(answer.status, 200 | OVERLOADED);
                let text = || String::from_utf8_lossy(&bytes[..answer.end]).into_owned();
                ensure!(is_known, "the server answers {}", text());
                Ok(Some(Outcome {
                    length: answer.end,
                    is_refused: answer.status == OVERLOADED,
                    closes: answer.closes,
                }))
            }
        }
    }
}

/// An answer, as clients see it.
struct Outcome {
    length: usize,
    is_refused: bool,
    /// Whether the server closes the connection behind it.
    closes: bool,
}

/// The connections of the clients.
struct Asking<'a> {
    clients: &'a Clients,
    rng: Rng,
    ready: OwnedFd,
    connections: Vec<Connection>,
    share: FixedShare,
}

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    /// The request that has no answer yet, and when it was due, in seconds since the beginning of the phase.
    asked: Option<(Bytes, f64)>,
    /// When further requests were due.
    due_s: VecDeque<f64>,
}

/// The phase that runs.
struct Running {
    phase: Phase,
    began_at: Instant,
    /// When the next request is due, in seconds.
    next_s: f64,
    unanswered: usize,
    took_s: Vec<f64>,
    /// Answers within the time of the phase.
    in_time: usize,
    refused: usize,
    late_s: Vec<f64>,
}

impl Running {
    fn now_s(&self) -> f64 {
        self.began_at.elapsed().as_secs_f64()
    }

    fn is_over(&self) -> bool {
        self.began_at.elapsed() >= self.phase.lasts
    }

    fn answered(&mut self, outcome: &Outcome, due_s: f64) {
        self.unanswered -= 1;
        if outcome.is_refused {
            self.refused += 1;
            return;
        }
        self.took_s.push(self.now_s() - due_s);
        self.in_time += usize::from(!self.is_over());
    }
}

impl<'a> Asking<'a> {
    fn connect(clients: &'a Clients) -> Result<Asking<'a>> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let connections = (0..clients.connections).map(|number| {
            Ok(Connection {
                stream: connect(clients.address, &ready, number)?,
                received: Vec::with_capacity(READ_BYTES),
                asked: None,
                due_s: VecDeque::new(),
            })
        });
        Ok(Asking {
            connections: connections.collect::<Result<_>>()?,
            clients,
            rng: Rng::with_seed(1),
            ready,
            share: FixedShare::new(clients.period, clients.part)?,
        })
    }

    fn run(&mut self, phase: Phase) -> Result<Answered> {
        let cpu_before = cpu_s(ClockId::ProcessCPUTime);
        let mut running = Running {
            phase,
            began_at: Instant::now(),
            next_s: 0.0,
            unanswered: 0,
            took_s: Vec::new(),
            in_time: 0,
            refused: 0,
            late_s: Vec::new(),
        };
        if phase.per_second.is_none() {
            for number in 0..self.connections.len() {
                self.ask(number, 0.0)?;
            }
            running.unanswered = self.connections.len();
        }
        let ends_by = phase.lasts + LAST_ANSWERS_MAX;
        while !running.is_over() || running.unanswered > 0 {
            ensure!(
                running.began_at.elapsed() < ends_by,
                "{} requests have no answer",
                running.unanswered
            );
            self.turn(&mut running)?;
        }
        let seconds = phase.lasts.as_secs_f64();
        let requests = running.took_s.len() + running.refused;
        ensure!(!running.took_s.is_empty(), "nothing was answered");
        let late = match running.late_s.is_empty() {
            true => 0.0,
            false => percentile(running.late_s, 99.0),
        };
        Ok(Answered {
            per_second: running.in_time as f64 / seconds,
            refused_percent: 100.0 * running.refused as f64 / requests as f64,
            p50_ms: 1e3 * percentile(running.took_s.clone(), 50.0),
            p99_ms: 1e3 * percentile(running.took_s, 99.0),
            late_p99_ms: 1e3 * late,
            cpu_s: cpu_s(ClockId::ProcessCPUTime) - cpu_before,
        })
    }

    /// Sends and receives for the part of a period.
    fn turn(&mut self, running: &mut Running) -> Result<()> {
        self.share.wait();
        while !self.share.is_over() {
            self.send_due(running)?;
            self.receive(running)?;
        }
        Ok(())
    }

    /// Sends the requests that are due, each on the connection of a random client.
    fn send_due(&mut self, running: &mut Running) -> Result<()> {
        let Some(per_second) = running.phase.per_second else {
            return Ok(());
        };
        let lasts_s = running.phase.lasts.as_secs_f64();
        while running.next_s <= running.now_s() && running.next_s < lasts_s {
            let due_s = running.next_s;
            running.next_s -= self.rng.f64().max(f64::MIN_POSITIVE).ln() / per_second;
            let number = self.rng.usize(..self.connections.len());
            let connection = &mut self.connections[number];
            if connection.asked.is_some() {
                connection.due_s.push_back(due_s);
                running.unanswered += 1;
            } else {
                running.late_s.push(running.now_s() - due_s);
                running.unanswered += 1;
                self.ask(number, due_s)?;
            }
        }
        Ok(())
    }

    /// Sends a request on a connection that has none.
    fn ask(&mut self, number: usize, due_s: f64) -> Result<()> {
        let request = self
            .clients
            .asks
            .request(self.clients.address, &mut self.rng);
        let connection = &mut self.connections[number];
        connection.asked = Some((request, due_s));
        self.send(number)
    }

    /// Sends the request of a connection; on a new one if the server has closed it meanwhile.
    fn send(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let (request, _) = connection.asked.as_ref().context("there is a request")?;
        match connection.stream.write(request) {
            Ok(sent) => ensure!(sent == request.len(), "the system takes no whole request"),
            Err(error) if is_end(error.kind()) => {
                let request = request.clone();
                connection.stream = connect(self.clients.address, &self.ready, number)?;
                let sent = connection.stream.write(&request)?;
                ensure!(sent == request.len(), "the system takes no whole request");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Takes in the answers that have arrived.
    fn receive(&mut self, running: &mut Running) -> Result<()> {
        const AT_ONCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut events = Vec::with_capacity(READY_MAX);
        epoll::wait(&self.ready, spare_capacity(&mut events), Some(&AT_ONCE))?;
        for event in events {
            let data = event.data;
            self.receive_on(data.u64() as usize, running)?;
        }
        Ok(())
    }

    fn receive_on(&mut self, number: usize, running: &mut Running) -> Result<()> {
        let connection = &mut self.connections[number];
        let mut part = [0; READ_BYTES];
        let is_closed = match connection.stream.read(&mut part) {
            Ok(read) => {
                connection.received.extend_from_slice(&part[..read]);
                read == 0
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if is_end(error.kind()) => true,
            Err(error) => return Err(error.into()),
        };
        if is_closed {
            return self.connect_again(number);
        }
        let Some((_, due_s)) = connection.asked else {
            bail!("an answer without a request");
        };
        let Some(outcome) = self.clients.asks.answer(&connection.received)? else {
            return Ok(());
        };
        ensure!(
            outcome.length == connection.received.len(),
            "there are more answers than requests"
        );
        connection.received.clear();
        connection.asked = None;
        running.answered(&outcome, due_s);
        if outcome.closes {
            connection.stream = connect(self.clients.address, &self.ready, number)?;
        }
        let next_s = match running.phase.per_second {
            Some(_) => connection.due_s.pop_front(),
            None if running.is_over() => None,
            None => {
                running.unanswered += 1;
                Some(running.now_s())
            }
        };
        match next_s {
            Some(due_s) => self.ask(number, due_s),
            None => Ok(()),
        }
    }

    /// The server has closed a connection: that is its right between two answers.
    fn connect_again(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        ensure!(
            connection.received.is_empty(),
            "the server has closed a connection in an answer"
        );
        connection.stream = connect(self.clients.address, &self.ready, number)?;
        match connection.asked {
            Some(_) => self.send(number),
            None => Ok(()),
        }
    }
}

/// Connects, and tells the kernel to report answers under this number.
fn connect(address: SocketAddr, ready: &OwnedFd, number: usize) -> Result<TcpStream> {
    let stream = http::connect(address)?;
    stream.set_nonblocking(true)?;
    let data = epoll::EventData::new_u64(number as u64);
    epoll::add(ready, &stream, data, epoll::EventFlags::IN)?;
    Ok(stream)
}

fn is_end(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Starts a server that takes this time for an answer, and refuses each second request of a connection if `refuses`. It closes
    /// each connection after ten answers. The threads end with their clients, and the last one with the test.
    fn serve(takes: Duration, refuses: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answer = move |mut stream: TcpStream| -> std::io::Result<()> {
            for number in 0..10 {
                let mut received = Vec::new();
                while !received.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    received.push(byte[0]);
                }
                thread::sleep(takes);
                let status = match refuses && number % 2 == 1 {
                    true => "503 Service Unavailable",
                    false => "200 OK",
                };
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 1\r\n\r\n1")?;
            }
            Ok(())
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || answer(stream));
            }
        });
        address
    }

    fn clients(address: SocketAddr, connections: usize) -> Clients {
        Clients {
            address,
            connections,
            asks: Asks::Path {
                before: "/key/".to_owned(),
                numbers: 10,
            },
            period: Duration::from_millis(1),
            part: Duration::from_micros(300),
        }
    }

    fn phase(per_second: Option<f64>, ms: u64) -> Phase {
        Phase {
            per_second,
            lasts: Duration::from_millis(ms),
        }
    }

    #[test]
    fn requests_come_at_the_rate_and_the_latency_begins_when_they_are_due() -> Result<()> {
        let clients = clients(serve(Duration::from_millis(20), false), 1);
        let mut asking = Asking::connect(&clients)?;
        // The server answers half as many in a second, so the last requests wait for half a second.
        let late = asking.run(phase(Some(100.0), 500))?;
        assert!(late.p99_ms > 200.0 && late.per_second < 60.0, "{late:?}");
        // The server is fast enough for these.
        let timely = asking.run(phase(Some(5.0), 1_000))?;
        assert!(timely.p50_ms < late.p99_ms, "{timely:?}, {late:?}");
        Ok(())
    }

    #[test]
    fn refused_requests_have_no_latency() -> Result<()> {
        let clients = clients(serve(Duration::ZERO, true), 4);
        let mut asking = Asking::connect(&clients)?;
        let answered = asking.run(phase(None, 200))?;
        let refused = answered.refused_percent;
        assert!((40.0..=60.0).contains(&refused), "{answered:?}");
        assert!(answered.per_second > 0.0 && answered.p50_ms > 0.0);
        Ok(())
    }
}
