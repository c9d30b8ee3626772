//! Tests of the entries of all requests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use millstream_base::{ByteSize, Offset, SystemRandom};
use millstream_log::{Log, LogConfig, StreamConfig};
use millstream_wire::forge::{any_request, any_response};
use millstream_wire::messages::create_acls_response::AclCreationResult;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::offset_commit_request::OffsetCommitRequestTopic;
use millstream_wire::messages::offset_commit_response::OffsetCommitResponseTopic;
use millstream_wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use millstream_wire::messages::offset_fetch_response::OffsetFetchResponseGroup;
use millstream_wire::messages::{
    CreateAclsResponse, DeleteGroupsRequest, GroupId, MetadataRequest, OffsetCommitRequest,
    OffsetFetchRequest, OffsetFetchResponse, ProduceResponse, TopicName,
};
use millstream_wire::native::{CommitCursorsResponse, CommittedCursor};
use millstream_wire::{
    ApiKey, MetadataPartition, Request, RequestHeader, Response, ResponseError, SUPPORTED,
    StrBytes, decode_request, decode_response, encode_response,
};
use tokio::sync::watch;

use super::handle::{Handle, Refusal, each};
use super::{Bound, bound, clear_messages, has_error, tell_throttle};
use crate::access::Access;
use crate::answer_memory::SMALL_BYTES_MAX;
use crate::broker::Broker;
use crate::client::Client;
use crate::config::BrokerConfig;
use crate::groups::{self, GroupName, Partition, TopicId};
use crate::listener::LogIn;
use crate::objectives::Objectives;
use crate::peer::Peer;
use crate::security::service::SecurityService;
use crate::security::{Principal, SecurityConfig};
use crate::shares::record::Key;
use crate::topic_names::NAME_BYTES_MAX;

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Returns a request whose lists and texts are empty.
fn empty_request(api: ApiKey) -> Option<Request> {
    api.versions()
        .find_map(|version| {
            // In a flexible version, 1 is the length of an empty list.
            let fill = u8::from(api.is_flexible(version));
            (0..200).find_map(|length| {
                let mut frame = BytesMut::new();
                frame.put_i16(api as i16);
                frame.put_i16(version);
                frame.put_i32(1);
                frame.put_i16(-1);
                if api.is_flexible(version) {
                    frame.put_u8(0);
                }
                frame.put_bytes(fill, length);
                if api.is_flexible(version) {
                    frame.put_u8(0);
                }
                decode_request(frame.freeze()).ok()
            })
        })
        .map(|(_, request)| request)
}

fn broker_on(log: Log) -> Arc<Broker> {
    let (config, clock) = (BrokerConfig::new(ADDRESS), Arc::clone(log.clock()));
    let random = Arc::new(SystemRandom);
    Broker::new(config, Objectives::default(), log, clock, random).unwrap()
}

fn peer() -> Peer {
    Peer {
        address: ADDRESS,
        is_same_user: false,
        advertised: ("localhost".to_owned(), 9092),
        log_in: LogIn::No,
    }
}

#[test]
fn every_request_has_a_bound_and_empty_requests_have_small_answers() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
    let streams = |streamlets| StreamConfig {
        streamlets,
        ..StreamConfig::default()
    };
    log.create_stream("large", streams(1000)).unwrap();
    log.create_stream("small", streams(1)).unwrap();
    let broker = broker_on(log);
    let (_stop, stopping) = watch::channel(false);
    let mut client = Client::new(peer(), None, &broker, stopping);
    for supported in SUPPORTED {
        let api = supported.api;
        let request = empty_request(api).unwrap_or_else(|| panic!("no request: {api:?}"));
        match bound(&broker, &mut client, 1, 100, &request) {
            Bound::Bytes(bytes) => {
                // The numbers of this request are large, not those of its elements.
                let is_page = matches!(
                    api,
                    ApiKey::ListStreams
                        | ApiKey::ListObjects
                        | ApiKey::NextGroups
                        | ApiKey::NextSegments
                        | ApiKey::DescribeTopicPartitions
                );
                let is_all = api == ApiKey::Metadata;
                assert!(
                    is_page || is_all || bytes <= SMALL_BYTES_MAX,
                    "{api:?}: {bytes}"
                );
            }
            Bound::State | Bound::Late => {}
        }
    }
    // A topic counts with its partitions, and a missing one with those it may get.
    let mut metadata = |names: &[&'static str]| {
        let topics = names
            .iter()
            .map(|name| TopicName(StrBytes::from_static_str(name)))
            .map(|name| MetadataRequestTopic::default().with_name(Some(name)));
        let request = MetadataRequest::default().with_topics(Some(topics.collect()));
        match bound(&broker, &mut client, 9, 100, &request.into()) {
            Bound::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    };
    let large = metadata(&["large"]);
    assert!(
        large > 1000 * (size_of::<MetadataPartition>() + 2 * 34),
        "{large}"
    );
    assert!(metadata(&["small"]) < 8 << 10);
    assert!(metadata(&["missing"]) < 8 << 10);
    // Repeated names do not multiply the answer.
    assert!(metadata(&["large"; 100]) < 8 * large);
    // The names of topics count in an answer to a request that has only their ids.
    let topics = vec![OffsetCommitRequestTopic::default(); 100];
    let request = OffsetCommitRequest::default().with_topics(topics);
    match bound(&broker, &mut client, 10, 100, &request.into()) {
        Bound::Bytes(bytes) => {
            let topic_bytes = size_of::<OffsetCommitResponseTopic>() + 2 * NAME_BYTES_MAX;
            assert!(bytes > 100 * topic_bytes, "{bytes}");
        }
        other => panic!("{other:?}"),
    }
}

