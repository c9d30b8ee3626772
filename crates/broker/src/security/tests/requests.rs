//! Kafka's requests about users and access rules.

use bytes::Bytes;
use millstream_wire::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use millstream_wire::messages::create_acls_request::AclCreation;
use millstream_wire::messages::delete_acls_request::DeleteAclsFilter;
use millstream_wire::messages::describe_user_scram_credentials_request::UserName;
use millstream_wire::messages::{
    AlterUserScramCredentialsRequest, CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
};
use millstream_wire::sasl::SaltedPassword;
use millstream_wire::{ResponseError, StrBytes};

use super::*;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn set(user: &str, mechanism: i8, iterations: i32) -> ScramCredentialUpsertion {
    let hash = if mechanism == 2 {
        Hash::Sha512
    } else {
        Hash::Sha256
    };
    let salted = SaltedPassword::new(hash, "secret", b"salt", Iterations(iterations as u32));
    ScramCredentialUpsertion::default()
        .with_name(text(user))
        .with_mechanism(mechanism)
        .with_iterations(iterations)
        .with_salt(Bytes::from_static(b"salt"))
        .with_salted_password(Bytes::copy_from_slice(salted.as_bytes()))
}

fn remove(user: &str, mechanism: i8) -> ScramCredentialDeletion {
    ScramCredentialDeletion::default()
        .with_name(text(user))
        .with_mechanism(mechanism)
}

/// Makes the changes; returns each user's error code.
fn alter(
    store: &mut Store,
    deletions: Vec<ScramCredentialDeletion>,
    upsertions: Vec<ScramCredentialUpsertion>,
) -> Vec<(String, i16)> {
    let request = AlterUserScramCredentialsRequest::default()
        .with_deletions(deletions)
        .with_upsertions(upsertions);
    let (response, records) = store.alter_users(&request);
    for record in records {
        store.apply(record).unwrap();
    }
    let results = response.results.into_iter().map(|result| {
        assert_eq!(result.error_message.is_some(), result.error_code != 0);
        (result.user.to_string(), result.error_code)
    });
    results.collect()
}

/// Name, error code, and mechanisms with their counts of iterations.
type Described = (String, i16, Vec<(i8, i32)>);

fn describe(store: &Store, users: Option<&[&str]>) -> Vec<Described> {
    let users = users.map(|users| {
        users
            .iter()
            .map(|user| UserName::default().with_name(text(user)))
            .collect()
    });
    let request = DescribeUserScramCredentialsRequest::default().with_users(users);
    let results = store
        .describe_users(&request)
        .results
        .into_iter()
        .map(|result| {
            let infos = result.credential_infos.iter();
            let infos = infos
                .map(|info| (info.mechanism, info.iterations))
                .collect();
            (result.user.to_string(), result.error_code, infos)
        });
    results.collect()
}

#[test]
fn users_are_set_described_and_removed() {
    let mut store = empty();
    let users = vec![
        set("bob", 1, 4096),
        set("alice", 2, 16_384),
        set("bob", 2, 8192),
    ];
    let done = |user: &str| (user.to_owned(), 0);
    assert_eq!(
        alter(&mut store, vec![], users),
        [done("alice"), done("bob")]
    );
    assert!(
        store
            .users()
            .credential("bob", Hash::Sha512)
            .unwrap()
            .is_of("secret")
    );

    let alice = ("alice".to_owned(), 0, vec![(2, 16_384)]);
    let bob = ("bob".to_owned(), 0, vec![(1, 4096), (2, 8192)]);
    assert_eq!(describe(&store, None), [alice.clone(), bob.clone()]);
    assert_eq!(describe(&store, Some(&[])), [alice.clone(), bob]);
    let unknown = (
        "carol".to_owned(),
        ResponseError::ResourceNotFound.code(),
        vec![],
    );
    assert_eq!(
        describe(&store, Some(&["carol", "alice"])),
        [alice, unknown]
    );
    let twice = (
        "alice".to_owned(),
        ResponseError::DuplicateResource.code(),
        vec![],
    );
    assert_eq!(describe(&store, Some(&["alice", "alice"])), [twice]);

    let changes = alter(
        &mut store,
        vec![remove("bob", 1), remove("alice", 2)],
        vec![],
    );
    assert_eq!(changes, [done("alice"), done("bob")]);
    assert_eq!(
        describe(&store, None),
        [("bob".to_owned(), 0, vec![(2, 8192)])]
    );
}

