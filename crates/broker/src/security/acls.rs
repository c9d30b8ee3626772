//! All access rules, and the decisions by them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::Bound;

use super::acl::{
    ANY_RESOURCE, Acl, AclFilter, Operation, Operations, Pattern, PatternType, Permission,
    Resource, ResourceType,
};
use super::principal::{Host, Principal};

/// A character that is in no name of a resource or a pattern: a prefix followed by it is the name
/// of a resource that no other rule knows.
const IN_NO_NAME: &str = "\0";

/// The settings beside the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclSettings {
    /// These users may do everything; rules do not restrict them.
    pub super_users: HashSet<Principal>,
    /// Whether every user may do everything to a resource that no rule covers. Kafka's
    /// `allow.everyone.if.no.acl.found`.
    pub allow_everyone_if_no_acl: bool,
}

impl AclSettings {
    /// Returns settings without super users. Resources that no rule covers are open to all users
    /// only without authentication.
    pub fn new(authentication: bool) -> Self {
        AclSettings {
            super_users: HashSet::new(),
            allow_everyone_if_no_acl: !authentication,
        }
    }
}

/// All access rules.
#[derive(Debug, Clone)]
pub struct Acls {
    settings: AclSettings,
    /// By type, from [`ResourceType::Topic`] on.
    resources: [Resources; ResourceType::ALL.len()],
    /// The number of rules.
    count: usize,
}

/// The rules about resources of one type. None of the [`Rules`] is empty.
#[derive(Debug, Clone, Default)]
struct Resources {
    literal: HashMap<String, Rules>,
    /// Sorted, so that the prefixes of a name are found without looking at all rules.
    prefixed: BTreeMap<String, Rules>,
}

/// The rules of one pattern. None of the lists is empty.
#[derive(Debug, Clone, Default)]
struct Rules(HashMap<Principal, Vec<HostRules>>);

/// The rules of one pattern and one principal. It has at least one operation.
#[derive(Debug, Clone, Copy)]
struct HostRules {
    host: Host,
    allowed: Operations,
    denied: Operations,
}

