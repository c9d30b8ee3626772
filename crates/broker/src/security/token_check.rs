//! Checks tokens with the keys of a file or a URL, and reads these again from time to time.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Clock, LineLimit};
use parking_lot::RwLock;

use super::key_url::{FetchError, KeysUrl};
use super::tokens::{KEYS_BYTES_MAX, TokenError, TokenKeys, TokenRules, Verified};

/// The time between two readings of a file.
const FILE_RENEW_EVERY: Duration = Duration::from_secs(60);

/// The time between two fetches from a URL.
const URL_RENEW_EVERY: Duration = Duration::from_secs(5 * 60);

/// Tokens with unknown keys make the check read its keys again at most this often: any client can
/// send them.
const RENEW_FOR_UNKNOWN_EVERY: Duration = Duration::from_secs(30);

/// At most one warning about keys that cannot be read in each stretch of this length: keys may stay unreadable for days.
const WARN_EVERY: Duration = Duration::from_secs(10 * 60);

/// Which tokens clients may log in with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenConfig {
    /// Where the public keys (JWKS) of the issuers are. The broker reads them again from time to time, and when a token names a
    /// key that it does not know.
    pub keys: KeySource,
    /// The file with the certificates of the authorities that may have signed the certificate of the URL; without it, those of
    /// the system.
    pub authorities: Option<PathBuf>,
    /// The rules for the claims of tokens.
    pub rules: TokenRules,
}

/// Where the public keys of issuers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// In a file.
    File(PathBuf),
    /// At a URL.
    Url(KeysUrl),
}

impl KeySource {
    /// Returns the time between two readings.
    pub(crate) fn renew_every(&self) -> Duration {
        match self {
            KeySource::File(_) => FILE_RENEW_EVERY,
            KeySource::Url(_) => URL_RENEW_EVERY,
        }
    }
}

/// Parses text with `://` as a URL, other text as the path of a file.
impl FromStr for KeySource {
    type Err = String;

    fn from_str(text: &str) -> Result<KeySource, String> {
        match text.contains("://") {
            true => text.parse().map(KeySource::Url),
            false if text.is_empty() => Err("must not be empty".to_owned()),
            false => Ok(KeySource::File(text.into())),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::File(path) => path.display().fmt(f),
            KeySource::Url(url) => url.fmt(f),
        }
    }
}

/// Why there are no keys to check tokens with.
#[derive(thiserror::Error)]
pub enum TokenKeysError {
    /// The file cannot be read.
    #[error("cannot read the keys for tokens in {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The URL cannot be fetched.
    #[error("cannot fetch the keys for tokens from {url}: {error}")]
    Fetch {
        /// The URL.
        url: String,
        /// Why.
        error: Box<FetchError>,
    },
    /// The file or the URL has no keys.
    #[error("{keys} has no keys for tokens: {what}")]
    Content {
        /// The file or the URL.
        keys: String,
        /// The fault in the content.
        what: String,
    },
}

millstream_base::debug_as_display!(TokenKeysError);

/// Checks tokens.
pub struct TokenCheck {
    config: TokenConfig,
    keys: RwLock<TokenKeys>,
    clock: Arc<dyn Clock>,
    warnings: LineLimit,
    /// The time from which on a token with an unknown key makes the check read its keys again.
    /// Locked while it reads, so that further logins with unknown keys wait for the new keys.
    unknown_from: tokio::sync::Mutex<Duration>,
}

