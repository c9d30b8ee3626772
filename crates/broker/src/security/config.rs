//! Settings of security.

use std::collections::HashSet;

use super::{Principal, TokenConfig};

/// Authentication and authorization of clients. By default every client may connect and do
/// everything that no access rule covers.
#[derive(Debug, Clone, Default)]
pub struct SecurityConfig {
    /// Whether clients of listeners without a protocol of their own have to log in: by SASL, or with a certificate if TLS
    /// asks for one.
    pub authentication: bool,
    /// These users may do everything; access rules do not restrict them.
    pub super_users: HashSet<Principal>,
    /// The tokens that clients may log in with, by OAUTHBEARER; without it they may not. Applies
    /// where clients log in.
    pub tokens: Option<TokenConfig>,
}
