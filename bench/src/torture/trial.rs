//! One trial: a server with a history of crashes, and at its end perhaps damage.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use millstream_client::DeliveryMode;
use tokio::runtime::Runtime;

use super::audit::{self, How, Reading};
use super::books::{Books, End, Partition, client};
use super::damage::{Hit, copy_all, strike};
use super::drive::Drive;
use super::load::{Load, commit};
use super::mounts::OwnMounts;
use super::plan::{Crash, Damage, Plan};
use super::repair;
use super::tally::{REPAIR, Tally};
use crate::server::{Server, Settings};

/// The server's memory for segments.
const POOL: &str = "32MiB";

/// A crash comes at most this long after an acknowledgement.
const LOAD_MAX: Duration = Duration::from_millis(500);

/// How long a start may run before it is killed, and how long a disk stays full, at most.
const IN_START_MAX: Duration = Duration::from_millis(300);
const FULL_MAX: Duration = Duration::from_millis(600);

/// Its folder in a trial's, where the file system is mounted that it may have; our server puts its data in a folder
/// of this name in it.
const DISK: &str = "disk";
const DATA: &str = "data";

/// A copy of the data directory from before it was damaged, in the trial's folder.
const COPY: &str = "before";

/// The steps of a trial so far, in words.
pub type Story = Vec<String>;

pub struct Trial<'a> {
    runtime: &'a Runtime,
    tally: &'a mut Tally,
    story: &'a mut Story,
    random: Rng,
    folder: PathBuf,
    settings: Settings,
    /// Ends before the file system that its data is on.
    server: Server,
    drive: Option<Drive>,
    books: Arc<Books>,
    /// Its log may have errors from here on.
    may_log_errors: bool,
    /// Streams were cut, so they may begin behind offset 0.
    is_repaired: bool,
}

