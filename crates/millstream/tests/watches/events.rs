//! A reader of server-sent events.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// The longest pause between two events, or the signs of life that take their place.
const LIMIT: Duration = Duration::from_secs(60);

pub struct Events {
    connection: BufReader<TcpStream>,
    /// The bytes that were read after the last frame.
    rest: String,
    /// The id of the last event.
    pub id: String,
}

impl Events {
    /// Begins to watch, behind the event of this id if there is one.
    pub fn open(address: SocketAddr, path: &str, id: &str) -> Events {
        let mut events = Events::try_open(address, path, id).expect("it is served");
        // Its position comes at once, unless a snapshot does.
        while events.id.is_empty() && !path.contains("snapshot") {
            events.frame().expect("a position");
        }
        events
    }

    /// The same; `None` if the server does not answer.
    pub fn try_open(address: SocketAddr, path: &str, id: &str) -> Option<Events> {
        let connection = request(address, path, id)?;
        let mut connection = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if connection.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("text/event-stream"), "{head}");
        Some(Events {
            connection,
            rest: String::new(),
            id: id.to_owned(),
        })
    }

    /// Returns the next frame; `None` at the end of the connection.
    fn frame(&mut self) -> Option<String> {
        loop {
            if let Some((frame, rest)) = self.rest.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.rest = rest;
                let mut lines = frame.lines();
                if let Some(id) = lines.find_map(|line| line.strip_prefix("id: ")) {
                    id.clone_into(&mut self.id);
                }
                return Some(frame);
            }
            let mut size = String::new();
            self.connection.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            if size == 0 {
                return None;
            }
            let mut chunk = vec![0; size + 2];
            self.connection.read_exact(&mut chunk).ok()?;
            self.rest
                .push_str(std::str::from_utf8(&chunk[..size]).ok()?);
        }
    }

    /// Returns the name and the data of the next frame, if it is an event; `None` at the end of the connection.
    pub fn try_frame(&mut self) -> Option<Option<(String, Value)>> {
        let frame = self.frame()?;
        let mut lines = frame.lines();
        let Some(name) = lines.find_map(|line| line.strip_prefix("event: ")) else {
            return Some(None);
        };
        let data = frame.lines().filter_map(|line| line.strip_prefix("data: "));
        let data = data.collect::<Vec<_>>().join("\n");
        Some(Some((
            name.to_owned(),
            serde_json::from_str(&data).unwrap(),
        )))
    }

    /// Returns the name and the data of the next event.
    #[track_caller]
    pub fn event(&mut self) -> (String, Value) {
        loop {
            if let Some(event) = self.try_frame().expect("the watch goes on") {
                return event;
            }
        }
    }

    /// Returns the data of the next change.
    #[track_caller]
    pub fn change(&mut self) -> Value {
        loop {
            match self.event() {
                (name, data) if name == "change" => return data,
                (name, data) => assert_eq!(name, "progress", "{data}"),
            }
        }
    }

    /// Returns the next change of an entry of this name, in a snapshot or not.
    #[track_caller]
    pub fn change_of(&mut self, entry: &Value) -> Value {
        loop {
            let (name, data) = self.event();
            if name == "change" && data["entry"] == *entry {
                return data;
            }
        }
    }

    /// Returns the data of the next progress, before the next change.
    #[track_caller]
    pub fn progress(&mut self) -> Value {
        let (name, data) = self.event();
        assert_eq!(name, "progress", "{data}");
        data
    }
}

fn request(address: SocketAddr, path: &str, id: &str) -> Option<TcpStream> {
    let mut connection = TcpStream::connect(address).ok()?;
    connection.set_read_timeout(Some(LIMIT)).ok()?;
    let last = match id {
        "" => String::new(),
        id => format!("Last-Event-ID: {id}\r\n"),
    };
    write!(
        connection,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\n{last}\r\n"
    )
    .ok()?;
    Some(connection)
}

/// Returns the first line of an answer that begins with this text.
pub fn line_of(address: SocketAddr, path: &str, start: &str) -> String {
    let connection = request(address, path, "").expect("it is served");
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with(start));
    line.unwrap_or_else(|| panic!("{path} has no line that begins with {start:?}"))
}

/// Returns the status and the beginning of the answer to a request that is refused.
pub fn status_of(address: SocketAddr, path: &str, id: &str) -> (u16, String) {
    let mut connection = request(address, path, id).expect("it is served");
    let mut answer = [0; 4096];
    let mut len = 0;
    while !answer[..len].ends_with(b"}") {
        match connection.read(&mut answer[len..]).expect("an answer") {
            0 => break,
            read => len += read,
        }
    }
    let answer = String::from_utf8_lossy(&answer[..len]).into_owned();
    (answer[9..12].parse().expect("a status"), answer)
}
