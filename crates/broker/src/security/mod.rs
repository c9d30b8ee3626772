//! Security: authentication, authorization and the audit log.
//!
//! It has no I/O, clock and randomness of its own, with three exceptions: [`Tls`] reads files, the
//! check of tokens reads keys from a file or a URL, and `service` stores records in the log. Everything behaves as in Apache Kafka, so that its
//! clients and tools work unchanged.
//!
//! - [`Store`]: users and access rules, stored as [`Record`]s in the log, and the requests about
//!   them.
//! - [`Authentication`]: the login of one connection, by SASL.
//! - [`TokenConfig`]: the keys that tokens are checked with.
//! - [`Acls::authorize`]: whether a user may do an operation.
//! - [`AuditEvent`]: a line for each operation that was done or refused.
//! - [`Tls`]: certificates, and the user of a client's certificate.
//! - [`check_exposure`]: whether a broker may listen on an address.
//!
//! Clients cannot read the stream of these records: a reader can try out passwords offline, and
//! with the server key of a user it can impersonate the server to that user.

mod acl;
mod acl_requests;
mod acls;
mod audit;
mod config;
mod connection_pace;
mod decoy;
mod exposure;
mod ip_quotas;
mod key_url;
mod login_pace;
mod peer_lines;
mod principal;
mod quota_requests;
mod quotas;
mod record;
mod sasl;
pub(crate) mod service;
mod store;
#[cfg(test)]
mod tests;
mod throttle;
mod tls;
mod token_check;
mod tokens;
mod user_requests;
mod users;

pub use self::acl::{
    ANY_RESOURCE, Acl, AclFilter, CLUSTER_NAME, InvalidPattern, Operation, Pattern, PatternFilter,
    PatternType, Permission, Resource, ResourceType,
};
pub use self::acl_requests::ACLS_MAX;
pub use self::acls::{AclSettings, Acls};
pub use self::audit::{
    Action as AuditAction, Event as AuditEvent, Identity, TARGET as AUDIT_TARGET, log_changes,
};
pub use self::config::SecurityConfig;
pub use self::exposure::{Exposed, Exposure, check_exposure};
pub use self::ip_quotas::{ConnectionRate, ConnectionRates, InvalidIp, IpEntity};
pub use self::key_url::{FetchError, KeysUrl};
pub(crate) use self::peer_lines::EVERY as PEER_LINES_EVERY;
pub use self::principal::{Host, InvalidHost, InvalidPrincipal, NAME_BYTES_MAX, Principal};
pub use self::quotas::{ByteRate, Entity, EntityPart, Limits, QUOTAS_MAX, Quotas, Share, Traffic};
pub(crate) use self::sasl::response as sasl_response;
pub use self::sasl::{Authentication, LoginError};
pub use self::store::Store;
pub(crate) use self::throttle::answer_bytes_max;
pub(crate) use self::tls::handshake_failure;
pub use self::tls::{Tls, TlsError, TlsFiles, principal_of};
pub(crate) use self::token_check::TokenCheck;
pub use self::token_check::{KeySource, TokenConfig, TokenKeysError};
pub use self::tokens::{KEYS_BYTES_MAX, TokenError, TokenKeys, TokenRules, Verified};
pub use self::users::{
    ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES, SECRET_BYTES, Secret, USERS_MAX, UserError, Users,
};
pub use crate::ledger::{Record, RecordError};
