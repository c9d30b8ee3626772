//! Clients that use keys by native requests and over HTTP.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use millstream_base::Offset;
use millstream_client::{
    Client, ClientConfig, ClientError, Expected, KeyChange, KeyRange, KeyVersion, KeyedStream,
    NewValue, ResponseError,
};
use millstream_testing::linearizable::{KeyAnswer, KeyCall, KeyCondition};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The stream. No other test uses this name, should its server listen where one of this test has listened before.
pub const STREAM: &str = "linearizable";

/// The keys that are scanned begin with this.
pub const SCANNED: &str = "key-";

/// The status of a change that is refused since a record of its key is in an open transaction.
const IN_TRANSACTION: u16 = 409;

/// The time for an answer, or for the end of the connection.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A request of a client, with its calls.
#[derive(Debug, Clone)]
pub struct Request {
    pub kind: Kind,
    pub calls: Vec<(&'static str, KeyCall)>,
}

#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// One call.
    Alone,
    /// Looks up several keys. Over HTTP, scans all.
    GetMany,
    /// Scans the keys that begin with [`SCANNED`].
    Scan,
    /// Makes all changes or none.
    Together,
}

/// The outcome of a request, as its client sees it.
#[derive(Debug)]
pub enum Outcome {
    /// The answers to its calls.
    Answered(Vec<KeyAnswer>),
    /// It was certainly not made.
    Refused,
    /// It was not sent.
    NotSent,
    /// It takes effect at some time, or never.
    Lost,
}

/// A client of a server.
pub trait Door {
    fn ask(&mut self, request: &Request) -> Outcome;
}

fn changed(version: Option<u64>, sum: Option<i64>) -> KeyAnswer {
    KeyAnswer::Changed { version, sum }
}

fn number(text: &[u8]) -> i64 {
    let text = std::str::from_utf8(text).unwrap();
    text.parse().expect(text)
}

/// The Rust client.
pub struct Native {
    runtime: Handle,
    keys: KeyedStream,
}

impl Native {
    pub fn new(runtime: &Handle, address: &str) -> Native {
        let _entered = runtime.enter();
        Native {
            runtime: runtime.clone(),
            keys: Client::new(ClientConfig::new(address)).keyed(STREAM),
        }
    }

    async fn answers(&self, request: &Request) -> Result<Vec<KeyAnswer>, ClientError> {
        let keys: Vec<&str> = request.calls.iter().map(|(key, _)| *key).collect();
        let found = |newest: Option<KeyVersion>| {
            let found = newest.map(|newest| (number(&newest.value), newest.version.0));
            KeyAnswer::Found(found)
        };
        match request.kind {
            Kind::Alone => match request.calls[0] {
                (key, KeyCall::Get) => Ok(vec![found(self.keys.get(key).await?)]),
                (key, call) => Ok(vec![self.write(key, call).await?]),
            },
            Kind::GetMany => {
                let newest = self.keys.get_many(&keys).await?;
                Ok(newest.into_iter().map(found).collect())
            }
            Kind::Scan => {
                let mut answers = vec![KeyAnswer::Found(None); keys.len()];
                let mut scan = self.keys.scan(KeyRange::prefix(SCANNED));
                while let Some(entry) = scan.next().await? {
                    let place = keys.iter().position(|key| key.as_bytes() == entry.key);
                    answers[place.unwrap()] = found(Some(entry.newest));
                }
                Ok(answers)
            }
            Kind::Together => {
                let changes = request.calls.iter();
                let changes = changes.map(|(key, call)| KeyChange {
                    key: (*key).into(),
                    expected: expected(*call),
                    change: new_value(*call),
                    ttl: None,
                    secondary: Vec::new(),
                });
                let changes: Vec<KeyChange> = changes.collect();
                let made = self.keys.change_together(&changes).await?.into_iter();
                let made = made.map(|made| changed(Some(made.stored.version.0), made.sum));
                Ok(made.collect())
            }
        }
    }

