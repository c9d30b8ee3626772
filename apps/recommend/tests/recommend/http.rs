//! Requests over HTTP.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use millstream_recommend::Recommended;
use serde_json::Value;

use crate::direct::Direct;

/// The longest time that anything may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Returns the answer for a path below `/state/recommend`; `None` if there is none.
pub fn get(address: SocketAddr, path: &str) -> Option<Value> {
    let (status, body) = request(address, "GET", &format!("/state/recommend/{path}"));
    if status == 404 {
        return None;
    }
    assert_eq!(status, 200, "{body}");
    Some(body)
}

/// Returns the status of an answer, and its body, which is JSON.
pub fn request(address: SocketAddr, method: &str, path: &str) -> (u16, Value) {
    let mut visitor = TcpStream::connect(address).expect("it listens");
    let limit = visitor.set_read_timeout(Some(LIMIT));
    limit.expect("it is not zero");
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    visitor.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    visitor.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head ends");
    let status = head.get(9..12).and_then(|status| status.parse().ok());
    let status = status.expect("an answer begins with its status");
    (status, serde_json::from_str(body).expect("it is JSON"))
}

/// Returns a user's segment of a path.
pub fn segment(user: &str) -> String {
    let mut segment = String::new();
    for byte in user.bytes() {
        write!(segment, "%{byte:02x}").expect("memory suffices");
    }
    segment
}

/// Returns the recommendations for a user; `None` if the flow knows no rating by the user.
pub fn recommendations(address: SocketAddr, user: &str) -> Option<Vec<Recommended>> {
    let answer = get(address, &format!("recommendations/{}", segment(user)))?;
    Some(serde_json::from_value(answer).expect("they are recommendations"))
}

/// Waits until the recommendations for all users are those of the direct computation.
pub fn wait_for_recommendations(address: SocketAddr, direct: &Direct) {
    let counts = direct.co_occurrence();
    let since = Instant::now();
    for user in direct.users() {
        let expected = Some(direct.recommendations(user, &counts));
        loop {
            let served = recommendations(address, user);
            if served == expected {
                break;
            }
            assert!(
                since.elapsed() < LIMIT,
                "{user}: {served:?} and not {expected:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}
