//! The plan of a trial, drawn from its seed.

use std::fmt;

use fastrand::Rng;

/// The most crashes of a trial, one after the other.
const CRASHES_MAX: usize = 3;

/// One in this many trials ends without damage.
const UNDAMAGED_EVERY: u32 = 4;

/// One in this many directories is damaged after a kill, the others after SIGTERM.
const DAMAGED_AFTER_KILL_EVERY: u32 = 3;

#[derive(Debug)]
pub struct Plan {
    /// The size of a journal file, in KiB; the journal has four. The largest record fits it.
    pub journal_file_kib: u32,
    /// The setting `idle_after`: with a short one groups get their files early.
    pub idle_after_ms: u32,
    pub crashes: Vec<Crash>,
    pub damage: Option<Damage>,
    /// Draws the other events.
    pub random: Rng,
}

/// How the server ends while it is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// SIGKILL, and once more while it starts.
    Kill { in_start: bool },
    /// SIGTERM.
    Stop,
    /// The file system loses its unwritten data.
    PowerCut,
    /// The disk fills up and gets room again; the server is killed and starts in between, or stays.
    DiskFull { is_killed: bool },
}

/// The damage to files while no server runs.
#[derive(Debug, Clone, Copy)]
pub struct Damage {
    pub blow: Blow,
    /// The server was killed before, and did not end in good order.
    pub is_killed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    Flip,
    Cut,
    Swap,
    Copy,
    RemoveFile,
    RemoveFolder,
}

impl Plan {
    /// With a drive, crashes are also power cuts and full disks.
    pub fn draw(seed: u32, has_drive: bool) -> Plan {
        let mut random = Rng::with_seed(u64::from(seed));
        let crashes = 0..random.usize(1..=CRASHES_MAX);
        let crashes = crashes.map(|_| Crash::draw(&mut random, has_drive));
        let crashes = crashes.collect();
        let is_damaged = random.u32(0..UNDAMAGED_EVERY) > 0;
        let damage = Damage::draw(&mut random);
        Plan {
            journal_file_kib: [512, 1024][random.usize(0..2)],
            idle_after_ms: [100, 10_000][random.usize(0..2)],
            crashes,
            damage: is_damaged.then_some(damage),
            random,
        }
    }

    /// Returns whether it takes a drive.
    pub fn needs_drive(&self) -> bool {
        self.crashes.iter().any(|crash| crash.needs_drive())
    }
}

impl Crash {
    fn draw(random: &mut Rng, has_drive: bool) -> Crash {
        let coin = random.bool();
        match random.u8(0..if has_drive { 6 } else { 3 }) {
            0 | 1 => Crash::Kill { in_start: coin },
            2 => Crash::Stop,
            3 | 4 => Crash::PowerCut,
            _ => Crash::DiskFull { is_killed: coin },
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Crash::Kill { in_start: false } => "kill",
            Crash::Kill { in_start: true } => "kill-in-start",
            Crash::Stop => "stop",
            Crash::PowerCut => "power-cut",
            Crash::DiskFull { .. } => "disk-full",
        }
    }

    pub fn needs_drive(self) -> bool {
        matches!(self, Crash::PowerCut | Crash::DiskFull { .. })
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Crash::Kill { in_start: true } => "kill and kill in the start",
            Crash::DiskFull { is_killed: true } => "disk-full and kill",
            _ => self.name(),
        })
    }
}

impl Damage {
    fn draw(random: &mut Rng) -> Damage {
        let blow = match random.u8(0..10) {
            0..3 => Blow::Flip,
            3..6 => Blow::Cut,
            6 => Blow::Swap,
            7 => Blow::Copy,
            8 => Blow::RemoveFile,
            _ => Blow::RemoveFolder,
        };
        // A group that has no index yet, as a kill may leave it, does not show that its file is another's.
        let needs_index = matches!(blow, Blow::Swap | Blow::Copy);
        Damage {
            blow,
            is_killed: random.u32(0..DAMAGED_AFTER_KILL_EVERY) == 0 && !needs_index,
        }
    }
}

impl Blow {
    pub fn name(self) -> &'static str {
        match self {
            Blow::Flip => "flip",
            Blow::Cut => "cut",
            Blow::Swap => "swap",
            Blow::Copy => "copy",
            Blow::RemoveFile => "remove-file",
            Blow::RemoveFolder => "remove-folder",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_plan_and_many_seeds_cover_all_kinds() {
        for (has_drive, kinds) in [(false, 9), (true, 11)] {
            let mut seen = std::collections::BTreeSet::new();
            for seed in 0..500 {
                let plan = Plan::draw(seed, has_drive);
                let again = Plan::draw(seed, has_drive);
                assert_eq!(format!("{plan:?}"), format!("{again:?}"));
                assert!(has_drive || !plan.needs_drive());
                seen.extend(plan.crashes.iter().map(|crash| crash.name()));
                seen.extend(plan.damage.map(|damage| damage.blow.name()));
            }
            assert_eq!(seen.len(), kinds, "{seen:?}");
        }
    }
}
