//! The client's side of HTTP/1.1, as much of it as loads need.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;

/// An answer is waited for at most this long.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Where the body begins, and where it ends.
    pub body: usize,
    pub end: usize,
    /// Whether the server closes the connection behind it.
    pub closes: bool,
}

/// Makes a request for a path.
pub fn get(address: SocketAddr, path: &str) -> Bytes {
    format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").into()
}

/// Reads the first answer among received bytes; `None` if it is not whole.
pub fn answer(bytes: &[u8]) -> Result<Option<Answer>> {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..head])?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.get(9..12));
    let status = status.context("an answer begins with its status")?;
    let (mut length, mut closes) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>()?);
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.eq_ignore_ascii_case("close");
        }
    }
    let body = head + 4;
    let end = body + length.context("the answer has no Content-Length")?;
    Ok((bytes.len() >= end).then_some(Answer {
        status: status.parse()?,
        body,
        end,
        closes,
    }))
}

/// A connection with one request after another.
pub struct Visitor {
    address: SocketAddr,
    stream: TcpStream,
    received: Vec<u8>,
}

impl Visitor {
    pub fn to(address: SocketAddr) -> Result<Visitor> {
        Ok(Visitor {
            address,
            stream: connect(address)?,
            received: Vec::new(),
        })
    }

    /// Returns the status and the body for a path.
    pub fn get(&mut self, path: &str) -> Result<(u16, &[u8])> {
        self.received.clear();
        self.stream.write_all(&get(self.address, path))?;
        let mut part = [0; 4096];
        loop {
            if let Some(answer) = answer(&self.received)? {
                if answer.closes {
                    self.stream = connect(self.address)?;
                }
                return Ok((answer.status, &self.received[answer.body..answer.end]));
            }
            let read = self.stream.read(&mut part)?;
            ensure!(read > 0, "the server has ended the connection");
            self.received.extend_from_slice(&part[..read]);
        }
    }
}

/// Connects to a server on this machine.
pub fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_its_body() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nConnection: close\r\n\r\nabc";
        let found = answer(whole).unwrap().unwrap();
        assert_eq!((found.status, found.closes), (200, true));
        assert_eq!(&whole[found.body..found.end], b"abc");
        for length in 0..whole.len() {
            assert_eq!(answer(&whole[..length]).unwrap(), None);
        }
        let refused = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\nHTTP/1.1";
        let found = answer(refused).unwrap().unwrap();
        assert_eq!((found.status, found.closes), (503, false));
        assert_eq!(found.end, refused.len() - 8);
        assert!(answer(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(answer(b"HTTP\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
