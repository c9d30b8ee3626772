//! Access rules: examples, and against a model that looks at all rules for every request.

use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;

use super::super::PatternType::{Literal, Prefixed};
use super::super::Permission::{Allow, Deny};
use super::super::ResourceType::{Cluster, Group, Topic};
use super::*;

const HOME: &str = "10.0.0.1";
const AWAY: &str = "10.0.0.2";

/// Returns a store with these rules, and settings that allow nothing else.
fn acls(rules: &[Acl]) -> Acls {
    acls_with(AclSettings::new(true), rules)
}

fn acls_with(settings: AclSettings, rules: &[Acl]) -> Acls {
    let secret = Secret::from_random(SECRET);
    let (mut store, _) = Store::restore(settings, [], secret).unwrap();
    for acl in rules {
        if let Some(record) = store.acl_record(acl).unwrap() {
            store.apply(record).unwrap();
        }
    }
    store.acls().clone()
}

fn may(acls: &Acls, who: (&str, &str), operation: Operation, resource: Resource<'_>) -> bool {
    let (name, host) = who;
    let principal = Principal::user(name).unwrap();
    acls.authorize(&principal, host.parse().unwrap(), operation, resource)
}

#[test]
fn a_rule_is_for_one_user_one_host_and_one_resource() {
    let orders = (Topic, Literal, "orders");
    let acls = acls(&[acl(orders, ("User:alice", HOME), (Allow, Operation::Read))]);
    let topic = Resource::topic("orders");
    assert!(may(&acls, ("alice", HOME), Operation::Read, topic));
    assert!(may(
        &acls,
        ("alice", "::ffff:10.0.0.1"),
        Operation::Read,
        topic
    ));
    assert!(!may(&acls, ("alice", AWAY), Operation::Read, topic));
    assert!(!may(&acls, ("bob", HOME), Operation::Read, topic));
    assert!(!may(&acls, ("alice", HOME), Operation::Write, topic));
    assert!(!may(
        &acls,
        ("alice", HOME),
        Operation::Read,
        Resource::topic("orders2")
    ));
    assert!(!may(
        &acls,
        ("alice", HOME),
        Operation::Read,
        Resource::topic("order")
    ));
    assert!(!may(
        &acls,
        ("alice", HOME),
        Operation::Read,
        Resource::group("orders")
    ));
}

#[test]
fn prefixes_and_stars_match_many_resources() {
    let acls = acls(&[
        acl(
            (Topic, Prefixed, "log-"),
            ("User:*", "*"),
            (Allow, Operation::Read),
        ),
        acl(
            (Topic, Prefixed, "log-secret"),
            ("User:bob", "*"),
            (Deny, Operation::All),
        ),
        acl(
            (Group, Literal, "*"),
            ("User:alice", "*"),
            (Allow, Operation::Read),
        ),
    ]);
    for (who, name, expected) in [
        ("alice", "log-", true),
        ("alice", "log-a", true),
        ("alice", "log-secrets", true),
        ("alice", "log", false),
        ("alice", "lo", false),
        ("alice", "mog-", false),
        ("bob", "log-secre", true),
        ("bob", "log-secret", false),
        ("bob", "log-secrets", false),
    ] {
        let resource = Resource::topic(name);
        assert_eq!(
            may(&acls, (who, HOME), Operation::Read, resource),
            expected,
            "{who} {name}"
        );
    }
    assert!(may(
        &acls,
        ("alice", HOME),
        Operation::Read,
        Resource::group("anything")
    ));
    assert!(!may(
        &acls,
        ("bob", HOME),
        Operation::Read,
        Resource::group("anything")
    ));
}

