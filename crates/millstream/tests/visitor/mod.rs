//! A visitor of an HTTP server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest time of any answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the status and the body of a GET.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut visitor = TcpStream::connect(address).unwrap();
    visitor.set_read_timeout(Some(LIMIT)).unwrap();
    write!(
        visitor,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    visitor.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}
