//! Administration: all requests other than producing and consuming.

mod acls;
mod groups;
mod objects;
mod settings;
mod streams;
mod topics;
mod transactions;
mod users;

pub use self::acls::{Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType};
pub use self::groups::{GroupDescription, GroupMember, GroupOffsets, ListedGroup};
pub use self::objects::ObjectUpload;
pub use self::transactions::TransactionDescription;
pub use self::users::{User, UserCredential};