#[test]
fn the_right_to_change_implies_describe_and_denying_it_leaves_describe() {
    let orders = (Topic, Literal, "orders");
    for (operation, seen) in [
        (Operation::Read, true),
        (Operation::Write, true),
        (Operation::Delete, true),
        (Operation::Alter, true),
        (Operation::Describe, true),
        (Operation::All, true),
        (Operation::Create, false),
        (Operation::AlterConfigs, false),
        (Operation::DescribeConfigs, false),
    ] {
        let acls = acls(&[acl(orders, ("User:alice", "*"), (Allow, operation))]);
        let topic = Resource::topic("orders");
        assert_eq!(
            may(&acls, ("alice", HOME), Operation::Describe, topic),
            seen,
            "{operation}"
        );
    }
    let acls_ = acls(&[acl(
        orders,
        ("User:alice", "*"),
        (Allow, Operation::AlterConfigs),
    )]);
    assert!(may(
        &acls_,
        ("alice", HOME),
        Operation::DescribeConfigs,
        Resource::topic("orders")
    ));

    let stopped = acls(&[
        acl(orders, ("User:alice", "*"), (Allow, Operation::All)),
        acl(orders, ("User:alice", "*"), (Deny, Operation::Write)),
    ]);
    let topic = Resource::topic("orders");
    assert!(!may(&stopped, ("alice", HOME), Operation::Write, topic));
    assert!(may(&stopped, ("alice", HOME), Operation::Describe, topic));
}

#[test]
fn super_users_may_do_anything_and_resources_without_rules_follow_the_setting() {
    let rules = [acl(
        (Topic, Literal, "orders"),
        ("User:*", "*"),
        (Deny, Operation::All),
    )];
    let mut settings = AclSettings::new(true);
    settings
        .super_users
        .insert(Principal::user("root").unwrap());
    assert!(!settings.allow_everyone_if_no_acl);
    let closed = acls_with(settings.clone(), &rules);
    assert!(may(
        &closed,
        ("root", HOME),
        Operation::Write,
        Resource::topic("orders")
    ));
    assert!(!may(
        &closed,
        ("alice", HOME),
        Operation::Write,
        Resource::topic("bills")
    ));

    assert!(AclSettings::new(false).allow_everyone_if_no_acl);
    settings.allow_everyone_if_no_acl = true;
    let open = acls_with(settings, &rules);
    assert!(may(
        &open,
        ("alice", HOME),
        Operation::Write,
        Resource::topic("bills")
    ));
    assert!(!may(
        &open,
        ("alice", HOME),
        Operation::Write,
        Resource::topic("orders")
    ));
    assert!(may(
        &open,
        ("alice", HOME),
        Operation::Alter,
        Resource::CLUSTER
    ));
}

#[test]
fn one_permitted_resource_of_a_type_authorizes_the_type() {
    let any = |rules: &[Acl], settings: AclSettings| {
        let alice = Principal::user("alice").unwrap();
        let host = HOME.parse().unwrap();
        acls_with(settings, rules).authorize_any(&alice, host, Operation::Write, Topic)
    };
    let write = |permission, pattern_type, name| {
        let pattern = (Topic, pattern_type, name);
        acl(pattern, ("User:alice", "*"), (permission, Operation::Write))
    };
    let closed = || AclSettings::new(true);
    assert!(!any(&[], closed()));
    assert!(any(&[], AclSettings::new(false)));
    assert!(any(&[write(Allow, Literal, "a")], closed()));
    assert!(any(&[write(Allow, Prefixed, "a")], closed()));
    assert!(any(&[write(Allow, Literal, "*")], closed()));
    assert!(any(
        &[write(Allow, Literal, "*"), write(Deny, Literal, "a")],
        closed()
    ));
    assert!(!any(
        &[write(Allow, Literal, "a"), write(Deny, Literal, "a")],
        closed()
    ));
    assert!(!any(
        &[write(Allow, Literal, "ab"), write(Deny, Prefixed, "a")],
        closed()
    ));
    assert!(!any(
        &[write(Allow, Prefixed, "ab"), write(Deny, Prefixed, "a")],
        closed()
    ));
    assert!(any(
        &[write(Allow, Prefixed, "a"), write(Deny, Prefixed, "ab")],
        closed()
    ));
    assert!(!any(
        &[write(Allow, Literal, "*"), write(Deny, Literal, "*")],
        closed()
    ));
}

