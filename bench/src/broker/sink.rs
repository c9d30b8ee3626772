//! The limit: a server that reads each frame into one buffer, does nothing with it, and answers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Result, ensure};
use bytes::Bytes;
use millstream_wire::FRAME_HEADER_BYTES;

/// With the length before it.
const ANSWER: [u8; 16] = [0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Starts a sink for one connection after another, each until its client leaves. It ends with the program.
pub fn start() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The client sees a failure as the end of the connection.
            thread::spawn(move || swallow(stream));
        }
    });
    Ok(address)
}

fn swallow(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let mut length = [0; FRAME_HEADER_BYTES];
        stream.read_exact(&mut length)?;
        buffer.resize(u32::from_be_bytes(length) as usize, 0);
        stream.read_exact(&mut buffer)?;
        stream.write_all(&ANSWER)?;
    }
}

/// Returns whether an answer is a sink's.
pub fn check(answer: Bytes) -> Result<()> {
    let expected = ANSWER.len() - FRAME_HEADER_BYTES;
    ensure!(answer.len() == expected, "no answer of the sink");
    Ok(())
}
