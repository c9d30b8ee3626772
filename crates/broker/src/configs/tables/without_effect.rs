//! Settings that Kafka's brokers accept while they run, and that have no effect here and promise none: a broker that
//! only stores them keeps every promise. Settings that promise a bound, such as `max.connections`, are not among them.

use crate::configs::setting::Setting;
use crate::configs::value::Values;

const THREADS: Values = Values::Int(1, i32::MAX);
const RATE: Values = Values::Long(0);
const RATE_MAX: &str = "9223372036854775807";

const OWN_THREADS: &str = "Has no effect: the broker sizes its thread pools by itself.";
const ONE_REPLICA: &str = "Has no effect: one broker has the only replica, which is never moved.";
const OWN_CLEANER: &str = "Has no effect: one thread compacts, with a fixed bound of memory, and tries again after 15 seconds.";
const NO_KERBEROS: &str = "Has no effect: clients cannot log in with Kerberos.";

/// All settings without effect, by their names.
pub const SETTINGS: [Setting; 17] = [
    Setting::new("background.threads", THREADS, "10", OWN_THREADS),
    Setting::new(
        "follower.replication.throttled.rate",
        RATE,
        RATE_MAX,
        ONE_REPLICA,
    ),
    Setting::new(
        "leader.replication.throttled.rate",
        RATE,
        RATE_MAX,
        ONE_REPLICA,
    ),
    Setting::new(
        "log.cleaner.backoff.ms",
        Values::Long(0),
        "15000",
        OWN_CLEANER,
    ),
    Setting::new(
        "log.cleaner.dedupe.buffer.size",
        Values::Long(0),
        "134217728",
        OWN_CLEANER,
    ),
    Setting::new(
        "log.cleaner.io.buffer.load.factor",
        Values::Ratio,
        "0.9",
        OWN_CLEANER,
    ),
    Setting::new(
        "log.cleaner.io.buffer.size",
        Values::Int(0, i32::MAX),
        "524288",
        OWN_CLEANER,
    ),
    Setting::new(
        "log.cleaner.threads",
        Values::Int(0, i32::MAX),
        "1",
        OWN_CLEANER,
    ),
    Setting::new("num.io.threads", THREADS, "8", OWN_THREADS),
    Setting::new("num.network.threads", THREADS, "3", OWN_THREADS),
    Setting::new(
        "num.recovery.threads.per.data.dir",
        THREADS,
        "2",
        OWN_THREADS,
    ),
    Setting::new("num.replica.fetchers", THREADS, "1", ONE_REPLICA),
    Setting::new(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        RATE,
        RATE_MAX,
        ONE_REPLICA,
    ),
    Setting::new(
        "sasl.kerberos.kinit.cmd",
        Values::Text,
        "/usr/bin/kinit",
        NO_KERBEROS,
    ),
    Setting::new(
        "sasl.kerberos.min.time.before.relogin",
        Values::Long(0),
        "60000",
        NO_KERBEROS,
    ),
    Setting::new(
        "sasl.kerberos.ticket.renew.jitter",
        Values::Ratio,
        "0.05",
        NO_KERBEROS,
    ),
    Setting::new(
        "sasl.kerberos.ticket.renew.window.factor",
        Values::Ratio,
        "0.8",
        NO_KERBEROS,
    ),
];