#[test]
fn invalid_changes_of_users_are_refused() {
    use ResponseError::{
        DuplicateResource, ResourceNotFound, UnacceptableCredential, UnsupportedSaslMechanism,
    };
    #[track_caller]
    fn check(
        deletions: Vec<ScramCredentialDeletion>,
        upsertions: Vec<ScramCredentialUpsertion>,
        expected: ResponseError,
    ) {
        let mut store = with_user("alice", "secret", Hash::Sha256);
        let before = store.snapshot();
        let results = alter(&mut store, deletions, upsertions);
        let codes: Vec<i16> = results.into_iter().map(|(_, code)| code).collect();
        assert_eq!(codes, [expected.code()]);
        assert_eq!(store.snapshot(), before);
    }
    check(vec![remove("bob", 1)], vec![], ResourceNotFound);
    check(vec![remove("alice", 2)], vec![], ResourceNotFound);
    check(vec![remove("alice", 0)], vec![], UnsupportedSaslMechanism);
    check(
        vec![],
        vec![set("alice", 3, 4096)],
        UnsupportedSaslMechanism,
    );
    check(vec![], vec![set("alice", 1, 4095)], UnacceptableCredential);
    check(
        vec![],
        vec![set("alice", 1, 16_385)],
        UnacceptableCredential,
    );
    check(
        vec![],
        vec![set("alice", 1, 1).with_iterations(-1)],
        UnacceptableCredential,
    );
    check(vec![], vec![set("", 1, 4096)], UnacceptableCredential);
    check(vec![], vec![set("*", 1, 4096)], UnacceptableCredential);
    check(
        vec![],
        vec![set(&"a".repeat(1025), 1, 4096)],
        UnacceptableCredential,
    );
    check(
        vec![],
        vec![set("alice", 1, 4096).with_salt(Bytes::new())],
        UnacceptableCredential,
    );
    let salt = Bytes::from(vec![0; 256]);
    check(
        vec![],
        vec![set("alice", 1, 4096).with_salt(salt)],
        UnacceptableCredential,
    );
    let empty = set("alice", 1, 4096).with_salted_password(Bytes::new());
    check(vec![], vec![empty], UnacceptableCredential);
    // One valid change does not help the other of the same user.
    check(
        vec![remove("alice", 1)],
        vec![set("alice", 1, 4096)],
        DuplicateResource,
    );
    check(
        vec![],
        vec![set("alice", 2, 4096), set("alice", 1, 1)],
        UnacceptableCredential,
    );
    check(
        vec![],
        vec![set("alice", 1, 4096), set("alice", 1, 4096)],
        DuplicateResource,
    );
}

/// Kafka accepts them, and its tools made them before they hashed passwords themselves.
#[test]
fn salted_passwords_of_unusual_lengths_are_taken() {
    let mut store = with_user("bob", "secret", Hash::Sha256);
    for length in [1, 6, 33, 64, 200] {
        let password = vec![length as u8; length];
        let unusual = set("alice", 1, 4096).with_salted_password(Bytes::from(password.clone()));
        let altered = alter(&mut store, vec![], vec![unusual]);
        assert_eq!(altered, [("alice".to_owned(), 0)], "{length}");
        let credential = store.users().credential("alice", Hash::Sha256).unwrap();
        let expected = Hash::Sha256.hmac(&password, b"Server Key");
        assert_eq!(*credential.server_key(), expected, "{length}");
    }
}

/// Returns the creation of a rule that allows every user to read topics.
fn creation(name: &str) -> AclCreation {
    AclCreation::default()
        .with_resource_type(2)
        .with_resource_pattern_type(3)
        .with_resource_name(text(name))
        .with_principal(text("User:*"))
        .with_host(text("*"))
        .with_operation(3)
        .with_permission_type(3)
}

fn create(store: &mut Store, creations: Vec<AclCreation>) -> Vec<i16> {
    let request = CreateAclsRequest::default().with_creations(creations);
    let (response, records) = store.create_acls(&request);
    for record in records {
        store.apply(record).unwrap();
    }
    response
        .results
        .iter()
        .map(|result| result.error_code)
        .collect()
}

fn all() -> DescribeAclsRequest {
    DescribeAclsRequest::default()
        .with_resource_type_filter(1)
        .with_resource_name_filter(None)
        .with_pattern_type_filter(1)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1)
}

/// Returns the patterns, and the number of rules of each.
fn described(store: &Store, request: &DescribeAclsRequest) -> Vec<(String, i8, usize)> {
    let response = store.describe_acls(request);
    assert_eq!(response.error_code, 0, "{:?}", response.error_message);
    let resources = response.resources.into_iter().map(|resource| {
        let name = resource.resource_name.to_string();
        (name, resource.pattern_type, resource.acls.len())
    });
    resources.collect()
}

