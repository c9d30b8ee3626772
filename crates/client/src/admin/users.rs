//! Users that log in with SCRAM.

use bytes::Bytes;
use millstream_base::{Random, SystemRandom};
use millstream_wire::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use millstream_wire::messages::{
    AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest,
};
use millstream_wire::sasl::{Hash, ITERATIONS_DEFAULT, SaltedPassword};

use crate::client::{Client, text};
use crate::error::ClientError;

const SALT_BYTES: usize = 24;

/// A user with its credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The credentials that the server stores, without the passwords.
    pub credentials: Vec<UserCredential>,
}

/// A credential by which a user can log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserCredential {
    /// The hash; `None` if this client does not know it.
    pub hash: Option<Hash>,
    /// The number of hash iterations.
    pub iterations: i32,
}

/// Returns the number of a hash in Kafka's protocol.
fn mechanism(hash: Hash) -> i8 {
    match hash {
        Hash::Sha256 => 1,
        Hash::Sha512 => 2,
    }
}

impl Client {
    /// Returns all users, by name.
    ///
    /// # Errors
    /// When no server answers, or the client may not read users.
    pub async fn users(&self) -> Result<Vec<User>, ClientError> {
        let request = DescribeUserScramCredentialsRequest::default().with_users(None);
        let answer = self.ask(request).await?;
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, "listing users")?;
        let hashes = [Hash::Sha256, Hash::Sha512];
        let users = answer.results.into_iter().map(|user| User {
            name: user.user.to_string(),
            credentials: user
                .credential_infos
                .iter()
                .map(|info| UserCredential {
                    hash: hashes
                        .into_iter()
                        .find(|hash| mechanism(*hash) == info.mechanism),
                    iterations: info.iterations,
                })
                .collect(),
        });
        let mut users: Vec<User> = users.collect();
        users.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(users)
    }

    /// Sets a user's password, and creates the user if there is none. The client hashes the
    /// password and sends only the result; that result is as secret as the password.
    ///
    /// # Errors
    /// When the server refuses it.
    pub async fn set_password(
        &self,
        user: &str,
        hash: Hash,
        password: &str,
    ) -> Result<(), ClientError> {
        let mut salt = vec![0; SALT_BYTES];
        let filled = SystemRandom.fill(&mut salt);
        filled.map_err(|error| ClientError::Connect {
            address: self.config().servers.join(","),
            error: std::sync::Arc::new(error),
        })?;
        let salted = SaltedPassword::new(hash, password, &salt, ITERATIONS_DEFAULT);
        let upsertion = ScramCredentialUpsertion::default()
            .with_name(text(user))
            .with_mechanism(mechanism(hash))
            .with_iterations(i32::try_from(ITERATIONS_DEFAULT.0).unwrap_or(i32::MAX))
            .with_salt(salt.into())
            .with_salted_password(Bytes::copy_from_slice(salted.as_bytes()));
        let request = AlterUserScramCredentialsRequest::default().with_upsertions(vec![upsertion]);
        self.alter_users(request).await
    }

    /// Removes a user's passwords of these hashes. A user without any password no longer exists.
    ///
    /// # Errors
    /// When there is no user of this name.
    pub async fn delete_passwords(&self, user: &str, hashes: &[Hash]) -> Result<(), ClientError> {
        let deletions = hashes.iter().map(|hash| {
            ScramCredentialDeletion::default()
                .with_name(text(user))
                .with_mechanism(mechanism(*hash))
        });
        let request =
            AlterUserScramCredentialsRequest::default().with_deletions(deletions.collect());
        self.alter_users(request).await
    }

    async fn alter_users(
        &self,
        request: AlterUserScramCredentialsRequest,
    ) -> Result<(), ClientError> {
        for result in self.ask(request).await?.results {
            let message = result.error_message.as_deref();
            let what = format!("user {}", result.user.as_str());
            ClientError::check(result.error_code, message, what)?;
        }
        Ok(())
    }
}
