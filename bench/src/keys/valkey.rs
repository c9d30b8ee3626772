//! Valkey: its server, and its protocol (RESP 2).

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;

use super::load::{self, Requests};
use crate::folder::Folder;
use crate::measure::Bench;
use crate::project::{is_built, peer};
use crate::server::free_address;

/// The server that `bench/peers/setup.sh` installs.
const PROGRAM: &str = "valkey/valkey-server";

const START_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// When the server writes to its file, and syncs it (`appendfsync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    EverySecond,
    /// Before each answer.
    Always,
}

/// A server that runs. It ends with this.
pub struct Valkey {
    child: Child,
    pub address: SocketAddr,
    _data: Folder,
}

/// Returns whether it is installed, and prints a line if not.
pub fn has_valkey() -> bool {
    is_built(PROGRAM, "Valkey")
}

impl Valkey {
    /// Starts a server with an empty folder, and waits until it answers.
    pub fn start(bench: &Bench, name: &str, sync: Sync) -> Result<Valkey> {
        let address = free_address()?;
        let data = bench.folder(name, 2 << 30)?;
        let mut command = millstream_testing::command(peer(PROGRAM));
        let sync = match sync {
            Sync::EverySecond => "everysec",
            Sync::Always => "always",
        };
        let child = command
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
            // Millstream rewrites nothing meanwhile, either.
            .args(["--appendfsync", sync, "--auto-aof-rewrite-percentage", "0"])
            .args(["--port", &address.port().to_string(), "--dir"])
            .arg(data.path())
            .stdin(Stdio::null())
            .stdout(File::create(data.path().join("valkey.log"))?)
            .spawn()
            .context("cannot start Valkey")?;
        let mut valkey = Valkey {
            child,
            address,
            _data: data,
        };
        valkey.wait_until_it_answers()?;
        Ok(valkey)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let ping = Requests {
            batches: vec![command(&[b"PING"])],
            answers: 1,
        };
        let started_at = Instant::now();
        while started_at.elapsed() < START_MAX {
            if let Some(status) = self.child.try_wait()? {
                bail!("Valkey has ended: {status}");
            }
            if load::run_once(self.address, &ping, &answer).is_ok() {
                return Ok(());
            }
            sleep(LOOK_EVERY);
        }
        bail!("Valkey does not answer")
    }
}

impl Drop for Valkey {
    fn drop(&mut self) {
        // Its data goes with it, so nothing is lost.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Encodes a command with its arguments.
pub fn command(words: &[&[u8]]) -> Bytes {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.into()
}

/// Checks the first answer: any value, but no error and no absent key.
pub fn answer(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(line) = bytes.windows(2).position(|two| two == b"\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes[..line]);
    let behind = line + 2;
    let number = || -> Result<usize> {
        let number = text[1..].parse::<i64>()?;
        usize::try_from(number).with_context(|| format!("Valkey answers {text}"))
    };
    match bytes[0] {
        b'+' | b':' => Ok(Some(behind)),
        b'$' => {
            let end = behind + number()? + 2;
            Ok((bytes.len() >= end).then_some(end))
        }
        b'*' => {
            let mut end = behind;
            for _ in 0..number()? {
                match answer(&bytes[end..])? {
                    Some(length) => end += length,
                    None => return Ok(None),
                }
            }
            Ok(Some(end))
        }
        _ => bail!("Valkey answers {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_encoded_and_answers_measured() {
        let set = command(&[b"SET", b"a", b""]);
        assert_eq!(&set[..], b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$0\r\n\r\n");
        for whole in [
            "+OK\r\n",
            ":1\r\n",
            "$3\r\nabc\r\n",
            "*2\r\n$1\r\na\r\n+b\r\n",
        ] {
            let with_next = format!("{whole}+");
            assert_eq!(answer(with_next.as_bytes()).unwrap(), Some(whole.len()));
            for length in 0..whole.len() {
                assert_eq!(answer(&whole.as_bytes()[..length]).unwrap(), None);
            }
        }
        for refused in ["-ERR no\r\n", "$-1\r\n", "*1\r\n$-1\r\n"] {
            assert!(answer(refused.as_bytes()).is_err(), "{refused}");
        }
    }
}
