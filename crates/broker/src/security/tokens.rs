//! Tokens that clients log in with by OAUTHBEARER: JSON Web Tokens (RFC 7519), checked against a set of public keys (RFC 7517).

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use millstream_base::Timestamp;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::principal::Principal;

/// The largest set of keys, in bytes.
pub const KEYS_BYTES_MAX: usize = 256 << 10;

/// The most keys of a set.
const KEYS_MAX: usize = 100;

/// The largest accepted difference between the clocks of the server and of the issuer.
const CLOCK_SKEW_MS: i64 = 30_000;

/// The required claims of a signed token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRules {
    /// The issuer that a token must name (`iss`).
    pub issuer: String,
    /// The audience that a token must name (`aud`): otherwise tokens for other services would be
    /// valid here.
    pub audience: String,
    /// The claim that names the user; usually `sub`.
    pub user_claim: String,
}

/// The reason for which a token is refused. No message repeats the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text is not a token.
    #[error("it is not a JSON Web Token with a signature")]
    Malformed,
    /// The signature uses an algorithm that is not accepted, or there is none.
    #[error("it is not signed by RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA")]
    Algorithm,
    /// The set has no key that could have signed the token.
    #[error("the server does not know the key that has signed it")]
    UnknownKey,
    /// The signature is wrong.
    #[error("its signature is wrong")]
    Signature,
    /// The token has expired.
    #[error("it has expired, or does not say when it does")]
    Expired,
    /// The token is not valid yet.
    #[error("it is not valid yet")]
    Early,
    /// Another issuer has issued the token.
    #[error("its issuer is not the server's")]
    Issuer,
    /// The token is for another service.
    #[error("it is not for the server's audience")]
    Audience,
    /// The token names no user.
    #[error("it does not name a user")]
    User,
}

/// A valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The user that it names.
    pub principal: Principal,
    /// The end of its validity.
    pub ends_at: Timestamp,
}

/// A set of public keys of token issuers.
#[derive(Debug, Default)]
pub struct TokenKeys {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm that the key may be used with, if it names one.
    algorithm: Option<String>,
    material: Material,
}

enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Material::Rsa { .. } => "Rsa",
            Material::P256(_) => "P256",
            Material::P384(_) => "P384",
            Material::Ed25519(_) => "Ed25519",
        })
    }
}

/// A key, as RFC 7517 and 7518 write it.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Value>,
}

/// A token's header, as RFC 7515 writes it.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood; there are none.
    crit: Option<Value>,
}

impl TokenKeys {
    /// Parses a set of keys. Skips keys of other algorithms, and those that are not for signatures.
    ///
    /// # Errors
    /// When the text is no set, or has no usable key; the error gives the reason.
    pub fn parse(json: &[u8]) -> Result<TokenKeys, String> {
        if json.len() > KEYS_BYTES_MAX {
            return Err(format!("it is larger than {KEYS_BYTES_MAX} bytes"));
        }
        let set: Jwks = serde_json::from_slice(json)
            .map_err(|error| format!("it is not a set of keys (JWKS): {error}"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("it has more than {KEYS_MAX} keys"));
        }
        let keys: Vec<Key> = set.keys.into_iter().filter_map(Key::of).collect();
        match keys.is_empty() {
            true => Err("it has no public key of kind RSA, P-256, P-384 or Ed25519".to_owned()),
            false => Ok(TokenKeys { keys }),
        }
    }

    /// Returns whether a token names a key, and the set has none of that name and none without a
    /// name.
    pub fn lacks_key_of(&self, token: &str) -> bool {
        let header = token.split('.').next().unwrap_or_default();
        let Ok(Header { kid: Some(id), .. }) = json_of(header) else {
            return false;
        };
        let may_be = |key: &Key| key.id.as_ref().is_none_or(|known| *known == id);
        !self.keys.iter().any(may_be)
    }

    /// Checks a token.
    ///
    /// # Errors
    /// When the token is refused.
    pub fn check(
        &self,
        token: &str,
        rules: &TokenRules,
        now: Timestamp,
    ) -> Result<Verified, TokenError> {
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let header: Header = json_of(header)?;
        if header.crit.is_some() {
            return Err(TokenError::Malformed);
        }
        let signature = bytes_of(signature).ok_or(TokenError::Malformed)?;
        self.check_signature(&header, signed.as_bytes(), &signature)?;
        let claims: Map<String, Value> = json_of(claims)?;
        check_claims(&claims, rules, now)
    }