/// Decides as the documentation of Kafka's authorizer says, rule by rule.
fn model_authorize(
    rules: &[Acl],
    allow_everyone: bool,
    (principal, host): (&Principal, IpAddr),
    operation: Operation,
    resource: Resource<'_>,
) -> bool {
    let is_about = |acl: &&Acl| {
        acl.pattern.kind == resource.kind
            && match acl.pattern.pattern_type {
                Prefixed => resource.name.starts_with(&acl.pattern.name),
                Literal => acl.pattern.name == resource.name || acl.pattern.name == "*",
            }
    };
    let about: Vec<&Acl> = rules.iter().filter(is_about).collect();
    if about.is_empty() {
        return allow_everyone;
    }
    let is_for = |acl: &&&Acl| {
        (acl.principal == *principal || acl.principal.to_string() == "User:*")
            && (acl.host == Host::Any || acl.host.to_string() == host.to_string())
    };
    let implied: &[Operation] = match operation {
        Operation::Describe => &[
            Operation::Read,
            Operation::Write,
            Operation::Delete,
            Operation::Alter,
        ],
        Operation::DescribeConfigs => &[Operation::AlterConfigs],
        _ => &[],
    };
    let mut allowed = false;
    for acl in about.iter().filter(is_for) {
        let is_same = acl.operation == operation || acl.operation == Operation::All;
        match acl.permission {
            Deny if is_same => return false,
            Allow => allowed |= is_same || implied.contains(&acl.operation),
            Deny => {}
        }
    }
    allowed
}

fn model_finds(filter: &AclFilter, acl: &Acl) -> bool {
    let named = match (&filter.name, filter.pattern_type) {
        (None, PatternFilter::Any | PatternFilter::Match) => true,
        (None, PatternFilter::Is(wanted)) => acl.pattern.pattern_type == wanted,
        (Some(name), PatternFilter::Any) => acl.pattern.name == *name,
        (Some(name), PatternFilter::Is(wanted)) => {
            acl.pattern.name == *name && acl.pattern.pattern_type == wanted
        }
        (Some(name), PatternFilter::Match) => match acl.pattern.pattern_type {
            Literal => [name.as_str(), "*"].contains(&&*acl.pattern.name),
            Prefixed => name.starts_with(&acl.pattern.name),
        },
    };
    named
        && filter.kind.is_none_or(|kind| kind == acl.pattern.kind)
        && filter
            .operation
            .is_none_or(|operation| operation == acl.operation)
        && filter
            .permission
            .is_none_or(|permission| permission == acl.permission)
        && filter
            .principal
            .as_ref()
            .is_none_or(|text| *text == acl.principal.to_string())
        && filter
            .host
            .as_ref()
            .is_none_or(|text| *text == acl.host.to_string())
}

/// Returns short names, of few characters that sort around each other, so that many are prefixes of
/// others.
fn name() -> impl Strategy<Value = String> {
    "[aé!~]{1,4}"
}

fn principals() -> impl Strategy<Value = Principal> {
    select(vec!["User:alice", "User:bob", "User:*"]).prop_map(|text| text.parse().unwrap())
}

fn hosts() -> impl Strategy<Value = Host> {
    select(vec!["*", HOME, AWAY]).prop_map(|text| text.parse().unwrap())
}

fn any_acl() -> impl Strategy<Value = Acl> {
    let pattern = prop_oneof![
        4 => (name(), select(PatternType::ALL)),
        1 => Just(("*".to_owned(), Literal)),
    ];
    let pattern = (select(vec![Topic, Group]), pattern);
    let operation = select(Operation::ALL);
    let permission = prop_oneof![3 => Just(Allow), 1 => Just(Deny)];
    (pattern, principals(), hosts(), operation, permission).prop_map(
        |((kind, (name, pattern_type)), principal, host, operation, permission)| Acl {
            pattern: Pattern {
                kind,
                name,
                pattern_type,
            },
            principal,
            host,
            operation,
            permission,
        },
    )
}

