//! Every request needs each of its rights.

use millstream_wire::{ApiKey, ResponseError, SUPPORTED};

use super::group_cases::{group_cases, share_cases, transaction_cases};
use super::native_cases::native_cases;
use super::topic_cases::{cluster_cases, record_cases, security_cases, topic_cases};
use super::{Case, two_clients};

/// Returns whether an answer refuses a request for lack of rights.
fn is_denied(response: &impl std::fmt::Debug) -> bool {
    let response = format!("{response:?}");
    [
        ResponseError::TopicAuthorizationFailed,
        ResponseError::GroupAuthorizationFailed,
        ResponseError::ClusterAuthorizationFailed,
        ResponseError::TransactionalIdAuthorizationFailed,
        // Streams that are named by an id get the same answers.
        ResponseError::UnknownTopicId,
    ]
    .iter()
    .any(|error| {
        // The code may be the last field.
        [",", " }"]
            .iter()
            .any(|end| response.contains(&format!("error_code: {}{end}", error.code())))
    })
}

/// Requests that every client may send. A list in an answer leaves out the resources that the
/// client may not describe.
const WITHOUT_RIGHTS: [ApiKey; 12] = [
    // A client without the right to report is asked for no metrics: see the tests of telemetry.
    ApiKey::GetTelemetrySubscriptions,
    // The rights are those of its subscription: see the tests of push.
    ApiKey::Receive,
    ApiKey::ApiVersions,
    ApiKey::DescribeCluster,
    ApiKey::SaslHandshake,
    ApiKey::SaslAuthenticate,
    ApiKey::LocalSocket,
    ApiKey::Unsubscribe,
    ApiKey::ListGroups,
    ApiKey::ListTransactions,
    ApiKey::ListStreams,
    ApiKey::ListObjects,
];

#[test]
fn every_request_needs_each_of_its_rights() {
    let (node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 1);
    let stream = node.log().stream("t").unwrap().id();
    let cases = [
        record_cases(),
        topic_cases(),
        cluster_cases(),
        group_cases(),
        share_cases(),
        transaction_cases(),
        security_cases(),
        native_cases(stream),
    ];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let is_tested = |api: ApiKey| {
        let has_case = cases.iter().any(|case| case.request.api() == api);
        has_case != WITHOUT_RIGHTS.contains(&api)
    };
    let apis = SUPPORTED.iter().map(|supported| supported.api);
    let untested: Vec<ApiKey> = apis.filter(|api| !is_tested(*api)).collect();
    assert_eq!(untested, [], "each request has a case, or needs no rights");
    for case in cases {
        let (request, rights) = (&case.request, &case.rights);
        // Without any right, and with all but one.
        for missing in 0..rights.len() {
            for (number, right) in rights.iter().enumerate() {
                if number != missing {
                    admin.allow("alice", *right);
                }
            }
            let response = alice.ask(case.version, request.clone());
            assert!(is_denied(&response), "{:?}: {response:?}", request.api());
            admin.forbid_all();
        }
        rights.iter().for_each(|right| admin.allow("alice", *right));
        let response = alice.ask(case.version, request.clone());
        assert!(!is_denied(&response), "{:?}: {response:?}", request.api());
        admin.forbid_all();
    }
}
