//! Tokens, for the tests of logins.

use std::path::Path;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

/// The claims that [`TokenSigner::token`] makes, as settings of `start`, without the keys.
pub const CLAIMS: [&str; 6] = [
    "--token-issuer",
    "i",
    "--token-audience",
    "a",
    "--token-user-claim",
    "name",
];

/// Signs tokens with a key of its own.
pub struct TokenSigner {
    id: &'static str,
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl TokenSigner {
    /// With a new key of this name.
    pub fn new(id: &'static str) -> TokenSigner {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pair = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pair.as_ref(), &random).unwrap();
        TokenSigner { id, pair, random }
    }

    /// The set of its public key alone.
    pub fn keys(&self) -> String {
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        let (x, y) = (base64(x), base64(y));
        json!({ "keys": [{ "kty": "EC", "crv": "P-256", "kid": self.id, "x": x, "y": y }] })
            .to_string()
    }

    /// Writes that set to a file.
    pub fn write_keys(&self, path: &Path) {
        std::fs::write(path, self.keys()).unwrap();
    }

    /// A token of a user that ends this number of seconds from now.
    pub fn token(&self, user: &str, lasts_s: i64) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let expires = now.unwrap().as_secs() as i64 + lasts_s;
        let claims = json!({ "iss": "i", "aud": "a", "name": user, "exp": expires });
        let parts = [json!({ "alg": "ES256", "kid": self.id }), claims];
        let signed = parts
            .map(|part| base64(part.to_string().as_bytes()))
            .join(".");
        let signature = self.pair.sign(&self.random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", base64(signature.as_ref()))
    }
}

fn base64(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}