impl Acls {
    /// Returns a set without rules.
    pub fn new(settings: AclSettings) -> Self {
        Acls {
            settings,
            resources: Default::default(),
            count: 0,
        }
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether this user, from this address, may do this to this resource.
    ///
    /// A rule that denies it wins. Otherwise a rule has to allow it; if no rule covers the
    /// resource, not even for other users, the settings decide.
    pub fn authorize(
        &self,
        principal: &Principal,
        host: IpAddr,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        if self.settings.super_users.contains(principal) {
            return true;
        }
        let request = AccessQuestion::new(principal, host, operation);
        let mut verdict = None;
        for rules in self.resources[index(resource.kind)].about(resource.name) {
            match rules.verdict(&request) {
                Some(Permission::Deny) => return false,
                Some(Permission::Allow) => verdict = Some(true),
                None => verdict = verdict.or(Some(false)),
            }
        }
        verdict.unwrap_or(self.settings.allow_everyone_if_no_acl)
    }

    /// Returns whether there may be any resource of this type to which this user may do this. Looks
    /// at all rules about resources of the type.
    pub fn authorize_any(
        &self,
        principal: &Principal,
        host: IpAddr,
        operation: Operation,
        kind: ResourceType,
    ) -> bool {
        let may = |name: &str| {
            let resource = Resource { kind, name };
            self.authorize(principal, host, operation, resource)
        };
        let request = AccessQuestion::new(principal, host, operation);
        let allows = |rules: &Rules| rules.verdict(&request) == Some(Permission::Allow);
        let resources = &self.resources[index(kind)];
        // 1. A resource that no rule names.
        may(IN_NO_NAME)
            // 2. One that a rule names.
            || resources.literal.iter().any(|(name, rules)| {
                name != ANY_RESOURCE && allows(rules) && may(name)
            })
            // 3. One of which a rule names the beginning, and no rule more.
            || resources.prefixed.iter().any(|(prefix, rules)| {
                allows(rules) && may(&[prefix, IN_NO_NAME].concat())
            })
    }

    /// Returns whether this user may do this to all resources of this type. Looks at all rules
    /// about resources of the type.
    pub fn authorize_all(
        &self,
        principal: &Principal,
        host: IpAddr,
        operation: Operation,
        kind: ResourceType,
    ) -> bool {
        let may = |name: &str| {
            let resource = Resource { kind, name };
            self.authorize(principal, host, operation, resource)
        };
        let resources = &self.resources[index(kind)];
        // The decision differs only for names that a rule states, wholly or as a prefix.
        may(IN_NO_NAME)
            && resources
                .literal
                .keys()
                .all(|name| name == ANY_RESOURCE || may(name))
            && resources
                .prefixed
                .keys()
                .all(|prefix| may(&[prefix, IN_NO_NAME].concat()))
    }

    /// Returns the rules that the filter finds, sorted. Looks at all rules.
    pub fn find(&self, filter: &AclFilter) -> Vec<Acl> {
        let mut found = Vec::new();
        for (kind, resources) in ResourceType::ALL.iter().zip(&self.resources) {
            if filter.kind.is_some_and(|wanted| wanted != *kind) {
                continue;
            }
            for (pattern, rules) in resources.patterns(*kind) {
                let acls = rules.iter(&pattern);
                found.extend(acls.filter(|acl| filter.finds(acl)));
            }
        }
        found.sort_unstable();
        found
    }

    /// Returns whether this rule exists.
    pub fn contains(&self, acl: &Acl) -> bool {
        let resources = &self.resources[index(acl.pattern.kind)];
        let rules = resources.rules(&acl.pattern);
        rules.is_some_and(|rules| rules.contains(acl))
    }

    /// Adds a rule, unless it exists.
    pub(super) fn insert(&mut self, acl: &Acl) {
        let resources = &mut self.resources[index(acl.pattern.kind)];
        let name = acl.pattern.name.clone();
        let rules = match acl.pattern.pattern_type {
            PatternType::Literal => resources.literal.entry(name).or_default(),
            PatternType::Prefixed => resources.prefixed.entry(name).or_default(),
        };
        if rules.insert(acl) {
            self.count += 1;
        }
    }

    /// Removes a rule, if it exists.
    pub(super) fn remove(&mut self, acl: &Acl) {
        let resources = &mut self.resources[index(acl.pattern.kind)];
        let name = &acl.pattern.name;
        let rules = match acl.pattern.pattern_type {
            PatternType::Literal => resources.literal.get_mut(name),
            PatternType::Prefixed => resources.prefixed.get_mut(name),
        };
        let Some(rules) = rules else {
            return;
        };
        if rules.remove(acl) {
            self.count -= 1;
        }
        if rules.0.is_empty() {
            match acl.pattern.pattern_type {
                PatternType::Literal => resources.literal.remove(name),
                PatternType::Prefixed => resources.prefixed.remove(name),
            };
        }
    }
}

/// Returns the position of a type among all.
fn index(kind: ResourceType) -> usize {
    match kind {
        ResourceType::Topic => 0,
        ResourceType::Group => 1,
        ResourceType::Cluster => 2,
        ResourceType::TransactionalId => 3,
    }
}

/// A request that the rules decide.
struct AccessQuestion<'a> {
    principals: [&'a Principal; 2],
    host: Host,
    denied_by: Operations,
    allowed_by: Operations,
}

/// The principal `User:*`, kept so that requests need not create it.
static EVERYONE: std::sync::LazyLock<Principal> = std::sync::LazyLock::new(Principal::everyone);

impl<'a> AccessQuestion<'a> {
    fn new(principal: &'a Principal, host: IpAddr, operation: Operation) -> Self {
        AccessQuestion {
            principals: [principal, &EVERYONE],
            host: Host::of(host),
            denied_by: operation.denied_by(),
            allowed_by: operation.allowed_by(),
        }
    }
}

impl Resources {
    /// Returns the rules of all patterns that match this resource.
    fn about<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Rules> {
        let literal = [name, ANY_RESOURCE].into_iter();
        let literal = literal.filter_map(|name| self.literal.get(name));
        literal.chain(Prefixes {
            sorted: &self.prefixed,
            name,
            bound: Bound::Included(name),
        })
    }

    fn rules(&self, pattern: &Pattern) -> Option<&Rules> {
        match pattern.pattern_type {
            PatternType::Literal => self.literal.get(&pattern.name),
            PatternType::Prefixed => self.prefixed.get(&pattern.name),
        }
    }

    fn patterns(&self, kind: ResourceType) -> impl Iterator<Item = (Pattern, &Rules)> {
        let literal = self
            .literal
            .iter()
            .map(|entry| (entry, PatternType::Literal));
        let prefixed = self
            .prefixed
            .iter()
            .map(|entry| (entry, PatternType::Prefixed));
        literal
            .chain(prefixed)
            .map(move |((name, rules), pattern_type)| {
                let name = name.clone();
                let pattern = Pattern {
                    kind,
                    name,
                    pattern_type,
                };
                (pattern, rules)
            })
    }
}

/// Finds the prefixes of a name in a sorted map.
///
/// Among sorted texts, the prefixes of a name stand before it, the longest last. The nearest text
/// before the name either is a prefix, or shares some beginning with the name; no text between that
/// beginning and the nearest text can be a prefix. So every step makes the search key shorter, and
/// there are at most as many steps as the name has bytes.
struct Prefixes<'a> {
    sorted: &'a BTreeMap<String, Rules>,
    name: &'a str,
    /// The part of the map that was not searched yet.
    bound: Bound<&'a str>,
}

