//! Notes of a test's steps, which it prints among the disk's operations when it fails.

use crate::SimDisk;

/// The steps of a test, each with the number of disk operations before it.
#[derive(Debug, Default)]
pub struct Notes(Vec<(u64, String)>);

impl Notes {
    /// Adds the next step.
    pub fn add(&mut self, disk: &SimDisk, note: String) {
        self.0.push((disk.operations(), note));
    }

    /// Prints the steps, and the operations since [`SimDisk::start_trace`] between them.
    pub fn print(&self, disk: &SimDisk) {
        let mut notes = self.0.iter().peekable();
        let until = |number| move |note: &&(u64, String)| note.0 < number;
        for operation in disk.trace() {
            while let Some((_, note)) = notes.next_if(until(operation.number)) {
                eprintln!("{note}");
            }
            eprintln!("{operation}");
        }
        notes.for_each(|(_, note)| eprintln!("{note}"));
    }
}