/// Comparing each group with each takes minutes.
#[test]
fn the_offsets_of_many_groups_are_hidden_in_one_pass() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
    let (config, clock) = (SecurityConfig::default(), Arc::clone(log.clock()));
    let security = SecurityService::open(&log, &config, clock, Arc::new(SystemRandom)).unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let access = Access::new(Arc::new(security), Principal::anonymous(), address);

    let names = (0..300_000).map(|number| StrBytes::from_string(format!("group {number}")));
    let groups = names.map(|name| {
        OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(name))
            .with_topics(None)
    });
    let request = OffsetFetchRequest::default().with_groups(groups.collect());
    let answered = each(&request.groups, |group| {
        OffsetFetchResponseGroup::default().with_group_id(group.group_id.clone())
    });
    let mut answer = OffsetFetchResponse::default().with_groups(answered);
    let hide = request.hide(&access).unwrap();
    let began = Instant::now();
    hide(&mut answer);
    let taken = began.elapsed();
    assert!(taken < Duration::from_secs(10), "{taken:?}");
}

macro_rules! refuse_any {
    ($($name:ident = $key:literal, $request:ty, $response:ty, $versions:expr, $flexible:expr;)*) => {
        fn refuse(request: &Request, refusal: &Refusal) -> Response {
            match request {
                $(Request::$name(request) => request.refuse(refusal).into(),)*
            }
        }
    };
}

millstream_wire::apis!(refuse_any);

/// The connection of a client may end before the answer.
#[tokio::test]
async fn deleted_share_groups_leave_no_positions_when_the_answer_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
    let stream = log.create_stream("t", StreamConfig::default()).unwrap();
    let broker = broker_on(log);
    let (_stop, stopping) = watch::channel(false);
    let mut client = Client::new(peer(), None, &broker, stopping);
    let (shares, group) = (broker.shares(), GroupName::from("g"));
    let create = || {
        shares
            .groups()
            .ask(groups::Request::CreateShareGroup(group.clone()))
    };
    create().await.unwrap();
    let key = Key {
        group: group.clone(),
        topic: TopicId(stream.uuid().as_u128()),
        partition: Partition(0),
    };
    shares.alter(&key, Offset(0)).unwrap();
    let names = vec![GroupId(StrBytes::from_static_str("g"))];
    let request = DeleteGroupsRequest::default().with_groups_names(names);
    drop(request.handle(&broker, &mut client, 2));
    create().await.unwrap();
    assert_eq!(shares.keys_of(&group), []);
}

#[test]
fn every_request_can_be_refused_in_all_versions() {
    let error = ResponseError::ClusterAuthorizationFailed;
    let apis = SUPPORTED.iter().map(|supported| supported.api);
    for (api, version) in apis.flat_map(|api| api.versions().map(move |version| (api, version))) {
        let header = RequestHeader {
            api,
            version,
            correlation_id: 1 << 30,
            client_id: None,
        };
        let mut named = 0;
        for seed in 0..50 {
            let request = any_request(api, version, seed).expect("one of them is valid");
            let refusal = refuse(&request, &Refusal::new(version, error, Some("not you")));
            let answer = encode_response(&header, &refusal);
            let answer = answer.unwrap_or_else(|error| panic!("{api:?} {version}: {error}"));
            let mut answer = answer.into_bytes();
            answer.advance(4);
            let (_, response) = decode_response(api, version, answer).unwrap();
            let code = format!("error_code: {}", error.code());
            named += usize::from(format!("{response:?}").contains(&code));
        }
        // The answer to a request without topics may have none.
        assert!(named > 5, "{api:?} version {version}");
    }
}

#[test]
fn every_answer_has_null_in_place_of_an_empty_error_message() {
    let empty = "error_message: Some(\"\")";
    let apis = SUPPORTED.iter().map(|supported| supported.api);
    let mut untested = Vec::new();
    // Our own answers have no message by default.
    for api in apis.filter(|api| (*api as i16) < 10_000) {
        let mut has_message = false;
        let mut cleared = 0;
        for version in api.versions() {
            for seed in 0..100 {
                let mut answer = any_response(api, version, seed).expect("one of them is valid");
                let before = format!("{answer:?}");
                clear_messages(&mut answer);
                let after = format!("{answer:?}");
                assert!(!after.contains(empty), "{api:?} {version}: {after}");
                has_message |= before.contains("error_message: Some(");
                cleared += usize::from(before.contains(empty));
            }
        }
        if has_message && cleared == 0 {
            untested.push(api);
        }
    }
    // Their messages are null by default.
    let null = [
        ApiKey::DescribeGroups,
        ApiKey::ConsumerGroupDescribe,
        ApiKey::ShareGroupDescribe,
    ];
    assert_eq!(untested, null);
}

#[test]
fn errors_in_parts_of_the_answers_to_administrators_and_of_our_own_requests_count() {
    for code in [0, 31] {
        let created = AclCreationResult::default().with_error_code(code);
        let created = CreateAclsResponse::default().with_results(vec![created]);
        assert_eq!(has_error(&created.into()), code != 0);
        let commits = vec![CommittedCursor {
            error_code: code,
            ..CommittedCursor::default()
        }];
        let committed = CommitCursorsResponse {
            commits,
            ..CommitCursorsResponse::default()
        };
        assert_eq!(has_error(&committed.into()), code != 0);
    }
}

#[test]
fn a_throttle_time_beyond_the_field_is_reported_as_its_maximum() {
    let mut response = Response::Produce(ProduceResponse::default());
    assert!(tell_throttle(&mut response, Duration::MAX));
    let expected = ProduceResponse::default().with_throttle_time_ms(i32::MAX);
    assert_eq!(response, Response::Produce(expected));
}
