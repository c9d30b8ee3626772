//! Readers of changes of state as server-sent events, in a process of their own with a fixed share of a processor: each has a
//! connection, and watches another key.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

use crate::child::{self, hear, report};
use crate::clock::monotonic_ns;
use crate::fixed_share::FixedShare;
use crate::http;

/// The last changes are waited for at most this long.
const LAST_MAX: Duration = Duration::from_secs(90);

/// How much is read at once.
const READ_BYTES: usize = 16 << 10;

/// How many connections may be ready at once.
const READY_MAX: usize = 256;

/// The child process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Readers {
    pub address: SocketAddr,
    /// A path of a key for each reader.
    pub paths: Vec<String>,
    /// The share of a processor: this part of each period.
    pub period: Duration,
    pub part: Duration,
}

/// The last number that each reader waits for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Until {
    pub last: Vec<u64>,
}

/// The changes that a reader has received: the number in the value, and the time of the monotonic clock.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Received {
    pub changes: Vec<(u64, u64)>,
}

impl child::Task for Readers {
    const NAME: &'static str = "serving/readers";

    fn run(self) -> Result<()> {
        let mut reading = Reading::connect(&self)?;
        // The watches have begun when all know their position.
        let share = &mut FixedShare::new(self.period, self.part)?;
        reading.run(share, |reader, _| reader.has_begun)?;
        report(&())?;
        let until: Until = hear()?.context("the parent has ended")?;
        reading.run(share, |reader, number| {
            let last = reader.received.changes.last().map(|(number, _)| *number);
            last >= Some(until.last[number])
        })?;
        let received: Vec<Received> = reading
            .readers
            .into_iter()
            .map(|reader| reader.received)
            .collect();
        report(&received)
    }
}

struct Reading {
    ready: OwnedFd,
    readers: Vec<Reader>,
}

struct Reader {
    stream: TcpStream,
    /// Bytes that are no whole event yet.
    rest: Vec<u8>,
    has_begun: bool,
    received: Received,
}

impl Reading {
    fn connect(readers: &Readers) -> Result<Reading> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let connect = |(number, path): (usize, &String)| {
            let mut stream = http::connect(readers.address)?;
            stream.write_all(&http::get(readers.address, path))?;
            stream.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&ready, &stream, data, epoll::EventFlags::IN)?;
            Ok(Reader {
                stream,
                rest: Vec::new(),
                has_begun: false,
                received: Received::default(),
            })
        };
        let connected = readers.paths.iter().enumerate().map(connect);
        let readers = connected.collect::<Result<_>>()?;
        Ok(Reading { ready, readers })
    }

    /// Receives until all readers are done.
    fn run(
        &mut self,
        share: &mut FixedShare,
        is_done: impl Fn(&Reader, usize) -> bool,
    ) -> Result<()> {
        const AT_ONCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut part = vec![0; READ_BYTES];
        let mut events = Vec::with_capacity(READY_MAX);
        let mut done: Vec<bool> = self.readers.iter().map(|_| false).collect();
        for (number, reader) in self.readers.iter().enumerate() {
            done[number] = is_done(reader, number);
        }
        let mut left = done.iter().filter(|is_done| !**is_done).count();
        let mut received_at = Instant::now();
        while left > 0 {
            ensure!(
                received_at.elapsed() < LAST_MAX,
                "{left} readers miss changes"
            );
            share.wait();
            while left > 0 && !share.is_over() {
                epoll::wait(&self.ready, spare_capacity(&mut events), Some(&AT_ONCE))?;
                for event in events.drain(..) {
                    let data = event.data;
                    let number = data.u64() as usize;
                    let reader = &mut self.readers[number];
                    reader.receive(&mut part)?;
                    received_at = Instant::now();
                    if !done[number] && is_done(reader, number) {
                        done[number] = true;
                        left -= 1;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Reader {
    fn receive(&mut self, part: &mut [u8]) -> Result<()> {
        match self.stream.read(part) {
            Ok(0) => bail!("the server has ended a watch: {}", self.text()),
            Ok(read) => self.rest.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let at = monotonic_ns();
        let mut begin = 0;
        while let Some(length) = self.rest[begin..].windows(2).position(|two| two == b"\n\n") {
            let frame = std::str::from_utf8(&self.rest[begin..begin + length])?;
            begin += length + 2;
            self.has_begun |= frame.contains("\nid: ");
            ensure!(
                !frame.contains("event: end") && !frame.contains("event: reset"),
                "a watch has ended: {frame}"
            );
            if let Some(number) = number_of(frame)? {
                self.received.changes.push((number, at));
            }
        }
        self.rest.drain(..begin);
        ensure!(
            self.has_begun || !self.rest.starts_with(b"HTTP/1.1 5"),
            "the server refuses a watch: {}",
            self.text()
        );
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.rest).into_owned()
    }
}

/// Returns the number in the value of a change; `None` for other events.
fn number_of(frame: &str) -> Result<Option<u64>> {
    if !frame.contains("event: change") {
        return Ok(None);
    }
    let (_, value) = frame
        .split_once("\"value\":")
        .context("a change has a value")?;
    let end = value.find(|digit: char| !digit.is_ascii_digit());
    let digits = &value[..end.unwrap_or(value.len())];
    Ok(Some(digits.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_the_number_of_its_value() {
        let change =
            "5e\r\nevent: change\nid: 01ab\ndata: {\"key\":\"7\",\"version\":3,\"value\":120}";
        assert_eq!(number_of(change).unwrap(), Some(120));
        assert_eq!(number_of("event: progress\ndata: {}").unwrap(), None);
        assert!(number_of("event: change\ndata: {}").is_err());
    }
}
