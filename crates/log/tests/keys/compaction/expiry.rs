//! How long tombstones and the markers of transactions stay.

use std::time::Duration;

use millstream_log::{DELETE_RETENTION, FILE_DELETE_DELAY};

use super::{KEYS, ROUNDS, fill, filled, read_on, table};
use crate::machine::Machine;
use crate::{append, sync};

#[test]
fn tombstones_go_after_their_time() {
    let mut machine = filled(&[(DELETE_RETENTION, "1000"), (FILE_DELETE_DELAY, "0")]);
    let partition = machine.partition();
    append(&partition, &[(Some(b"key 0"), None)]);
    let tombstone = partition.next_offset().0 - 1;
    fill(&machine, 1..ROUNDS);
    let before = table(&machine);
    assert_eq!(before.len() as u64, KEYS - 1);
    let has_tombstone = |machine: &Machine| {
        let partition = machine.partition();
        let found = read_on(&mut partition.reader(partition.earliest()));
        found.contains(&tombstone)
    };
    for is_over in [false, false, true] {
        machine.log().compact().unwrap();
        sync(machine.log());
        assert_eq!(has_tombstone(&machine), !is_over);
        assert_eq!(table(&machine), before);
        if !is_over {
            machine.clock.advance(Duration::from_millis(600));
        }
    }
    machine.restart(|_| ());
    assert_eq!(table(&machine), before);
}
