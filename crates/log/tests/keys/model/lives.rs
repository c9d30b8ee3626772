//! The lives of the log: it starts, and ends by a stop, a kill or a crash, and its disk gets full.

use millstream_log::{KEYED_CLOCK, LogError, StreamPartition};
use millstream_sim::SimDisk;

use super::{World, add};

impl World<'_> {
    /// Goes on after an error that a fault of the disk explains, and after a crash.
    pub fn survive(&mut self, done: Result<(), LogError>) {
        if let Err(error) = done {
            let excused = match &error {
                LogError::DiskFull { .. } | LogError::NoRoomToStart { .. } => self.is_disk_full,
                LogError::Io { .. } | LogError::PoolExhausted { .. } | LogError::Closed => {
                    self.is_disk_full || self.machine.disk.has_crashed()
                }
                LogError::PartitionFault { .. } => self.machine.disk.has_crashed(),
                _ => false,
            };
            assert!(excused, "nothing excuses: {error} ({error:?})");
        }
        if self.machine.disk.has_crashed() {
            self.crash();
        }
    }

    pub fn fill_disk(&mut self) {
        let room = match self.rng.bool() {
            true => 0,
            false => self.rng.u64(..200_000),
        };
        let disk = &self.machine.disk;
        disk.set_capacity(disk.used_bytes() + room);
        self.is_disk_full = true;
    }

    pub fn make_room(&mut self) {
        self.machine.disk.set_capacity(u64::MAX);
        self.rest();
        assert!(!self.log().stats().disk_full || self.machine.disk.has_crashed());
        self.is_disk_full = false;
    }

    pub fn crash_at(&mut self, operations_max: u64) {
        if !self.will_crash {
            self.machine.disk.crash_at(self.rng.u64(1..operations_max));
            self.will_crash = true;
        }
    }

    /// Stops the log or kills the process, and starts it again.
    pub fn reopen(&mut self) {
        self.count_rebuilt();
        if self.rng.bool() {
            let closed = self.machine.close();
            let has_crashed = self.machine.disk.has_crashed();
            assert!(
                closed.is_ok() || self.is_disk_full || has_crashed,
                "{closed:?}"
            );
        }
        match self.machine.disk.has_crashed() {
            true => self.crash(),
            false => self.start(self.machine.disk.kill(), true),
        }
    }

    fn count_rebuilt(&self) {
        for n in 0..self.partitions.len() {
            let stats = self.partition(n).map(|partition| partition.key_stats());
            add(
                &self.seen.rebuilt_key_files,
                stats.map_or(0, |stats| stats.files_rebuilt),
            );
        }
    }

    pub fn crash(&mut self) {
        if self.machine.is_open() {
            self.count_rebuilt();
        }
        let left = self.machine.disk.crash(&mut self.rng);
        self.start(left, true);
    }

    /// Starts the log again, without a crash to come.
    pub fn calm_down(&mut self) {
        let left = match self.machine.disk.has_crashed() {
            true => self.machine.disk.crash(&mut self.rng),
            false => self.machine.disk.kill(),
        };
        self.start(left, false);
    }

    fn start(&mut self, disk: SimDisk, may_crash: bool) {
        disk.set_capacity(u64::MAX);
        (self.is_disk_full, self.will_crash) = (false, false);
        if may_crash && self.rng.u8(..4) == 0 {
            disk.crash_at(self.rng.u64(1..60));
            self.will_crash = true;
        }
        if let Err(error) = self.machine.try_start_from(disk) {
            assert!(
                self.machine.disk.has_crashed(),
                "no start: {error} ({error:?})"
            );
            return self.crash();
        }
        if self.rng.u8(..3) == 0 {
            self.damage_key_files();
        }
        self.adopt_clock();
        for n in 0..self.partitions.len() {
            let partition = self.partition(n).expect("it was created");
            assert_eq!(partition.damage().map(ToString::to_string), None);
            self.adopt(n, &partition);
        }
    }

    /// Takes note whether the stream has the clock that could not be set.
    fn adopt_clock(&mut self) {
        let settings = self.stream().expect("it was created").config().settings;
        let found = settings.get(KEYED_CLOCK);
        let found = found.map(|clock| clock.parse().expect("the model has set it"));
        let mut maybe = std::mem::take(&mut self.maybe_keyed_clocks).into_iter();
        let is_known = found == self.keyed_clock || maybe.any(|clock| found == Some(clock));
        assert!(is_known, "{found:?}");
        self.keyed_clock = found;
    }

    /// Forgets records that were not durable, and takes note of a deletion that has taken effect after all.
    fn adopt(&mut self, n: usize, partition: &StreamPartition) {
        let model = &mut self.partitions[n];
        let end = partition.next_offset().0;
        let note = format!(
            "a start of {n}: up to {end} of {}..{}",
            model.durable, model.next
        );
        self.notes.add(&self.machine.disk, note);
        assert!(
            model.durable <= end && end <= model.next,
            "{} {end} {}",
            model.durable,
            model.next
        );
        add(&self.seen.lost_records, model.next - end);
        model.lose_from(end);
        model.durable = end;
        model.has_restarted = true;
        let earliest = partition.earliest_offset().0;
        assert!(
            model.deleted_to <= earliest,
            "records are back before {}",
            model.deleted_to
        );
    }

    pub fn note_durable(&mut self) -> Result<(), LogError> {
        for n in 0..self.partitions.len() {
            let durable = self.partition(n)?.durable_offset().0;
            let model = &mut self.partitions[n];
            model.durable = model.durable.max(durable);
        }
        Ok(())
    }
}