impl<'a> Trial<'a> {
    /// A server with empty streams, on a drive if the plan needs it.
    pub fn begin(
        runtime: &'a Runtime,
        tally: &'a mut Tally,
        story: &'a mut Story,
        folder: &Path,
        plan: &Plan,
        mounts: Option<&OwnMounts>,
    ) -> Result<Trial<'a>> {
        let disk = folder.join(DISK);
        fs::create_dir_all(&disk)?;
        let mounts = mounts.filter(|_| plan.needs_drive());
        let drive = mounts.map(|mounts| Drive::make(mounts, &folder.join("disk.img"), &disk));
        let drive = drive.transpose()?;
        let file = plan.journal_file_kib;
        let settings = vec![
            ("MILLSTREAM_POOL", POOL.to_owned()),
            ("MILLSTREAM_JOURNAL_FILE", format!("{file}KiB")),
            ("MILLSTREAM_JOURNAL", format!("{}KiB", 4 * file)),
            ("MILLSTREAM_IDLE_AFTER", format!("{}ms", plan.idle_after_ms)),
        ];
        let server = Server::start(&disk, &folder.join("server.log"), settings.clone())?;
        let books = runtime.block_on(Books::open(&client(server.address())))?;
        Ok(Trial {
            runtime,
            tally,
            story,
            random: plan.random.clone(),
            folder: folder.to_owned(),
            settings,
            server,
            drive,
            books: Arc::new(books),
            may_log_errors: false,
            is_repaired: false,
        })
    }

    /// Does all that is planned.
    ///
    /// # Errors
    /// When something does not hold.
    pub fn run(mut self, plan: &Plan) -> Result<()> {
        for crash in &plan.crashes {
            let crash = *crash;
            self.tally.of(crash.name()).times += 1;
            self.story.push(crash.to_string());
            let result = self.crash(crash).and_then(|()| self.check_log());
            self.counted(crash.name(), result)?;
            self.tally.of(crash.name()).whole += 1;
        }
        match plan.damage {
            Some(damage) => {
                let name = damage.blow.name();
                self.tally.of(name).times += 1;
                let result = self.damage(damage).and_then(|()| self.check_log());
                self.counted(name, result)
            }
            None => {
                self.server.stop()?;
                self.check_log()
            }
        }
    }

    fn counted(&mut self, kind: &'static str, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.tally.of(kind).findings += 1;
        }
        result.context(kind)
    }

    fn data(&self) -> PathBuf {
        self.folder.join(DISK).join(DATA)
    }

    fn all(&self) -> Vec<usize> {
        (0..self.books.partitions.len()).collect()
    }

    fn draw(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.random.f64())
    }

    /// Writes to all partitions, and to the group's positions, for a while.
    fn load(&mut self) -> Result<Load> {
        let mut load = self.load_to(self.all());
        let address = self.server.address();
        self.runtime.block_on(async {
            load.until_all_acknowledged().await?;
            commit(&self.books, address).await
        })?;
        sleep(self.draw(LOAD_MAX));
        Ok(load)
    }

    fn load_to(&mut self, partitions: Vec<usize>) -> Load {
        let seed = self.random.u64(..);
        let load = Load::start(&self.books, self.server.address(), partitions, seed);
        self.runtime.block_on(load)
    }

    /// Writes until each of these partitions has acknowledged something, and ends the writing.
    fn write_to(&mut self, partitions: Vec<usize>) -> Result<()> {
        let mut load = self.load_to(partitions);
        self.runtime.block_on(async {
            load.until_all_acknowledged().await?;
            load.finish().await
        })
    }

    /// Kills the server, and ends those that write to it.
    fn kill(&mut self, load: Load) -> Result<()> {
        self.server.kill()?;
        let faults = self.runtime.block_on(load.abort());
        ensure!(faults.is_empty(), "while it was written to: {faults:?}");
        Ok(())
    }

    /// Ends the server in a way that loses nothing, and checks that all records are there.
    fn crash(&mut self, crash: Crash) -> Result<()> {
        let mut load = self.load()?;
        let mut must_hold = None;
        match crash {
            Crash::Kill { in_start } => {
                self.kill(load)?;
                if in_start {
                    self.server.launch_again()?;
                    sleep(self.draw(IN_START_MAX));
                    self.server.kill()?;
                }
            }
            Crash::Stop => {
                self.server.stop()?;
                let faults = self.runtime.block_on(load.abort());
                ensure!(faults.is_empty(), "while it was written to: {faults:?}");
            }
            Crash::PowerCut => {
                self.may_log_errors = true;
                // An ext4 that is shut down while it syncs may report success, so records acknowledged during the cut
                // do not count: on a real machine the program loses power with the disk.
                must_hold = Some(self.books.must_hold(End::PowerCut));
                self.drive()?.cut_power()?;
                sleep(self.draw(IN_START_MAX));
                self.server.kill()?;
                // Its disk refused everything, so records may have been refused for good.
                self.runtime.block_on(load.abort());
                self.drive()?.come_back()?;
            }
            Crash::DiskFull { is_killed } => {
                self.may_log_errors = true;
                self.drive()?.fill()?;
                sleep(self.draw(FULL_MAX));
                if is_killed {
                    self.kill(load)?;
                    self.server.start_again()?;
                    self.find_all(End::Kill).context("with the disk full")?;
                    load = self.load_to(self.all());
                }
                self.drive()?.make_room()?;
                load.begin_anew();
                self.runtime.block_on(async {
                    load.until_all_acknowledged().await?;
                    load.finish().await
                })?;
                self.server.stop()?;
            }
        }
        self.server.start_again()?;
        self.find(must_hold.unwrap_or_else(|| {
            self.books.must_hold(match crash {
                Crash::Kill { .. } => End::Kill,
                Crash::PowerCut => End::PowerCut,
                Crash::Stop | Crash::DiskFull { .. } => End::Clean,
            })
        }))
    }

    fn drive(&mut self) -> Result<&mut Drive> {
        self.drive.as_mut().context("the trial has no drive")
    }

    /// Checks that all records required after this end of the server are there, and that readers get no error.
    fn find_all(&mut self, after: End) -> Result<()> {
        self.find(self.books.must_hold(after))
    }

    fn find(&mut self, must_hold: Vec<u64>) -> Result<()> {
        for (partition, wanted) in self.all().into_iter().zip(must_hold) {
            let reading = self.read(partition, wanted, false)?;
            let partition = &self.books.partitions[partition];
            check_whole(partition, &reading, wanted)?;
            partition.settle(reading.next);
        }
        let address = self.server.address();
        self.runtime
            .block_on(audit::check_positions(&self.books, address))
    }

    fn read(&mut self, partition: usize, wanted: u64, skips: bool) -> Result<Reading> {
        let how = How {
            delivery: match self.random.bool() {
                true => DeliveryMode::Push,
                false => DeliveryMode::Pull,
            },
            skips,
            from_first: self.is_repaired,
            wanted,
        };
        let partition = &self.books.partitions[partition];
        let reading = audit::read(self.server.address(), partition, &how);
        let reading = self.runtime.block_on(reading);
        let reading = reading.and_then(|reading| self.server.check_it_runs().map(|()| reading))?;
        self.tally.records += reading.next;
        Ok(reading)
    }

    /// Damages the files of a server that has ended, and starts it on them.
    fn damage(&mut self, damage: Damage) -> Result<()> {
        let load = self.load()?;
        let after = match damage.is_killed {
            true => {
                self.kill(load)?;
                End::Kill
            }
            false => {
                self.runtime.block_on(load.finish())?;
                self.server.stop()?;
                End::Clean
            }
        };
        let (data, copy) = (self.data(), self.folder.join(COPY));
        copy_all(&data, &copy)?;
        let hit = strike(&data, damage.blow, &mut self.random)?;
        let ended = if damage.is_killed {
            "SIGKILL"
        } else {
            "SIGTERM"
        };
        self.story.push(format!("{} after {ended}", hit.what));
        self.may_log_errors = true;
        self.server.launch_again()?;
        let kind = damage.blow.name();
        match self.server.outcome_of_start()? {
            None => self.serve_damaged(kind, &hit, after),
            Some(status) => {
                self.story.push("refused".to_owned());
                self.tally.of(kind).refused += 1;
                let printed = self.server.printed()?;
                ensure!(
                    status.code() == Some(1) && hit.is_named_in(&printed, &data),
                    "the start ends with {status}, and names nothing of it: {printed}"
                );
                ensure!(
                    !hit.is_of_users(&self.books),
                    "the start is refused, though only streams of users are damaged: {printed}"
                );
                hit.undo(&data, &copy)?;
                self.server
                    .start_again()
                    .context("with the file restored")?;
                self.find_all(after).context("with the file restored")?;
                self.server.stop()
            }
        }
    }

    /// A server runs on damaged files: it must report all missing records, and serve the rest.
    fn serve_damaged(&mut self, kind: &'static str, hit: &Hit, after: End) -> Result<()> {
        let must_hold = self.books.must_hold(after);
        let is_end_unsure = after == End::Kill && hit.is_of_journal_or_catalog();
        let (mut whole, mut reported, mut silent) = (Vec::new(), Vec::new(), Vec::new());
        for (partition, wanted) in self.all().into_iter().zip(must_hold) {
            let reading = self.read(partition, wanted, false)?;
            let at = &self.books.partitions[partition];
            let checked = check_whole(at, &reading, wanted);
            if checked.is_ok() {
                at.settle(reading.next);
                whole.push(partition);
            } else if !is_end_unsure && !hit.strikes(at) {
                return checked.context("its files were not touched");
            } else if let Some(fault) = reading.fault {
                self.story.push(format!("{}: {}", at.name(), fault.text));
                let is_forgotten = is_end_unsure && fault.is_unknown;
                if !is_forgotten {
                    reported.push(partition);
                    self.read(partition, 0, true).context("skipping damage")?;
                }
            } else {
                let next = reading.next;
                self.story
                    .push(format!("{}: ends at {next} of {wanted}", at.name()));
                silent.push(partition);
            }
        }
        let printed = self.server.printed()?;
        let takes_writes = hit.is_of_users(&self.books);
        if takes_writes && !whole.is_empty() {
            self.write_to(whole)
                .context("partitions that are whole are written to")?;
        }
        self.check_log()?;
        self.server.stop()?;

        let listed = repair::list(&self.folder, &self.data(), &self.settings)?;
        let is_listed = |at: &Partition| {
            let mut places = listed.iter();
            places.any(|place| place.stream == at.stream && place.partition == at.partition)
        };
        for &partition in &reported {
            let at = &self.books.partitions[partition];
            ensure!(
                is_listed(at),
                "a reader of {} gets an error, and repair does not list it",
                at.name()
            );
        }
        for &partition in &silent {
            let at = &self.books.partitions[partition];
            let folder = format!("streams/{}/", at.stream_id);
            if !is_listed(at) && !printed.contains(&folder) {
                // After a kill, a damaged end looks like a write that was cut off.
                ensure!(
                    after == End::Kill,
                    "the end of {} is missing, and neither a reader nor `repair` reports it",
                    at.name()
                );
                self.tally.of(kind).ends_lost += 1;
            }
        }
        for at in &self.books.partitions {
            ensure!(
                !is_listed(at) || is_end_unsure || hit.strikes(at),
                "repair lists {}, whose files were not touched",
                at.name()
            );
        }
        let partitions = self.books.partitions.iter();
        let mut damaged: Vec<&'static str> = partitions
            .filter(|at| is_listed(at))
            .map(|at| at.stream)
            .collect();
        damaged.sort_unstable();
        damaged.dedup();
        match damaged.is_empty() {
            true if silent.is_empty() => self.tally.of(kind).whole += 1,
            _ => self.tally.of(kind).reported += 1,
        }
        if damaged.is_empty() || !takes_writes {
            return Ok(());
        }
        self.tally.of(REPAIR).times += 1;
        let result = self.repair(&damaged);
        self.counted(REPAIR, result)?;
        self.tally.of(REPAIR).whole += 1;
        Ok(())
    }

    /// Truncates damaged streams: they are intact again, with the records before the damage, and accept writes.
    fn repair(&mut self, damaged: &[&'static str]) -> Result<()> {
        let (folder, data) = (self.folder.clone(), self.data());
        for stream in damaged {
            self.story.push(format!("{stream} repaired"));
            repair::cut(&folder, &data, &self.settings, stream)?;
        }
        let left = repair::list(&folder, &data, &self.settings)?;
        for place in &left {
            ensure!(
                !damaged.contains(&place.stream.as_str()),
                "partition {} of {} is damaged still",
                place.partition,
                place.stream
            );
        }
        self.is_repaired = true;
        self.server.start_again()?;
        for partition in self.all() {
            let reading = self.read(partition, 0, false)?;
            let at = &self.books.partitions[partition];
            check_whole(at, &reading, 0)?;
            at.settle(reading.next);
        }
        self.write_to(self.all())?;
        self.server.stop()?;
        self.server.start_again()?;
        self.find_all(End::Clean)?;
        self.server.stop()
    }

    /// Nothing has panicked, and where nothing was broken there are no errors.
    fn check_log(&self) -> Result<()> {
        let (mut errors, _) = self.server.log_lines()?;
        if self.may_log_errors {
            errors.retain(|line| line.contains("panicked at"));
        }
        ensure!(errors.is_empty(), "the server's log has {errors:#?}");
        Ok(())
    }
}

/// A partition holds all that it must, and its reader got no error.
fn check_whole(partition: &Partition, reading: &Reading, wanted: u64) -> Result<()> {
    if let Some(fault) = &reading.fault {
        bail!(
            "{} gives an error from offset {} on, and should hold {wanted}: {}",
            partition.name(),
            reading.next,
            fault.text
        );
    }
    ensure!(
        reading.next >= wanted,
        "{} ends at {}, and should hold {wanted}",
        partition.name(),
        reading.next
    );
    Ok(())
}
