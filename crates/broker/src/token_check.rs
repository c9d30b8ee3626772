//! Checks tokens with the keys of a file, which is read again when it changes.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::Clock;
use parking_lot::RwLock;

use crate::security::{KEYS_BYTES_MAX, TokenError, TokenKeys, TokenRules, Verified};

/// Which tokens clients may log in with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenConfig {
    /// The file with the public keys (JWKS) of those who sign tokens. It is read again every minute.
    pub keys: PathBuf,
    /// What tokens must say.
    pub rules: TokenRules,
}

/// Why there are no keys to check tokens with.
#[derive(Debug, thiserror::Error)]
pub enum TokenKeysError {
    /// The file cannot be read.
    #[error("cannot read the keys for tokens in {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file has no keys.
    #[error("{} has no keys for tokens: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// Checks tokens.
pub struct TokenCheck {
    config: TokenConfig,
    keys: RwLock<TokenKeys>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for TokenCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
            keys: RwLock::new(read(&config.keys)?),
            config,
            clock,
        })
    }

    /// Reads the keys again; to be called from time to time.
    ///
    /// # Errors
    /// When the file cannot be used; then the keys stay that were read before.
    pub fn refresh(&self) -> Result<(), TokenKeysError> {
        *self.keys.write() = read(&self.config.keys)?;
        Ok(())
    }

    /// Checks a token now.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn check(&self, token: &str) -> Result<Verified, TokenError> {
        let keys = self.keys.read();
        keys.check(token, &self.config.rules, self.clock.now())
    }
}

fn read(path: &Path) -> Result<TokenKeys, TokenKeysError> {
    let error = |error| TokenKeysError::Read {
        path: path.to_owned(),
        error,
    };
    let mut json = Vec::new();
    let file = File::open(path).map_err(error)?;
    // One byte more shows that it is too large.
    let mut bounded = file.take(KEYS_BYTES_MAX as u64 + 1);
    bounded.read_to_end(&mut json).map_err(error)?;
    TokenKeys::parse(&json).map_err(|what| TokenKeysError::Content {
        path: path.to_owned(),
        what,
    })
}
