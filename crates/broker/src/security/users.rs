//! The users, and the credentials that prove a client's identity.
//!
//! Only the keys that SCRAM derives from a password are stored, never the password; PLAIN is
//! checked against the same keys.

use std::collections::BTreeMap;
use std::fmt;

use millstream_wire::sasl::{Credential, Hash, Iterations, Key};

use super::decoy::{Decoys, Shapes};
use super::principal::Principal;

/// The most users: each takes memory. Kafka has no bound.
pub const USERS_MAX: usize = 1_000_000;
/// The fewest iterations of a password's hash. Kafka's bound.
pub const ITERATIONS_MIN: Iterations = Iterations(4096);
/// The most iterations of a password's hash: more would make a login too slow. Kafka's bound.
pub const ITERATIONS_MAX: Iterations = Iterations(16_384);
/// Size of the salt, in bytes, of passwords that this project's tools set.
pub const SALT_BYTES: usize = 24;
/// The longest salt, in bytes.
const SALT_BYTES_MAX: usize = 255;
/// Size of [`Secret`], in bytes.
pub const SECRET_BYTES: usize = 32;

/// The secret that the salts of unknown users are derived from: each always gets the same salt, as
/// users that exist do.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// Makes a secret from random bytes, which must not be guessable.
    pub fn from_random(random: [u8; SECRET_BYTES]) -> Self {
        Secret(random)
    }

    pub(super) fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The reason for which a user or a credential is refused.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    /// The name is out of bounds.
    #[error("a user's name has 1 to 1024 bytes and no control characters, and is not *")]
    Name,
    /// The password is out of bounds.
    #[error("a password must not be empty or contain a zero byte")]
    Password,
    /// The count of iterations is out of bounds.
    #[error("a password is to be hashed {ITERATIONS_MIN} to {ITERATIONS_MAX} times")]
    Iterations,
    /// The salt is out of bounds.
    #[error("the salt has 1 to {SALT_BYTES_MAX} bytes")]
    Salt,
    /// The hashed password is out of bounds.
    #[error("the salted password is empty")]
    SaltedPassword,
    /// There are too many users.
    #[error("there may be {USERS_MAX} users at most")]
    TooMany,
}

millstream_base::debug_as_display!(UserError);

/// Checks the inputs of a password's hash.
pub(super) fn check(user: &str, salt: &[u8], iterations: Iterations) -> Result<(), UserError> {
    Principal::user(user).ok_or(UserError::Name)?;
    if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
        return Err(UserError::Iterations);
    }
    if !(1..=SALT_BYTES_MAX).contains(&salt.len()) {
        return Err(UserError::Salt);
    }
    Ok(())
}

/// All users.
#[derive(Debug, Clone)]
pub struct Users {
    secret: Secret,
    /// By name; at least one credential each.
    credentials: BTreeMap<String, Credentials>,
    /// The shapes of all users in `credentials`.
    decoys: Decoys,
}

/// The stored credentials of one user, by hash.
#[derive(Debug, Clone, Default)]
struct Credentials {
    sha256: Option<Credential>,
    sha512: Option<Credential>,
}

impl Credentials {
    fn place(&mut self, hash: Hash) -> &mut Option<Credential> {
        match hash {
            Hash::Sha256 => &mut self.sha256,
            Hash::Sha512 => &mut self.sha512,
        }
    }

