//! Settings under the names that Kafka gives them: of topics, of the broker, of groups, and of subscriptions to metrics of
//! clients.

pub mod change;
pub mod client_metrics;
pub mod defaults;
pub mod groups;
mod log_levels;
pub mod setting;
pub mod store;
pub mod tables;
pub mod topics;
pub mod value;

pub use self::defaults::use_defaults;
pub use self::groups::{all_share_settings, group_configs};
pub use self::log_levels::{LogLevel, LogLevels, ROOT};
pub use self::store::ConfigStore;
pub use self::topics::set_of_created;
