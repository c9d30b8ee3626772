//! Tests of several parts together.

mod acls;
mod logins;
mod records;
mod requests;
mod secrets;
mod tls;

use std::io::{self, Write};
use std::sync::Arc;

use millstream_wire::sasl::{Hash, Iterations};
use parking_lot::Mutex;

use super::*;

const SECRET: [u8; SECRET_BYTES] = [7; SECRET_BYTES];

/// Returns a store without rules and users, where clients have to log in.
fn empty() -> Store {
    let secret = Secret::from_random(SECRET);
    let (store, _) = Store::restore(AclSettings::new(true), [], secret).unwrap();
    store
}

/// Returns a store with one user.
fn with_user(user: &str, password: &str, hash: Hash) -> Store {
    let mut store = empty();
    let salt = [1; SALT_BYTES];
    let record = store.user_record(user, password, hash, Iterations(4096), &salt);
    store.apply(record.unwrap()).unwrap();
    store
}

fn acl(
    pattern: (ResourceType, PatternType, &str),
    who: (&str, &str),
    (permission, operation): (Permission, Operation),
) -> Acl {
    let (kind, pattern_type, name) = pattern;
    let (principal, host) = who;
    Acl {
        pattern: Pattern {
            kind,
            name: name.to_owned(),
            pattern_type,
        },
        principal: principal.parse().unwrap(),
        host: host.parse().unwrap(),
        operation,
        permission,
    }
}

/// Returns the log lines that `run` writes.
pub fn lines_of(run: impl FnOnce()) -> Vec<String> {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, run);
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}
