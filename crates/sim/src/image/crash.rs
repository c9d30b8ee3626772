//! The image after the end of a run: the process was killed, or the machine crashed.

use super::{FileId, Folder, FolderId, Image, Inode, Names, Node, ROOT};
use crate::Rng;
use crate::file::File;

impl Image {
    /// The image after a kill of the process: the page cache survives it, open files do not.
    pub(crate) fn after_kill(&self) -> Image {
        let mut image = self.clone();
        for index in 0..image.files.len() {
            image.files[index].open_handles = 0;
            image.files[index].locked_by = None;
            image.free(FileId(index));
        }
        image
    }

    /// The image after a crash of the machine.
    pub(crate) fn after_crash(&self, rng: &mut Rng) -> Image {
        let folders = self.folders_after_crash(rng);
        let mut image = Image::empty(self.capacity);
        self.copy_durable(&folders, ROOT, &mut image, ROOT, rng);
        image
    }

    /// The folders with the surviving unsynced changes of `durable_names`.
    fn folders_after_crash(&self, rng: &mut Rng) -> Vec<Folder> {
        let mut folders = self.folders.clone();
        let mut surviving = vec![0; folders.len()];
        for change in &self.unsynced_names {
            change.folders().for_each(|folder| surviving[folder.0] += 1);
        }
        for count in &mut surviving {
            *count = match rng.u8(..4) {
                0 => 0,
                1 => *count,
                _ => rng.usize(..=*count),
            };
        }
        for change in &self.unsynced_names {
            if change.folders().all(|folder| surviving[folder.0] > 0) {
                change.apply(&mut folders, |folder| &mut folder.durable_names);
                change.folders().for_each(|folder| surviving[folder.0] -= 1);
            } else {
                change.folders().for_each(|folder| surviving[folder.0] = 0);
            }
        }
        folders
    }

    /// Copies all nodes below the folder `from` to the folder `to` of `image`.
    fn copy_durable(
        &self,
        folders: &[Folder],
        from: FolderId,
        image: &mut Image,
        to: FolderId,
        rng: &mut Rng,
    ) {
        let mut names = Names::new();
        for (name, node) in &folders[from.0].durable_names {
            let copy = match *node {
                Node::Folder(folder) => {
                    let copy = FolderId(image.folders.len());
                    image.folders.push(Folder::default());
                    self.copy_durable(folders, folder, image, copy, rng);
                    Node::Folder(copy)
                }
                Node::File(file) => {
                    let content = self.files[file.0].file.after_crash(rng);
                    let room = content.room() as u64;
                    image.used += room;
                    image.files.push(Inode {
                        file: File::durable(content),
                        room,
                        named: true,
                        durably_named: true,
                        ..Inode::default()
                    });
                    Node::File(FileId(image.files.len() - 1))
                }
            };
            names.insert(name.clone(), copy);
        }
        image.folders[to.0] = Folder {
            names: names.clone(),
            durable_names: names,
        };
    }
}
