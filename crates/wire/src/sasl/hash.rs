//! The arithmetic of SCRAM (RFC 5802, section 3).

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;

use super::scram::ScramExchange;

/// The hash function of SCRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

/// The number of times that a password is hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iterations(pub u32);

impl fmt::Display for Iterations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The iterations for a password that this project's tools set. All tools use the same count, so
/// that it does not tell which tool created a user.
pub const ITERATIONS_DEFAULT: Iterations = Iterations(8192);

/// A result of the hash. It is never printed, and comparing keys takes the same time wherever they
/// differ.
#[derive(Clone)]
pub struct Key(Box<[u8]>);

impl Key {
    /// Returns the bytes, which are secret.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Key(bytes.into())
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Hash {
    /// Returns the size of its results, in bytes.
    pub const fn output_bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha512 => 64,
        }
    }

    /// Returns the message authentication code of a message under a key.
    pub fn hmac(self, key: &[u8], message: &[u8]) -> Key {
        match self {
            Hash::Sha256 => hmac::<Hmac<Sha256>>(key, message),
            Hash::Sha512 => hmac::<Hmac<Sha512>>(key, message),
        }
    }

    fn digest(self, message: &[u8]) -> Key {
        match self {
            Hash::Sha256 => Key::from(Sha256::digest(message).as_slice()),
            Hash::Sha512 => Key::from(Sha512::digest(message).as_slice()),
        }
    }
}

fn hmac<M: Mac + KeyInit>(key: &[u8], message: &[u8]) -> Key {
    let mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    let code = mac.chain_update(message).finalize().into_bytes();
    Key::from(code.as_slice())
}

/// A password that is hashed with salt, and as secret as the password itself. Clients send it to set a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaltedPassword {
    hash: Hash,
    key: Key,
}

impl SaltedPassword {
    /// Hashes a password. Some thousand iterations take milliseconds.
    pub fn new(hash: Hash, password: &str, salt: &[u8], iterations: Iterations) -> Self {
        let mut key = vec![0; hash.output_bytes()];
        let password = password.as_bytes();
        match hash {
            Hash::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations.0, &mut key),
            Hash::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, iterations.0, &mut key),
        }
        let key = Key(key.into());
        SaltedPassword { hash, key }
    }

    /// Returns the salted password of these bytes, from [`as_bytes`](Self::as_bytes) or from another program. It is the
    /// key of a message authentication code, and need not have the size of the hash. `None` if it is empty.
    pub fn from_bytes(hash: Hash, bytes: &[u8]) -> Option<Self> {
        let key = Key::from(bytes);
        (!bytes.is_empty()).then_some(SaltedPassword { hash, key })
    }

    /// Returns the bytes, which are secret.
    pub fn as_bytes(&self) -> &[u8] {
        self.key.as_bytes()
    }

    fn client_key(&self) -> Key {
        self.hash.hmac(self.as_bytes(), b"Client Key")
    }

    fn stored_key(&self) -> Key {
        self.hash.digest(self.client_key().as_bytes())
    }

    fn server_key(&self) -> Key {
        self.hash.hmac(self.as_bytes(), b"Server Key")
    }

    /// Returns the client's proof that it has the password.
    pub fn proof(&self, exchange: &ScramExchange) -> Key {
        let signature = exchange.sign(self.hash, &self.stored_key());
        exclusive_or(self.client_key().as_bytes(), signature.as_bytes())
    }

    /// Returns the server's signature, which the client expects.
    pub fn server_signature(&self, exchange: &ScramExchange) -> Key {
        exchange.sign(self.hash, &self.server_key())
    }
}

/// A user's credential as a server stores it. It suffices to check a proof and a password, but not to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    hash: Hash,
    salt: Box<[u8]>,
    iterations: Iterations,
    stored_key: Key,
    server_key: Key,
}

impl Credential {
    /// Returns the credential of a password. This takes as long as [`SaltedPassword::new`].
    pub fn new(hash: Hash, password: &str, salt: &[u8], iterations: Iterations) -> Self {
        let salted = SaltedPassword::new(hash, password, salt, iterations);
        Credential::of_salted(&salted, salt, iterations)
    }

    /// Returns the credential of a password that the client has hashed.
    pub fn of_salted(salted: &SaltedPassword, salt: &[u8], iterations: Iterations) -> Self {
        Credential {
            hash: salted.hash,
            salt: salt.into(),
            iterations,
            stored_key: salted.stored_key(),
            server_key: salted.server_key(),
        }
    }

    /// Returns the credential of these parts; `None` if a key does not have the size of the hash.
    pub fn from_parts(
        hash: Hash,
        salt: &[u8],
        iterations: Iterations,
        stored_key: &[u8],
        server_key: &[u8],
    ) -> Option<Self> {
        let size = hash.output_bytes();
        if stored_key.len() != size || server_key.len() != size {
            return None;
        }
        Some(Credential {
            hash,
            salt: salt.into(),
            iterations,
            stored_key: stored_key.into(),
            server_key: server_key.into(),
        })
    }

    /// Returns the hash function of the keys.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the salt, which the server sends to every client that asks for this user.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Returns the number of times that the password was hashed.
    pub fn iterations(&self) -> Iterations {
        self.iterations
    }

    /// Returns the key that checks the client's proof.
    pub fn stored_key(&self) -> &Key {
        &self.stored_key
    }

    /// Returns the key that makes the server's signature.
    pub fn server_key(&self) -> &Key {
        &self.server_key
    }

    /// Returns whether this is the password. This takes as long as [`SaltedPassword::new`].
    pub fn is_of(&self, password: &str) -> bool {
        let salted = SaltedPassword::new(self.hash, password, &self.salt, self.iterations);
        salted.stored_key() == self.stored_key
    }

    /// Returns whether the proof shows that the client has the password.
    pub fn is_proved_by(&self, proof: &Key, exchange: &ScramExchange) -> bool {
        let signature = exchange.sign(self.hash, &self.stored_key);
        if proof.as_bytes().len() != signature.as_bytes().len() {
            return false;
        }
        let client_key = exclusive_or(proof.as_bytes(), signature.as_bytes());
        self.hash.digest(client_key.as_bytes()) == self.stored_key
    }

    /// Returns the signature that shows the client that the server knows the user.
    pub fn signature(&self, exchange: &ScramExchange) -> Key {
        exchange.sign(self.hash, &self.server_key)
    }
}

/// Combines two keys of the same size by exclusive or.
fn exclusive_or(one: &[u8], other: &[u8]) -> Key {
    Key(one
        .iter()
        .zip(other)
        .map(|(one, other)| one ^ other)
        .collect())
}