    fn of(&self, hash: Hash) -> Option<&Credential> {
        match hash {
            Hash::Sha256 => self.sha256.as_ref(),
            Hash::Sha512 => self.sha512.as_ref(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Credential> {
        [&self.sha256, &self.sha512].into_iter().flatten()
    }

    fn shapes(&self) -> Option<Shapes> {
        Shapes::of(self.sha256.as_ref(), self.sha512.as_ref())
    }
}

/// The data that a client's proof is checked against.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// The user's credential; made up if the user does not exist.
    pub credential: Credential,
    /// Whether the user exists: if not, no proof is valid.
    pub exists: bool,
}

/// The credentials that a password is checked against: the stronger one first, made up if the user does not have it.
#[derive(Debug)]
pub(super) struct ClaimedPassword([Claimed; 2]);

impl ClaimedPassword {
    /// Returns whether the user exists and this is its password. Of two credentials the stronger one counts. This hashes
    /// the password, which takes milliseconds.
    pub(super) fn is(&self, password: &str) -> bool {
        // Both are hashed in any case, so that it takes the same time.
        let claims = self.0.each_ref().map(|claimed| {
            let is_password = claimed.credential.is_of(password);
            (claimed.exists, is_password)
        });
        let mut known = claims.into_iter().filter(|(exists, _)| *exists);
        known.next().is_some_and(|(_, is_password)| is_password)
    }
}

impl Users {
    /// Returns a set without users.
    pub fn new(secret: Secret) -> Self {
        Users {
            secret,
            credentials: BTreeMap::new(),
            decoys: Decoys::default(),
        }
    }

    /// Returns the number of users.
    pub fn len(&self) -> usize {
        self.credentials.len()
    }

    /// Returns whether there is a user of this name.
    pub fn contains(&self, user: &str) -> bool {
        self.credentials.contains_key(user)
    }

    /// Returns whether there is no user.
    pub fn is_empty(&self) -> bool {
        self.credentials.is_empty()
    }

    /// Returns a user's SCRAM credential for this hash.
    pub fn credential(&self, user: &str, hash: Hash) -> Option<&Credential> {
        self.credentials.get(user)?.of(hash)
    }

    /// Returns all credentials of a user: one or two, or none if the user does not exist.
    pub fn credentials(&self, user: &str) -> impl Iterator<Item = &Credential> {
        self.credentials
            .get(user)
            .into_iter()
            .flat_map(Credentials::iter)
    }

    /// Returns the names of all users, sorted, each with its credentials.
    pub fn iter(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &Credential>)> {
        let all = self.credentials.iter();
        all.map(|(name, credentials)| (name.as_str(), credentials.iter()))
    }

    /// Returns the credential that a SCRAM login with this hash is checked against.
    pub(super) fn claimed(&self, user: &str, hash: Hash) -> Claimed {
        // Made up in any case, so that it takes the same time.
        let made_up = self.made_up(user, hash);
        let known = self.credential(user, hash);
        Claimed {
            exists: known.is_some(),
            credential: known.cloned().unwrap_or(made_up),
        }
    }

    /// Returns the credentials that a PLAIN login is checked against.
    pub(super) fn claimed_password(&self, user: &str) -> ClaimedPassword {
        ClaimedPassword([Hash::Sha512, Hash::Sha256].map(|hash| self.claimed(user, hash)))
    }

    /// Returns a credential like that of an existing user, with a password that no client has. For
    /// an existing user it has the shape of the user's other credential.
    fn made_up(&self, user: &str, hash: Hash) -> Credential {
        let keyed = |message: &[&str]| -> Key {
            Hash::Sha512.hmac(&self.secret.0, message.join("\0").as_bytes())
        };
        let code = |purpose: &str| keyed(&[purpose, hash_name(hash), user]);
        // The shapes are drawn in any case, so that it takes the same time.
        let drawn = self.decoys.shapes(&keyed(&["shapes", user]));
        let known = self.credentials.get(user).and_then(Credentials::shapes);
        let shape = known.unwrap_or(drawn).shape(hash);
        let size = hash.output_bytes();
        let keys = [code("stored key"), code("server key")];
        let [stored_key, server_key] = keys.each_ref().map(|key| &key.as_bytes()[..size]);
        let salt = shape.salt(&code("salt"));
        Credential::from_parts(hash, &salt, shape.iterations(), stored_key, server_key)
            .expect("the keys were cut to the size of the hash")
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    pub(super) fn set_secret(&mut self, secret: Secret) {
        self.secret = secret;
    }

    /// Sets a credential in place of an earlier one, or removes it.
    pub(super) fn set(&mut self, user: &str, hash: Hash, credential: Option<Credential>) {
        if credential.is_none() && !self.credentials.contains_key(user) {
            return;
        }
        let credentials = self.credentials.entry(user.to_owned()).or_default();
        if let Some(old) = credentials.shapes() {
            self.decoys.remove(old);
        }
        *credentials.place(hash) = credential;
        match credentials.shapes() {
            Some(new) => self.decoys.add(new),
            None => {
                self.credentials.remove(user);
            }
        }
    }
}

fn hash_name(hash: Hash) -> &'static str {
    match hash {
        Hash::Sha256 => "SHA-256",
        Hash::Sha512 => "SHA-512",
    }
}