impl<'a> Iterator for Prefixes<'a> {
    type Item = &'a Rules;

    fn next(&mut self) -> Option<&'a Rules> {
        loop {
            let before = (Bound::Unbounded, self.bound);
            let (text, rules) = self.sorted.range::<str, _>(before).next_back()?;
            if self.name.starts_with(text) {
                self.bound = Bound::Excluded(text);
                return Some(rules);
            }
            self.bound = Bound::Included(common_beginning(self.name, text));
        }
    }
}

fn common_beginning<'a>(name: &'a str, text: &str) -> &'a str {
    let pairs = name.char_indices().zip(text.chars());
    let mut differ = pairs.filter(|((_, one), other)| one != other);
    // If no byte differs, the name is the shorter one.
    let end = differ
        .next()
        .map_or(name.len(), |((position, _), _)| position);
    &name[..end]
}

impl Rules {
    /// Returns the decision of these rules about a request.
    fn verdict(&self, request: &AccessQuestion<'_>) -> Option<Permission> {
        let mut verdict = None;
        for principal in request.principals {
            for rules in self.0.get(principal).into_iter().flatten() {
                if !rules.host.includes(request.host) {
                    continue;
                }
                if rules.denied.has_any_of(request.denied_by) {
                    return Some(Permission::Deny);
                }
                if rules.allowed.has_any_of(request.allowed_by) {
                    verdict = Some(Permission::Allow);
                }
            }
        }
        verdict
    }

    fn contains(&self, acl: &Acl) -> bool {
        let hosts = self.0.get(&acl.principal).into_iter().flatten();
        let mut hosts = hosts.filter(|rules| rules.host == acl.host);
        hosts.any(|rules| rules.operations(acl.permission).contains(acl.operation))
    }

    /// Adds a rule; returns whether it is new.
    fn insert(&mut self, acl: &Acl) -> bool {
        let hosts = self.0.entry(acl.principal.clone()).or_default();
        let position = hosts.iter().position(|rules| rules.host == acl.host);
        let position = position.unwrap_or_else(|| {
            hosts.push(HostRules {
                host: acl.host,
                allowed: Operations::default(),
                denied: Operations::default(),
            });
            hosts.len() - 1
        });
        let operations = hosts[position].operations_mut(acl.permission);
        let is_new = !operations.contains(acl.operation);
        operations.insert(acl.operation);
        is_new
    }

    /// Removes a rule; returns whether it existed.
    fn remove(&mut self, acl: &Acl) -> bool {
        let Some(hosts) = self.0.get_mut(&acl.principal) else {
            return false;
        };
        let Some(position) = hosts.iter().position(|rules| rules.host == acl.host) else {
            return false;
        };
        let rules = &mut hosts[position];
        let operations = rules.operations_mut(acl.permission);
        let was_there = operations.contains(acl.operation);
        operations.remove(acl.operation);
        if rules.allowed.is_empty() && rules.denied.is_empty() {
            hosts.swap_remove(position);
        }
        if hosts.is_empty() {
            self.0.remove(&acl.principal);
        }
        was_there
    }

    fn iter(&self, pattern: &Pattern) -> impl Iterator<Item = Acl> {
        let hosts = self
            .0
            .iter()
            .flat_map(|(principal, hosts)| hosts.iter().map(move |rules| (principal, rules)));
        hosts.flat_map(move |(principal, rules)| {
            Permission::ALL.iter().flat_map(move |permission| {
                let operations = rules.operations(*permission).iter();
                operations.map(move |operation| Acl {
                    pattern: pattern.clone(),
                    principal: principal.clone(),
                    host: rules.host,
                    operation,
                    permission: *permission,
                })
            })
        })
    }
}

impl HostRules {
    fn operations(&self, permission: Permission) -> Operations {
        match permission {
            Permission::Allow => self.allowed,
            Permission::Deny => self.denied,
        }
    }

    fn operations_mut(&mut self, permission: Permission) -> &mut Operations {
        match permission {
            Permission::Allow => &mut self.allowed,
            Permission::Deny => &mut self.denied,
        }
    }
}