impl fmt::Debug for TokenCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCheck")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl TokenCheck {
    /// Reads the keys.
    ///
    /// # Errors
    /// See [`TokenKeysError`].
    pub fn open(config: TokenConfig, clock: Arc<dyn Clock>) -> Result<TokenCheck, TokenKeysError> {
        Ok(TokenCheck {
            keys: RwLock::new(read(&config)?),
            config,
            clock,
            warnings: LineLimit::new(1, WARN_EVERY),
            unknown_from: tokio::sync::Mutex::default(),
        })
    }

    /// Reads the keys again. When that fails, the check keeps its keys and warns.
    pub fn renew(&self) {
        match read(&self.config) {
            Ok(keys) => *self.keys.write() = keys,
            Err(error) => {
                if let Some(left_out) = self.warnings.take(self.clock.monotonic()) {
                    tracing::warn!(left_out, "tokens: the old keys stay in use: {error}");
                }
            }
        }
    }

    /// Returns the time between two readings of the keys.
    pub fn renew_every(&self) -> Duration {
        self.config.keys.renew_every()
    }

    /// Returns whether a token names a key that the check does not have.
    pub fn lacks_key_of(&self, token: &str) -> bool {
        self.keys.read().lacks_key_of(token)
    }

    /// Reads the keys again for a token with an unknown key: its issuer may have begun to use a new
    /// one. Does nothing if the last reading for an unknown key is less than 30 seconds ago.
    pub async fn renew_for_unknown(self: &Arc<Self>) {
        let mut unknown_from = self.unknown_from.lock().await;
        let now = self.clock.monotonic();
        if now < *unknown_from {
            return;
        }
        *unknown_from = now + RENEW_FOR_UNKNOWN_EVERY;
        let check = Arc::clone(self);
        // It fails only while the runtime ends.
        let _ = tokio::task::spawn_blocking(move || check.renew()).await;
    }

    /// Checks a token now.
    ///
    /// # Errors
    /// When the token is refused.
    pub fn check(&self, token: &str) -> Result<Verified, TokenError> {
        let keys = self.keys.read();
        keys.check(token, &self.config.rules, self.clock.now())
    }
}