    fn check_signature(
        &self,
        header: &Header,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), TokenError> {
        const ALGORITHMS: [&str; 9] = [
            "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA",
        ];
        let algorithm = header.alg.as_str();
        if !ALGORITHMS.contains(&algorithm) {
            return Err(TokenError::Algorithm);
        }
        let may_be = |key: &&Key| {
            let is_named = match (&header.kid, &key.id) {
                (Some(wanted), Some(id)) => wanted == id,
                _ => true,
            };
            let is_for = key.algorithm.as_deref().is_none_or(|of| of == algorithm);
            is_named && is_for && key.material.signs_by(algorithm)
        };
        let mut candidates = self.keys.iter().filter(may_be).peekable();
        if candidates.peek().is_none() {
            return Err(TokenError::UnknownKey);
        }
        match candidates.any(|key| key.material.has_signed(algorithm, signed, signature)) {
            true => Ok(()),
            false => Err(TokenError::Signature),
        }
    }
}

impl Key {
    fn of(value: Value) -> Option<Key> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| bytes_of(text.as_deref()?);
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => Material::Rsa {
                modulus: without_zeros(bytes(&jwk.n)?),
                exponent: without_zeros(bytes(&jwk.e)?),
            },
            ("EC", Some("P-256")) => Material::P256(point(&bytes(&jwk.x)?, &bytes(&jwk.y)?, 32)?),
            ("EC", Some("P-384")) => Material::P384(point(&bytes(&jwk.x)?, &bytes(&jwk.y)?, 48)?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(&jwk.x)?),
            _ => return None,
        };
        Some(Key {
            id: jwk.kid,
            algorithm: jwk.alg,
            material,
        })
    }
}

impl Material {
    fn signs_by(&self, algorithm: &str) -> bool {
        match self {
            Material::Rsa { .. } => rsa_parameters(algorithm).is_some(),
            Material::P256(_) => algorithm == "ES256",
            Material::P384(_) => algorithm == "ES384",
            Material::Ed25519(_) => algorithm == "EdDSA",
        }
    }

    fn has_signed(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> bool {
        let by = |with: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(with, key).verify(signed, signature)
        };
        let verified = match self {
            Material::Rsa { modulus, exponent } => {
                let Some(parameters) = rsa_parameters(algorithm) else {
                    return false;
                };
                let key = RsaPublicKeyComponents {
                    n: modulus,
                    e: exponent,
                };
                key.verify(parameters, signed, signature)
            }
            Material::P256(key) => by(&ECDSA_P256_SHA256_FIXED, key),
            Material::P384(key) => by(&ECDSA_P384_SHA384_FIXED, key),
            Material::Ed25519(key) => by(&ED25519, key),
        };
        verified.is_ok()
    }
}

fn rsa_parameters(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// Claims of a wrong type are refused, never skipped.
fn check_claims(
    claims: &Map<String, Value>,
    rules: &TokenRules,
    now: Timestamp,
) -> Result<Verified, TokenError> {
    // Seconds since 1970, perhaps with a fraction; too large ones saturate.
    let time = |value: &Value| value.as_f64().map(|seconds| (seconds * 1e3) as i64);
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let expires = claims.get("exp").and_then(time);
    let expires = expires.ok_or(TokenError::Expired)?;
    let ends_at = Timestamp(expires.saturating_add(CLOCK_SKEW_MS));
    if ends_at <= now {
        return Err(TokenError::Expired);
    }
    for begin in ["nbf", "iat"].iter().filter_map(|name| claims.get(*name)) {
        let begin = time(begin).ok_or(TokenError::Early)?;
        if begin.saturating_sub(CLOCK_SKEW_MS) > now.0 {
            return Err(TokenError::Early);
        }
    }
    if text("iss") != Some(rules.issuer.as_str()) {
        return Err(TokenError::Issuer);
    }
    let is_audience = |value: &Value| value.as_str() == Some(rules.audience.as_str());
    let is_for_server = match claims.get("aud") {
        Some(Value::Array(all)) => all.iter().any(is_audience),
        Some(one) => is_audience(one),
        None => false,
    };
    if !is_for_server {
        return Err(TokenError::Audience);
    }
    let principal = text(&rules.user_claim).and_then(Principal::user);
    Ok(Verified {
        principal: principal.ok_or(TokenError::User)?,
        ends_at,
    })
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text).ok()
}

fn json_of<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, TokenError> {
    let bytes = bytes_of(text).ok_or(TokenError::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
}

/// Returns a number without leading zeros, as `ring` expects it.
fn without_zeros(number: Vec<u8>) -> Vec<u8> {
    number.into_iter().skip_while(|byte| *byte == 0).collect()
}

fn point(x: &[u8], y: &[u8], size: usize) -> Option<Vec<u8>> {
    let fits = x.len() == size && y.len() == size;
    fits.then(|| [&[4], x, y].concat())
}
