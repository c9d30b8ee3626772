//! Administration: all requests other than producing and consuming.

mod acls;
mod cluster;
mod groups;
mod objects;
mod quotas;
mod records;
mod settings;
mod streams;
mod topics;
mod transactions;
mod users;

pub use self::acls::{Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType};
pub use self::cluster::Disk;
pub use self::groups::{GroupDescription, GroupMember, GroupOffsets, ListedGroup, ShareProgress};
pub use self::objects::ObjectUpload;
pub use self::quotas::{Quota, QuotaEntity, QuotaKind};
pub use self::settings::{Setting, SettingsOwner};
pub use self::transactions::TransactionDescription;
pub use self::users::{User, UserCredential};