fn any_filter() -> impl Strategy<Value = AclFilter> {
    use proptest::option::of;
    let pattern_type = select(vec![
        PatternFilter::Any,
        PatternFilter::Match,
        PatternFilter::Is(Literal),
        PatternFilter::Is(Prefixed),
    ]);
    let resource = (
        of(select(vec![Topic, Group, Cluster])),
        of(name()),
        pattern_type,
    );
    let who = (of(principals()), of(hosts()));
    let what = (of(select(Operation::ALL)), of(select(Permission::ALL)));
    (resource, who, what).prop_map(
        |((kind, name, pattern_type), (principal, host), (operation, permission))| AclFilter {
            kind,
            name,
            pattern_type,
            principal: principal.map(|principal| principal.to_string()),
            host: host.map(|host| host.to_string()),
            operation,
            permission,
        },
    )
}

proptest! {
    #[test]
    fn random_rules_decide_as_a_simple_model_does(
        rules in prop::collection::vec(any_acl(), 0..20),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        requests in prop::collection::vec((name(), select(vec!["alice", "bob"]), select(vec![HOME, AWAY]), select(Operation::ALL)), 20),
        filters in prop::collection::vec(any_filter(), 5),
        allow_everyone in any::<bool>(),
    ) {
        let mut settings = AclSettings::new(true);
        settings.allow_everyone_if_no_acl = allow_everyone;
        let secret = Secret::from_random(SECRET);
        let (mut store, _) = Store::restore(settings.clone(), [], secret.clone()).unwrap();
        let mut model: Vec<Acl> = Vec::new();
        for acl in &rules {
            let record = store.acl_record(acl).unwrap();
            prop_assert_eq!(record.is_some(), !model.contains(acl));
            if let Some(record) = record {
                store.apply(record).unwrap();
                model.push(acl.clone());
            }
        }
        for index in removed {
            if rules.is_empty() {
                continue;
            }
            let acl = index.get(&rules);
            let record = store.acl_tombstone(acl);
            prop_assert_eq!(record.is_some(), model.contains(acl));
            if let Some(record) = record {
                store.apply(record).unwrap();
                model.retain(|other| other != acl);
            }
        }
        model.sort();
        let (restored, _) = Store::restore(settings, store.snapshot(), secret).unwrap();
        for acls in [store.acls(), restored.acls()] {
            prop_assert_eq!(acls.len(), model.len());
            prop_assert_eq!(&acls.find(&AclFilter::ALL), &model);
            for filter in &filters {
                let found = model.iter().filter(|acl| model_finds(filter, acl));
                let found: Vec<Acl> = found.cloned().collect();
                prop_assert_eq!(acls.find(filter), found);
            }
            for (name, user, host, operation) in &requests {
                let principal = Principal::user(user).unwrap();
                let host: IpAddr = host.parse().unwrap();
                let who = (&principal, host);
                for kind in [Topic, Group] {
                    let resource = Resource { kind, name };
                    let expected = model_authorize(&model, allow_everyone, who, *operation, resource);
                    let found = acls.authorize(&principal, host, *operation, resource);
                    prop_assert_eq!(found, expected);

                    // All names that differ for the rules.
                    let names = model.iter().map(|acl| acl.pattern.name.clone());
                    let longer = model.iter().map(|acl| format!("{}new", acl.pattern.name));
                    let mut names = names.chain(longer).chain(["new".to_owned()]);
                    let expected = names.any(|name| {
                        let resource = Resource { kind, name: &name };
                        name != "*" && model_authorize(&model, allow_everyone, who, *operation, resource)
                    });
                    let found = acls.authorize_any(&principal, host, *operation, kind);
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