#[test]
fn rules_are_created_described_and_deleted() {
    let mut store = empty();
    let created = create(
        &mut store,
        vec![
            creation("a"),
            creation("a").with_operation(4),
            creation("a"),
            creation("*"),
            creation("a").with_resource_pattern_type(4),
            creation("b").with_host(text("::ffff:10.0.0.1")),
        ],
    );
    assert_eq!(created, [0; 6]);
    assert_eq!(store.acls().len(), 5);
    assert_eq!(create(&mut store, vec![creation("a")]), [0]);
    assert_eq!(store.acls().len(), 5);

    let row = |name: &str, pattern_type, rules| (name.to_owned(), pattern_type, rules);
    let [any, literal, prefixed, b] = [
        row("*", 3, 1),
        row("a", 3, 2),
        row("a", 4, 1),
        row("b", 3, 1),
    ];
    let found = described(&store, &all());
    assert_eq!(
        found,
        [any.clone(), literal.clone(), prefixed.clone(), b.clone()]
    );
    let named = all().with_resource_name_filter(Some(text("a")));
    assert_eq!(
        described(&store, &named),
        [literal.clone(), prefixed.clone()]
    );
    let matching = all()
        .with_resource_name_filter(Some(text("ab")))
        .with_pattern_type_filter(2);
    assert_eq!(
        described(&store, &matching),
        [any.clone(), prefixed.clone()]
    );
    let host = all().with_host_filter(Some(text("10.0.0.1")));
    assert_eq!(described(&store, &host), std::slice::from_ref(&b));
    let nobody = all().with_principal_filter(Some(text("Group:a")));
    assert_eq!(described(&store, &nobody), []);

    let filter = DeleteAclsFilter::default()
        .with_resource_type_filter(2)
        .with_resource_name_filter(Some(text("a")))
        .with_pattern_type_filter(3)
        .with_principal_filter(None)
        .with_host_filter(None)
        .with_operation(1)
        .with_permission_type(1);
    let one = filter.clone().with_operation(3);
    let wrong = filter.clone().with_operation(0);
    let request = DeleteAclsRequest::default().with_filters(vec![filter, one, wrong]);
    let (response, records) = store.delete_acls(&request);
    let results = response.filter_results.iter();
    let results: Vec<_> = results
        .map(|result| (result.error_code, result.matching_acls.len()))
        .collect();
    assert_eq!(
        results,
        [(0, 2), (0, 1), (ResponseError::InvalidRequest.code(), 0)]
    );
    let deleted = &response.filter_results[1].matching_acls[0];
    assert_eq!(
        (&*deleted.resource_name, &*deleted.principal),
        ("a", "User:*")
    );
    assert_eq!(records.len(), 2);
    for record in records {
        store.apply(record).unwrap();
    }
    assert_eq!(described(&store, &all()), [any, prefixed, b]);
}

#[test]
fn invalid_changes_of_rules_are_refused() {
    let mut store = empty();
    for creation in [
        creation(""),
        creation("a\0b"),
        // Any, unknown, delegation tokens, users.
        creation("a").with_resource_type(1),
        creation("a").with_resource_type(0),
        creation("a").with_resource_type(6),
        creation("a").with_resource_type(7),
        creation("a").with_resource_pattern_type(1),
        creation("a").with_resource_pattern_type(2),
        creation("a").with_operation(1),
        creation("a").with_operation(13),
        creation("a").with_operation(99),
        creation("a").with_permission_type(1),
        creation("a").with_principal(text("alice")),
        creation("a").with_principal(text("Group:alice")),
        creation("a").with_host(text("example.com")),
        creation("a").with_host(text("")),
        creation("my-cluster").with_resource_type(4),
    ] {
        let message = format!("{creation:?}");
        let codes = create(&mut store, vec![creation]);
        assert_eq!(codes, [ResponseError::InvalidRequest.code()], "{message}");
    }
    assert!(store.acls().is_empty());
    // A valid creation succeeds beside invalid ones.
    let cluster = creation("kafka-cluster").with_resource_type(4);
    let codes = create(&mut store, vec![creation(""), cluster]);
    assert_eq!(codes, [ResponseError::InvalidRequest.code(), 0]);
    assert_eq!(store.acls().len(), 1);

    let response = store.describe_acls(&all().with_pattern_type_filter(0));
    assert_eq!(response.error_code, ResponseError::InvalidRequest.code());
    assert_eq!(
        response.error_message.as_deref(),
        Some("pattern type 0 is unknown, or not supported")
    );
}
