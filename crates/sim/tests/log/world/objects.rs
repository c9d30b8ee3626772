//! Puts, deletes and reads objects.

use std::io::Read;
use std::sync::Arc;

use millstream_log::LogError;

use super::{ModelObject, World};

impl World {
    pub fn put_object(&mut self, name: &str, content: Vec<u8>) {
        self.note(format!("put {name}: {}", content.len()));
        let content = Arc::new(content);
        let known = self.model.objects.get(name).cloned();
        match self.log().put_object(name, &mut &content[..]) {
            Ok(info) => {
                assert_eq!(info.bytes, content.len() as u64);
                assert!(!matches!(known, Some(ModelObject::Stored(_))));
                let object = ModelObject::Stored(content);
                self.model.objects.insert(name.to_owned(), object);
            }
            Err(LogError::Exists { .. }) => assert!(known.is_some()),
            Err(error) => {
                self.excuse(&error);
                let object = match known {
                    Some(ModelObject::Stored(_)) => return,
                    Some(ModelObject::MaybeEmptied(mut contents)) => {
                        contents.push(content);
                        ModelObject::MaybeEmptied(contents)
                    }
                    Some(ModelObject::Maybe(mut contents)) => {
                        contents.push(content);
                        ModelObject::Maybe(contents)
                    }
                    None => ModelObject::Maybe(vec![content]),
                };
                self.model.objects.insert(name.to_owned(), object);
            }
        }
    }

    pub fn delete_object(&mut self, name: &str) {
        self.note(format!("delete {name}"));
        match self.log().delete_object(name) {
            Ok(()) => {
                assert!(self.model.objects.remove(name).is_some());
            }
            Err(LogError::UnknownObject { .. }) => {
                let known = self.model.objects.get(name);
                assert!(!matches!(known, Some(ModelObject::Stored(_))));
            }
            Err(error) => {
                self.excuse(&error);
                let contents = match self.model.objects.remove(name) {
                    Some(ModelObject::Stored(content)) => vec![content],
                    Some(ModelObject::Maybe(contents) | ModelObject::MaybeEmptied(contents)) => {
                        contents
                    }
                    None => panic!("{name} was never put"),
                };
                let object = match self.faults.full {
                    true => ModelObject::MaybeEmptied(contents),
                    false => ModelObject::Maybe(contents),
                };
                self.model.objects.insert(name.to_owned(), object);
            }
        }
    }

    /// Reads an object and a range of it.
    pub fn check_object(&mut self, name: &str) {
        let log = self.log().clone();
        let read = |range: Option<std::ops::Range<u64>>| -> Result<Vec<u8>, LogError> {
            let mut reader = log.get_object(name, range)?;
            let mut bytes = Vec::new();
            match reader.read_to_end(&mut bytes) {
                Ok(_) => Ok(bytes),
                Err(error) => match error.downcast::<LogError>() {
                    Ok(error) => Err(error),
                    Err(error) => panic!("{name}: {error}"),
                },
            }
        };
        let content = match read(None) {
            Ok(content) => content,
            Err(LogError::UnknownObject { .. }) => {
                let known = self.model.objects.get(name);
                assert!(
                    !matches!(known, Some(ModelObject::Stored(_))),
                    "{name} is lost"
                );
                return;
            }
            Err(LogError::OffsetOutOfRange { .. }) => {
                let known = self.model.objects.get(name);
                assert!(
                    matches!(known, Some(ModelObject::MaybeEmptied(_))),
                    "{name}"
                );
                return;
            }
            Err(error) => return self.excuse(&error),
        };
        match self.model.objects.get(name) {
            Some(ModelObject::Stored(stored)) => assert!(**stored == content, "{name}"),
            Some(ModelObject::Maybe(contents) | ModelObject::MaybeEmptied(contents)) => {
                assert!(contents.iter().any(|stored| **stored == content), "{name}");
            }
            None => panic!("{name} was never put"),
        }
        let end = self.rng.u64(0..=content.len() as u64);
        let start = self.rng.u64(0..=end);
        match read(Some(start..end)) {
            Ok(part) => assert!(part == content[start as usize..end as usize], "{name}"),
            Err(error) => self.excuse(&error),
        }
    }
}
