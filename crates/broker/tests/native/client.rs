//! A running broker, and a client that speaks its protocol.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use millstream_base::{ByteSize, StreamId, SystemClock, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{BrokerConfig, Server};
use millstream_log::{Log, LogConfig};
use millstream_record::{ChunkBuilder, Compression};
use millstream_wire::native::{
    CreateStreamRequest, CreateStreamResponse, Durability, StreamSettings,
};
use millstream_wire::{
    ApiKey, Request, RequestHeader, Response, StrBytes, decode_response, encode_request, take_frame,
};

/// Sends a request, and waits for its answer.
macro_rules! ask {
    ($client:expr, $api:ident, $request:expr) => {{
        $client.send($request);
        answer!($client, $api)
    }};
}
pub(crate) use ask;

/// Returns the next answer.
macro_rules! answer {
    ($client:expr, $api:ident) => {
        match $client.receive(millstream_wire::ApiKey::$api) {
            millstream_wire::Response::$api(response) => response,
            other => panic!("not an answer to this: {other:?}"),
        }
    };
}
pub(crate) use answer;

/// The longest wait: nothing takes longer, unless it hangs.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

/// The largest answer that a test expects.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A broker with a log of its own.
pub struct Broker {
    // Dropped before the folder is.
    server: Option<Server>,
    dir: tempfile::TempDir,
}

impl Broker {
    pub fn start() -> Broker {
        let dir = tempfile::tempdir().unwrap();
        let mut broker = Broker { server: None, dir };
        broker.restart();
        broker
    }

    /// Stops the broker, and starts it again on the same folder.
    pub fn restart(&mut self) {
        self.server = None;
        let config = LogConfig::with_pool(self.dir.path(), ByteSize(64 << 20));
        let log = Log::open(config).unwrap();
        let server = Server::start(
            &TcpNetwork,
            BrokerConfig::new("127.0.0.1:0".parse().unwrap()),
            log,
            Arc::new(SystemClock::default()),
            Arc::new(SystemRandom),
        );
        self.server = Some(server.unwrap());
    }

    pub fn log(&self) -> &Log {
        self.server.as_ref().unwrap().broker().log()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.server.as_ref().unwrap().local_address())
    }
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    received: BytesMut,
    sent: i32,
    answered: i32,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(ANSWER_WAIT_MAX)).unwrap();
        Client {
            stream,
            received: BytesMut::new(),
            sent: 0,
            answered: 0,
        }
    }

    /// Sends a request without waiting for its answer.
    pub fn send(&mut self, request: impl Into<Request>) {
        let request = request.into();
        let header = RequestHeader {
            api: request.api(),
            version: 0,
            correlation_id: self.sent,
            client_id: Some(StrBytes::from_static_str("test")),
        };
        let frame = encode_request(&header, &request).unwrap().into_bytes();
        self.stream.write_all(&frame).unwrap();
        self.sent += 1;
    }

    /// Returns the next answer, which is to a request of this kind.
    pub fn receive(&mut self, api: ApiKey) -> Response {
        loop {
            if let Some(frame) = take_frame(&mut self.received, ANSWER_BYTES_MAX).unwrap() {
                let (correlation_id, response) = decode_response(api, 0, frame).unwrap();
                assert_eq!(correlation_id, self.answered, "answers come in order");
                self.answered += 1;
                return response;
            }
            let mut buffer = [0; 64 << 10];
            match self.stream.read(&mut buffer).unwrap() {
                0 => panic!("the broker closed the connection"),
                count => self.received.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// Returns whether no answer comes within `time`.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_read_timeout(Some(ANSWER_WAIT_MAX)).unwrap();
        let is_late = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
        self.received.is_empty() && peeked.is_err_and(|error| is_late(error.kind()))
    }

    /// Creates a stream with this many streamlets and lanes.
    pub fn create(&mut self, name: &str, streamlets: u32, lanes: u32) -> StreamId {
        let request = creation(name, settings(streamlets, lanes));
        let created: CreateStreamResponse = ask!(self, CreateStream, request);
        assert_eq!(
            (created.error_code, created.is_new),
            (0, true),
            "{created:?}"
        );
        created.stream
    }
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Returns settings of a stream whose groups are small.
pub fn settings(streamlets: u32, lanes: u32) -> StreamSettings {
    StreamSettings {
        streamlets,
        lanes,
        virtual_logs: 1,
        durability: Durability::Sync,
        group_segments: 2,
        segment_bytes: ByteSize(64 << 10),
        ..StreamSettings::default()
    }
}

pub fn creation(name: &str, settings: StreamSettings) -> CreateStreamRequest {
    CreateStreamRequest {
        name: text(name),
        settings,
        or_existing: false,
    }
}

/// Returns a chunk with one record of this value.
pub fn chunk(value: &[u8]) -> Bytes {
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.push(Timestamp(1), None, Some(value), &[]).unwrap();
    Bytes::copy_from_slice(builder.finish(None).unwrap())
}