fn read(config: &TokenConfig) -> Result<TokenKeys, TokenKeysError> {
    let json = match &config.keys {
        KeySource::File(path) => read_file(path).map_err(|error| TokenKeysError::Read {
            path: path.clone(),
            error,
        })?,
        KeySource::Url(url) => {
            let fetched = url.fetch(config.authorities.as_deref());
            let fetched = fetched.map_err(|error| TokenKeysError::Fetch {
                url: url.to_string(),
                error: Box::new(error),
            })?;
            fetched.into()
        }
    };
    TokenKeys::parse(&json).map_err(|what| TokenKeysError::Content {
        keys: config.keys.to_string(),
        what,
    })
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut json = Vec::new();
    // One byte more shows that it is too large.
    let mut bounded = File::open(path)?.take(KEYS_BYTES_MAX as u64 + 1);
    bounded.read_to_end(&mut json)?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use base64::Engine;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use millstream_base::Timestamp;
    use millstream_sim::SimClock;
    use ring::rand::SystemRandom;
    use ring::signature::{Ed25519KeyPair, KeyPair};
    use serde_json::{Value, json};
    use tempfile::TempDir;

    use super::*;
    use crate::security::tests::lines_of;

    /// A key with a name, which signs tokens.
    struct Signer {
        id: &'static str,
        pair: Ed25519KeyPair,
    }

    impl Signer {
        fn new(id: &'static str) -> Signer {
            let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
            let pair = Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap();
            Signer { id, pair }
        }

        fn public(&self) -> Value {
            let x = BASE64_URL_SAFE_NO_PAD.encode(self.pair.public_key());
            json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.id })
        }

        fn token(&self) -> String {
            let header = json!({ "alg": "EdDSA", "kid": self.id });
            let claims = json!({ "iss": "i", "aud": "a", "sub": "alice", "exp": 1_000_000 });
            let parts =
                [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
            let signed = parts.join(".");
            let signature = self.pair.sign(signed.as_bytes());
            format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
        }
    }

    /// A check, its key file and its clock.
    struct Checked {
        dir: TempDir,
        clock: SimClock,
        check: Arc<TokenCheck>,
    }

    impl Checked {
        fn new(signers: &[&Signer]) -> Checked {
            let dir = tempfile::tempdir().unwrap();
            let keys = dir.path().join("keys.json");
            fs::write(&keys, set_of(signers)).unwrap();
            let clock = SimClock::new(Timestamp(1_000));
            let rules = TokenRules {
                issuer: "i".to_owned(),
                audience: "a".to_owned(),
                user_claim: "sub".to_owned(),
            };
            let config = TokenConfig {
                keys: KeySource::File(keys),
                authorities: None,
                rules,
            };
            let check = TokenCheck::open(config, Arc::new(clock.clone())).unwrap();
            let check = Arc::new(check);
            Checked { dir, clock, check }
        }

        fn write(&self, keys: &str) {
            fs::write(self.dir.path().join("keys.json"), keys).unwrap();
        }

        fn takes(&self, signer: &Signer) -> Result<(), TokenError> {
            self.check.check(&signer.token()).map(|_| ())
        }
    }

    fn set_of(signers: &[&Signer]) -> String {
        let keys: Vec<Value> = signers.iter().map(|signer| signer.public()).collect();
        json!({ "keys": keys }).to_string()
    }

    #[test]
    fn a_changed_key_file_brings_new_keys_and_ends_removed_ones() {
        let [first, second] = ["first", "second"].map(Signer::new);
        let checked = Checked::new(&[&first]);
        checked.write(&set_of(&[&first, &second]));
        assert_eq!(checked.takes(&second), Err(TokenError::UnknownKey));
        checked.check.renew();
        assert_eq!(checked.takes(&first), Ok(()));
        assert_eq!(checked.takes(&second), Ok(()));
        checked.write(&set_of(&[&second]));
        checked.check.renew();
        assert_eq!(checked.takes(&first), Err(TokenError::UnknownKey));
        assert_eq!(checked.takes(&second), Ok(()));
    }

    #[test]
    fn a_broken_key_file_keeps_the_old_keys_and_is_logged_once_in_ten_minutes() {
        let signer = Signer::new("k");
        let checked = Checked::new(&[&signer]);
        let minute_passes = || {
            checked.clock.advance(Duration::from_secs(60));
            checked.check.renew();
            assert_eq!(checked.takes(&signer), Ok(()));
        };
        for broken in ["", "{}", "{\"keys\":[]}", &" ".repeat(KEYS_BYTES_MAX + 1)] {
            checked.write(broken);
            let lines = lines_of(|| (0..10).for_each(|_| minute_passes()));
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].contains("WARN"), "{lines:?}");
            assert!(lines[0].contains("the old keys stay in use"), "{lines:?}");
            assert!(lines[0].contains("keys.json"), "{lines:?}");
        }
        fs::remove_file(checked.dir.path().join("keys.json")).unwrap();
        let lines = lines_of(minute_passes);
        assert!(lines[0].contains("left_out=9"), "{lines:?}");
        assert!(lines[0].contains("cannot read"), "{lines:?}");
    }

    #[tokio::test]
    async fn tokens_of_unknown_keys_cause_at_most_two_reads_of_keys_a_minute() {
        let [first, second, third] = ["first", "second", "third"].map(Signer::new);
        let checked = Checked::new(&[&first]);
        assert!(!checked.check.lacks_key_of(&first.token()));
        assert!(checked.check.lacks_key_of(&second.token()));
        checked.write(&set_of(&[&first, &second]));
        checked.check.renew_for_unknown().await;
        assert_eq!(checked.takes(&second), Ok(()));
        checked.write(&set_of(&[&second, &third]));
        checked.clock.advance(Duration::from_secs(29));
        checked.check.renew_for_unknown().await;
        assert_eq!(checked.takes(&third), Err(TokenError::UnknownKey));
        checked.clock.advance(Duration::from_secs(1));
        checked.check.renew_for_unknown().await;
        assert_eq!(checked.takes(&third), Ok(()));
    }
}