    async fn write(&self, key: &str, call: KeyCall) -> Result<KeyAnswer, ClientError> {
        let (keys, expected) = (&self.keys, expected(call));
        let written = match (new_value(call), expected) {
            (NewValue::Put(value), None) => keys.put(key, value).await,
            (NewValue::Put(value), Some(expected)) => keys.put_if(key, value, expected).await,
            (NewValue::Delete, None) => keys.delete(key).await,
            (NewValue::Delete, Some(Expected::Version(version))) => {
                keys.delete_if(key, version).await
            }
            (NewValue::Add(number), None) => {
                let (stored, sum) = keys.add(key, number).await?;
                return Ok(changed(Some(stored.version.0), Some(sum)));
            }
            (change, expected) => panic!("no client has {change:?} if {expected:?}"),
        };
        match written {
            Ok(stored) => Ok(changed(Some(stored.version.0), None)),
            Err(ClientError::OtherVersion { newest, .. }) => {
                Ok(KeyAnswer::OtherVersion(newest.map(|newest| newest.0)))
            }
            Err(error) => Err(error),
        }
    }
}

fn expected(call: KeyCall) -> Option<Expected> {
    let (KeyCall::Put(_, condition) | KeyCall::Delete(condition)) = call else {
        return None;
    };
    match condition {
        KeyCondition::Any => None,
        KeyCondition::Absent => Some(Expected::Absent),
        KeyCondition::Present => Some(Expected::Present),
        KeyCondition::Version(version) => Some(Expected::Version(Offset(version))),
    }
}

fn new_value(call: KeyCall) -> NewValue {
    match call {
        KeyCall::Put(value, _) => NewValue::Put(value.to_string().into()),
        KeyCall::Delete(_) => NewValue::Delete,
        KeyCall::Add(number) => NewValue::Add(number),
        KeyCall::Get => panic!("a look-up changes nothing"),
    }
}

impl Door for Native {
    fn ask(&mut self, request: &Request) -> Outcome {
        let answers = self.runtime.block_on(async {
            let answers = timeout(ANSWER_MAX, self.answers(request)).await;
            answers.unwrap_or_else(|_| panic!("no answer after {ANSWER_MAX:?}: {request:?}"))
        });
        let error = match answers {
            Ok(answers) => return Outcome::Answered(answers),
            Err(ClientError::NotTogether { why, .. }) => *why,
            Err(error) => error,
        };
        match &error {
            ClientError::Connect { .. } => Outcome::NotSent,
            ClientError::Disconnected { .. } => Outcome::Lost,
            error => match error.response_error() {
                Some(
                    ResponseError::ConcurrentTransactions | ResponseError::CoordinatorNotAvailable,
                ) => Outcome::Refused,
                _ => panic!("{request:?}: {error}"),
            },
        }
    }
}

/// A client of HTTP, with a connection for each request.
pub struct Http {
    address: String,
}

/// An answer of HTTP.
struct Reply {
    status: u16,
    /// The version in the header `ETag`.
    version: Option<u64>,
    body: String,
}

/// A request without an answer.
enum NoReply {
    NotSent,
    Lost,
}

impl Http {
    pub fn new(address: &str) -> Http {
        Http {
            address: address.to_owned(),
        }
    }

    fn send(
        &self,
        method: &str,
        path: &str,
        condition: KeyCondition,
        body: &str,
    ) -> Result<Reply, NoReply> {
        let condition = match condition {
            KeyCondition::Any => String::new(),
            KeyCondition::Absent => "If-None-Match: *\r\n".to_owned(),
            KeyCondition::Present => "If-Match: *\r\n".to_owned(),
            KeyCondition::Version(version) => {
                let (_, key) = path.rsplit_once('/').unwrap();
                let partition = super::partition(key);
                format!("If-Match: \"{partition}-{version}\"\r\n")
            }
        };
        let request = format!(
            "{method} /kv/{STREAM}{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{condition}Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let mut connection = TcpStream::connect(&self.address).map_err(|_| NoReply::NotSent)?;
        connection.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let mut answer = String::new();
        let answered = connection.write_all(request.as_bytes());
        match answered.and_then(|()| connection.read_to_string(&mut answer)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("no answer after {ANSWER_MAX:?}: {request}")
            }
            Ok(_) | Err(_) => reply(&answer).ok_or(NoReply::Lost),
        }
    }

    /// Returns the answers; `None` if the request is refused.
    fn answers(&self, request: &Request) -> Result<Option<Vec<KeyAnswer>>, NoReply> {
        match request.kind {
            Kind::Alone => {
                let (key, call) = request.calls[0];
                let answer = self.call(key, call)?;
                Ok(answer.map(|answer| vec![answer]))
            }
            Kind::GetMany => Ok(Some(self.scan("", request)?)),
            Kind::Scan => Ok(Some(self.scan(SCANNED, request)?)),
            Kind::Together => self.together(request),
        }
    }

