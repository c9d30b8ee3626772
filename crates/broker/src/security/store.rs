//! The security state that the log stores.

use millstream_wire::sasl::{Credential, Hash, Iterations};

use super::acl::{Acl, AclFilter, InvalidPattern};
use super::acls::{AclSettings, Acls};
use super::quotas::Quotas;
use super::record::Change;
use super::users::{self, SALT_BYTES, Secret, USERS_MAX, UserError, Users};
use super::{Record, RecordError};

/// Users, access rules and quotas.
///
/// A request for a change returns records and changes nothing. The caller appends these to the log,
/// waits until they are durable, and hands each to [`apply`](Self::apply). Changes are made one
/// after another, since each is checked against the current state.
///
/// ```
/// use millstream_broker::security::{AclSettings, Principal, Resource, Operation, Secret, Store};
/// use millstream_wire::sasl::{Hash, Iterations};
///
/// // The log is empty at first. The secret is random, and kept from now on.
/// let settings = AclSettings::new(true);
/// let (mut store, first) = Store::restore(settings.clone(), [], Secret::from_random([7; 32]))?;
/// let mut log = Vec::from_iter(first);
///
/// let record = store.user_record("alice", "secret", Hash::Sha256, Iterations(4096), &[1; 24])?;
/// log.push(record.clone());
/// store.apply(record)?;
///
/// let (restored, first) = Store::restore(settings, log, Secret::from_random([8; 32]))?;
/// assert!(first.is_none());
/// assert!(restored.users().credential("alice", Hash::Sha256).unwrap().is_of("secret"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Store {
    users: Users,
    acls: Acls,
    quotas: Quotas,
}

impl Store {
    /// Restores the state from the records of the log, oldest first. If there is no secret among
    /// them, it takes `spare`, and returns it as a record for the log.
    ///
    /// # Errors
    /// When a record is damaged, or was written by a later version of the program.
    pub fn restore(
        settings: AclSettings,
        records: impl IntoIterator<Item = Record>,
        spare: Secret,
    ) -> Result<(Store, Option<Record>), RecordError> {
        let mut store = Store {
            users: Users::new(spare.clone()),
            acls: Acls::new(settings),
            quotas: Quotas::default(),
        };
        let mut lacks_secret = true;
        for record in records {
            let change = Change::decode(record)?;
            lacks_secret &= !matches!(change, Change::Secret(_));
            store.make(change);
        }
        let first = lacks_secret.then(|| Change::Secret(spare).encode());
        Ok((store, first))
    }

    /// Applies a record.
    ///
    /// # Errors
    /// When it is damaged, or was written by a later version of the program.
    pub fn apply(&mut self, record: Record) -> Result<(), RecordError> {
        self.make(Change::decode(record)?);
        Ok(())
    }

    fn make(&mut self, change: Change) {
        match change {
            Change::Secret(secret) => self.users.set_secret(secret),
            Change::Credential(user, hash, credential) => self.users.set(&user, hash, credential),
            Change::Acl(acl, true) => self.acls.insert(&acl),
            Change::Acl(acl, false) => self.acls.remove(&acl),
            Change::Quota(entity, limits) => self.quotas.set(entity, limits),
            Change::ConnectionRate(entity, rate) => self.quotas.set_connection_rate(entity, rate),
        }
    }

    /// Returns records from which [`restore`](Self::restore) makes the same state.
    pub fn snapshot(&self) -> Vec<Record> {
        let secret = Change::Secret(self.users.secret().clone());
        let credentials = self.users.iter().flat_map(|(user, credentials)| {
            credentials.map(|credential| {
                let hash = credential.hash();
                Change::Credential(user.to_owned(), hash, Some(credential.clone()))
            })
        });
        let acls = self.acls.find(&AclFilter::ALL).into_iter();
        let acls = acls.map(|acl| Change::Acl(acl, true));
        let quotas = self.quotas.iter();
        let quotas = quotas.map(|(entity, limits)| Change::Quota(entity.clone(), *limits));
        let rates = self.quotas.connection_rates().iter();
        let rates = rates.map(|(entity, rate)| Change::ConnectionRate(entity, Some(rate)));
        let changes = std::iter::once(secret).chain(credentials).chain(acls);
        let changes = changes.chain(quotas).chain(rates);
        changes.map(|change| change.encode()).collect()
    }

    /// Returns the users.
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// Returns the access rules.
    pub fn acls(&self) -> &Acls {
        &self.acls
    }

    /// Returns the quotas of clients and addresses.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Returns the record that sets a user's password; takes milliseconds. `salt` is random.
    ///
    /// # Errors
    /// When the name, the password or the count of iterations is out of bounds, or there are too many users.
    pub fn user_record(
        &self,
        user: &str,
        password: &str,
        hash: Hash,
        iterations: Iterations,
        salt: &[u8; SALT_BYTES],
    ) -> Result<Record, UserError> {
        users::check(user, salt, iterations)?;
        if !self.users.contains(user) && self.users.len() >= USERS_MAX {
            return Err(UserError::TooMany);
        }
        if password.is_empty() || password.contains('\0') {
            return Err(UserError::Password);
        }
        let credential = Credential::new(hash, password, salt, iterations);
        Ok(Change::Credential(user.to_owned(), hash, Some(credential)).encode())
    }

    /// Returns the record that removes a user's credential for this hash; `None` if there is none.
    pub fn user_tombstone(&self, user: &str, hash: Hash) -> Option<Record> {
        self.users.credential(user, hash)?;
        Some(Change::Credential(user.to_owned(), hash, None).encode())
    }

    /// Returns the record that adds an access rule; `None` if the rule exists.
    ///
    /// # Errors
    /// When no resource can have the name.
    pub fn acl_record(&self, acl: &Acl) -> Result<Option<Record>, InvalidPattern> {
        acl.pattern.check()?;
        let is_new = !self.acls.contains(acl);
        Ok(is_new.then(|| Change::Acl(acl.clone(), true).encode()))
    }

    /// Returns the record that removes an access rule; `None` if there is none.
    pub fn acl_tombstone(&self, acl: &Acl) -> Option<Record> {
        let is_there = self.acls.contains(acl);
        is_there.then(|| Change::Acl(acl.clone(), false).encode())
    }
}
