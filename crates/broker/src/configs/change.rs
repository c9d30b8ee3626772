//! Changes of settings, as requests ask for them.

use std::collections::{BTreeMap, HashSet};

use millstream_wire::messages::incremental_alter_configs_request::AlterableConfig;

use super::setting::{Refused, Setting};
use super::value::items_of;

/// The settings that something has of its own, by their names.
pub type Own = BTreeMap<String, String>;

/// How a setting is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// It has this value from now on.
    Set(&'a str),
    /// It has its default from now on.
    Delete,
    /// These items are in its list from now on.
    Append(&'a str),
    /// These items are no longer in its list.
    Subtract(&'a str),
}

/// Changes of settings by their names.
pub type Changes<'a> = Vec<(&'a str, Change<'a>)>;

impl Change<'_> {
    /// The name of the operation in Kafka's protocol.
    pub fn name(self) -> &'static str {
        match self {
            Change::Set(_) => "SET",
            Change::Delete => "DELETE",
            Change::Append(_) => "APPEND",
            Change::Subtract(_) => "SUBTRACT",
        }
    }
}

/// Reads the changes that a request asks for.
///
/// # Errors
/// When an operation is unknown, lacks its value, or a setting is named twice.
pub fn changes_of(configs: &[AlterableConfig]) -> Result<Changes<'_>, Refused> {
    let mut named = HashSet::new();
    let changes = configs.iter().map(|config| {
        let name = &*config.name;
        if !named.insert(name) {
            let why = format!("setting {name} is named more than once");
            return Err(Refused::request(why));
        }
        let value = || {
            let value = config.value.as_deref();
            value.ok_or_else(|| Refused::request(format!("setting {name} is given no value")))
        };
        let change = match config.config_operation {
            0 => Change::Set(value()?),
            1 => Change::Delete,
            2 => Change::Append(value()?),
            3 => Change::Subtract(value()?),
            other => {
                let why = format!("setting {name}: there is no operation {other}");
                return Err(Refused::request(why));
            }
        };
        Ok((name, change))
    });
    changes.collect()
}

/// Applies a change of the setting `name` to `own`. `find` returns settings by their names; `inherited` returns the
/// value in force for a setting without a value of its own.
///
/// # Errors
/// When the setting does not exist, or the value is not valid for it. A change may delete an unknown setting.
pub fn apply<'s>(
    own: &mut Own,
    name: &str,
    change: Change<'_>,
    find: impl FnOnce(&str) -> Result<&'s Setting, Refused>,
    inherited: impl Fn(&Setting) -> String,
) -> Result<(), Refused> {
    let setting = find(name);
    let listed = |setting: &Setting| match setting.values.is_list() {
        true => Ok(own.get(name).cloned().unwrap_or_else(|| inherited(setting))),
        false => Err(Refused::invalid(format!(
            "{name} is no list, so {} does not apply to it",
            change.name()
        ))),
    };
    let value = match change {
        Change::Delete => {
            own.remove(name);
            return Ok(());
        }
        Change::Set(value) => value.to_owned(),
        Change::Append(items) => format!("{},{items}", listed(setting.clone()?)?),
        Change::Subtract(items) => {
            let current = listed(setting.clone()?)?;
            let gone = HashSet::<&str>::from_iter(items_of(items));
            let left = items_of(&current).into_iter();
            let left: Vec<&str> = left.filter(|item| !gone.contains(item)).collect();
            left.join(",")
        }
    };
    let value = setting?.read(&value).map_err(Refused::invalid)?;
    own.insert(name.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::value::Values;
    use super::*;

    const LIST: Setting = Setting::new("list", Values::List(&[]), "a,b", "A list.");
    const TEXT: Setting = Setting {
        name: "text",
        values: Values::Text,
        ..LIST
    };

    fn changed(own: &[(&str, &str)], name: &str, change: Change<'_>) -> Result<String, Refused> {
        let own = own
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let mut own: Own = own.collect();
        let find = |name: &str| Setting::named([&LIST, &TEXT], "tests", name);
        apply(&mut own, name, change, find, |setting| {
            setting.default.to_owned()
        })?;
        Ok(own.get(name).cloned().unwrap_or_else(|| "-".to_owned()))
    }

    #[test]
    fn append_and_subtract_change_own_and_inherited_lists() {
        let changed = |own: &[(&str, &str)], change| changed(own, "list", change).unwrap();
        assert_eq!(changed(&[], Change::Append("c, a")), "a,b,c");
        assert_eq!(changed(&[("list", "x")], Change::Append("y")), "x,y");
        assert_eq!(changed(&[], Change::Subtract("b,z")), "a");
        assert_eq!(changed(&[("list", "x")], Change::Subtract("x")), "");
        assert_eq!(changed(&[("list", "x")], Change::Set("y,y")), "y");
        assert_eq!(changed(&[("list", "x")], Change::Delete), "-");
    }

    /// Comparing each item with each takes minutes.
    #[test]
    fn a_change_by_many_items_takes_a_moment() {
        let items = |numbers: std::ops::Range<u32>| {
            let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
            numbers.join(",")
        };
        let (own, long) = (items(0..3000), items(0..400_000));
        let own = [("list", own.as_str())];
        let began = Instant::now();
        for change in [Change::Set(&long), Change::Append(&long)] {
            let refused = changed(&own, "list", change).unwrap_err();
            assert!(refused.message.len() < 1000, "{refused:?}");
        }
        let left = changed(&own, "list", Change::Subtract(&long));
        assert_eq!(left.unwrap(), "");
        let left = changed(&own, "list", Change::Subtract(&long[2..]));
        assert_eq!(left.unwrap(), "0");
        let taken = began.elapsed();
        assert!(taken < Duration::from_secs(10), "{taken:?}");
    }

    #[test]
    fn append_needs_a_list_and_an_unknown_setting_can_only_be_deleted() {
        for change in [Change::Append("x"), Change::Subtract("x")] {
            let refused = changed(&[], "text", change).unwrap_err();
            assert!(refused.message.contains(change.name()), "{refused:?}");
        }
        assert_eq!(changed(&[], "text", Change::Set("x")).unwrap(), "x");
        assert_eq!(changed(&[], "lost", Change::Delete).unwrap(), "-");
        let refused = changed(&[], "lits", Change::Set("x")).unwrap_err();
        assert!(
            refused.message.contains("did you mean list?"),
            "{refused:?}"
        );
    }
}