    fn scan(&self, prefix: &str, request: &Request) -> Result<Vec<KeyAnswer>, NoReply> {
        let path = format!("?prefix={prefix}&limit=100");
        let reply = self.send("GET", &path, KeyCondition::Any, "")?;
        let list = json_of(&reply);
        let entries = list["entries"].as_array().unwrap();
        let answers = request.calls.iter().map(|(key, _)| {
            let entry = entries.iter().find(|entry| entry["key"] == *key);
            let found = entry.map(|entry| {
                let value = entry["value"].as_i64().unwrap();
                (value, entry["version"].as_u64().unwrap())
            });
            KeyAnswer::Found(found)
        });
        Ok(answers.collect())
    }

    fn together(&self, request: &Request) -> Result<Option<Vec<KeyAnswer>>, NoReply> {
        let changes = request.calls.iter().map(|(key, call)| match call {
            KeyCall::Add(number) => json!({"key": key, "add": number}),
            KeyCall::Put(value, KeyCondition::Any) => json!({"key": key, "value": value}),
            call => panic!("no client makes {call:?} together with others"),
        });
        let body = Value::from(changes.collect::<Vec<Value>>()).to_string();
        let reply = self.send("POST", "", KeyCondition::Any, &body)?;
        // The server cannot begin a transaction now.
        if reply.status == IN_TRANSACTION || reply.status == 503 {
            return Ok(None);
        }
        let made = json_of(&reply);
        let entries = made["entries"].as_array().unwrap().iter();
        let made = entries.map(|entry| {
            assert!(entry["version"].is_u64(), "{entry}");
            changed(entry["version"].as_u64(), entry["sum"].as_i64())
        });
        Ok(Some(made.collect()))
    }

    fn call(&self, key: &str, call: KeyCall) -> Result<Option<KeyAnswer>, NoReply> {
        let path = format!("/{key}");
        let (reply, is_named) = match call {
            KeyCall::Get => (self.send("GET", &path, KeyCondition::Any, "")?, true),
            KeyCall::Put(value, condition) => {
                let value = value.to_string();
                (self.send("PUT", &path, condition, &value)?, true)
            }
            KeyCall::Delete(condition) => (self.send("DELETE", &path, condition, "")?, false),
            KeyCall::Add(number) => {
                let number = number.to_string();
                (self.send("PATCH", &path, KeyCondition::Any, &number)?, true)
            }
        };
        let Reply {
            status,
            version,
            body,
        } = reply;
        assert!(status / 100 != 2 || version.is_some() == is_named, "{body}");
        let answer = match (call, status) {
            (KeyCall::Get, 200) => {
                let found = version.map(|version| (number(body.as_bytes()), version));
                KeyAnswer::Found(found)
            }
            (KeyCall::Get, 404) => KeyAnswer::Found(None),
            (KeyCall::Put(..) | KeyCall::Delete(_), 201 | 204) => changed(version, None),
            (KeyCall::Put(..) | KeyCall::Delete(_), 412) => KeyAnswer::OtherVersion(version),
            (KeyCall::Add(_), 200) => changed(version, Some(number(body.as_bytes()))),
            (_, IN_TRANSACTION) if call != KeyCall::Get => return Ok(None),
            _ => panic!("{key}, {call:?}: {status} {body}"),
        };
        Ok(Some(answer))
    }
}

impl Door for Http {
    fn ask(&mut self, request: &Request) -> Outcome {
        match self.answers(request) {
            Ok(Some(answers)) => Outcome::Answered(answers),
            Ok(None) => Outcome::Refused,
            Err(NoReply::NotSent) => Outcome::NotSent,
            Err(NoReply::Lost) => Outcome::Lost,
        }
    }
}

fn json_of(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).expect(&reply.body)
}

/// Parses an answer; `None` if it is not complete.
fn reply(answer: &str) -> Option<Reply> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().expect(head);
    let header = |name: &str| {
        let mut lines = head.lines();
        lines.find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let bytes = header("content-length").map(|bytes| bytes.parse().expect(bytes));
    let version = header("etag").map(|tag| {
        let (_, version) = tag.trim_matches('"').split_once('-').expect(tag);
        version.parse().expect(tag)
    });
    (body.len() == bytes.unwrap_or(0)).then(|| Reply {
        status,
        version,
        body: body.to_owned(),
    })
}
