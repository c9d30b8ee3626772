//! Kafka's requests about users: DescribeUserScramCredentials and AlterUserScramCredentials. The
//! caller checks whether the client may send them.

use std::collections::{BTreeMap, HashSet};

use millstream_wire::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use millstream_wire::messages::alter_user_scram_credentials_response::AlterUserScramCredentialsResult;
use millstream_wire::messages::describe_user_scram_credentials_response::{
    CredentialInfo, DescribeUserScramCredentialsResult,
};
use millstream_wire::messages::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
};
use millstream_wire::sasl::{Credential, Hash, Iterations, SaltedPassword};
use millstream_wire::{ResponseError, StrBytes};

use super::Record;
use super::record::{Change, hash_code, hash_of_code};
use super::store::Store;
use super::users::{self, USERS_MAX, UserError};

/// The error for a user that is not described or changed.
type Refusal = (ResponseError, String);

fn refusal(error: ResponseError, message: impl ToString) -> Refusal {
    (error, message.to_string())
}

impl Store {
    /// Describes the users that the request names, or all: their hashes and counts of iterations.
    pub fn describe_users(
        &self,
        request: &DescribeUserScramCredentialsRequest,
    ) -> DescribeUserScramCredentialsResponse {
        let named = request.users.as_ref().filter(|users| !users.is_empty());
        let results = match named {
            None => self
                .users()
                .iter()
                .map(|(user, credentials)| described(user, credentials))
                .collect(),
            Some(users) => {
                let mut times: BTreeMap<&str, usize> = BTreeMap::new();
                for user in users {
                    *times.entry(&user.name).or_default() += 1;
                }
                times
                    .into_iter()
                    .map(|(user, times)| self.describe_user(user, times))
                    .collect()
            }
        };
        DescribeUserScramCredentialsResponse::default()
            .with_error_message(None)
            .with_results(results)
    }

    fn describe_user(&self, user: &str, times: usize) -> DescribeUserScramCredentialsResult {
        let (error, message) = if times > 1 {
            let message = "a user cannot be described twice in the same request";
            (ResponseError::DuplicateResource, message)
        } else if !self.users().contains(user) {
            (ResponseError::ResourceNotFound, "there is no such user")
        } else {
            return described(user, self.users().credentials(user));
        };
        DescribeUserScramCredentialsResult::default()
            .with_user(StrBytes::from_string(user.to_owned()))
            .with_error_code(error.code())
            .with_error_message(Some(StrBytes::from_static_str(message)))
    }

    /// Returns the answer and the records of the request's changes. If one change of a user is not
    /// possible, none of that user is made.
    pub fn alter_users(
        &self,
        request: &AlterUserScramCredentialsRequest,
    ) -> (AlterUserScramCredentialsResponse, Vec<Record>) {
        let mut alteration = Alteration {
            store: self,
            altered: HashSet::new(),
            users: BTreeMap::new(),
            new_users: 0,
        };
        for deletion in &request.deletions {
            alteration.add(&deletion.name, deletion.mechanism, |hash| {
                self.deletion(deletion, hash)
            });
        }
        for upsertion in &request.upsertions {
            alteration.add(&upsertion.name, upsertion.mechanism, |hash| {
                self.upsertion(upsertion, hash)
            });
        }
        alteration.done()
    }

    fn deletion(&self, deletion: &ScramCredentialDeletion, hash: Hash) -> Result<Record, Refusal> {
        self.user_tombstone(&deletion.name, hash).ok_or_else(|| {
            let error = ResponseError::ResourceNotFound;
            refusal(error, "there is no such credential to delete")
        })
    }

    fn upsertion(
        &self,
        upsertion: &ScramCredentialUpsertion,
        hash: Hash,
    ) -> Result<Record, Refusal> {
        let unacceptable = |error: UserError| refusal(ResponseError::UnacceptableCredential, error);
        let iterations = u32::try_from(upsertion.iterations);
        let iterations = Iterations(iterations.map_err(|_| unacceptable(UserError::Iterations))?);
        users::check(&upsertion.name, &upsertion.salt, iterations).map_err(unacceptable)?;
        let salted = SaltedPassword::from_bytes(hash, &upsertion.salted_password)
            .ok_or_else(|| unacceptable(UserError::SaltedPassword))?;
        let credential = Credential::of_salted(&salted, &upsertion.salt, iterations);
        let user = upsertion.name.to_string();
        Ok(Change::Credential(user, hash, Some(credential)).encode())
    }
}

/// The changes of one request.
struct Alteration<'a> {
    store: &'a Store,
    altered: HashSet<(StrBytes, i8)>,
    users: BTreeMap<StrBytes, Result<Vec<Record>, Refusal>>,
    new_users: usize,
}

impl Alteration<'_> {
    fn add(
        &mut self,
        user: &StrBytes,
        mechanism: i8,
        change: impl FnOnce(Hash) -> Result<Record, Refusal>,
    ) {
        let change = self.check(user, mechanism).and_then(change);
        let result = self
            .users
            .entry(user.clone())
            .or_insert_with(|| Ok(Vec::new()));
        match (result, change) {
            (Ok(records), Ok(record)) => records.push(record),
            (result @ Ok(_), Err(refusal)) => *result = Err(refusal),
            // The answer has the first error only.
            (Err(_), _) => {}
        }
    }

    fn check(&mut self, user: &StrBytes, mechanism: i8) -> Result<Hash, Refusal> {
        if !self.altered.insert((user.clone(), mechanism)) {
            let message = "a user credential cannot be altered twice in the same request";
            return Err(refusal(ResponseError::DuplicateResource, message));
        }
        let is_new = !self.store.users().contains(user);
        if is_new && !self.users.contains_key(user) {
            self.new_users += 1;
        }
        if is_new && self.store.users().len() + self.new_users > USERS_MAX {
            return Err(refusal(ResponseError::PolicyViolation, UserError::TooMany));
        }
        hash_of_code(mechanism).ok_or_else(|| {
            let error = ResponseError::UnsupportedSaslMechanism;
            refusal(
                error,
                "the mechanism must be 1 (SCRAM-SHA-256) or 2 (SCRAM-SHA-512)",
            )
        })
    }

    fn done(self) -> (AlterUserScramCredentialsResponse, Vec<Record>) {
        let mut records = Vec::new();
        let results = self.users.into_iter().map(|(user, result)| {
            let result_of_user = AlterUserScramCredentialsResult::default().with_user(user);
            match result {
                Ok(of_user) => {
                    records.extend(of_user);
                    result_of_user.with_error_message(None)
                }
                Err((error, message)) => result_of_user
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_string(message))),
            }
        });
        let results = results.collect();
        let response = AlterUserScramCredentialsResponse::default().with_results(results);
        (response, records)
    }
}

fn described<'a>(
    user: &str,
    credentials: impl Iterator<Item = &'a Credential>,
) -> DescribeUserScramCredentialsResult {
    let infos = credentials.map(|credential| {
        CredentialInfo::default()
            .with_mechanism(hash_code(credential.hash()) as i8)
            .with_iterations(credential.iterations().0 as i32)
    });
    DescribeUserScramCredentialsResult::default()
        .with_user(StrBytes::from_string(user.to_owned()))
        .with_error_message(None)
        .with_credential_infos(infos.collect())
}
