//! A small file system of its own, in a file: its power can be cut, and it can be filled. It takes root, and loop
//! devices.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// Trials store up to 70 MB.
const BYTES: u64 = 160 << 20;

/// The file that fills the disk.
const BALLAST: &str = "ballast";

/// `FS_IOC_SHUTDOWN` without writing anything back: what was not synced is lost, as with the power.
const CUT: &str = r#"
    open(my $root, "<", $ARGV[0]) or die "cannot open $ARGV[0]: $!\n";
    my $no_flush = pack("L", 2);
    ioctl($root, 0x8004587d, $no_flush) or die "FS_IOC_SHUTDOWN: $!\n";
"#;

/// A file system that was in use a moment ago can be unmounted by then.
const UNMOUNT_MAX: Duration = Duration::from_secs(30);

/// An ext4 file system. It is unmounted with this, and its file stays.
pub struct Drive {
    image: PathBuf,
    /// Where it is mounted.
    at: PathBuf,
}

impl Drive {
    /// Makes a file system in the file `image`, and mounts it at a new folder.
    pub fn make(image: &Path, at: &Path) -> Result<Drive> {
        File::create(image)?.set_len(BYTES)?;
        fs::create_dir_all(at)?;
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .arg(image))?;
        let drive = Drive {
            image: image.to_owned(),
            at: at.to_owned(),
        };
        drive.mount()?;
        Ok(drive)
    }

    /// Tries all that it takes.
    ///
    /// # Errors
    /// When something of it is not allowed here, or a program is missing.
    pub fn try_out(folder: &Path) -> Result<()> {
        let (image, at) = (folder.join("try.img"), folder.join("try"));
        let drive = Drive::make(&image, &at)?;
        drive.cut_power()?;
        drop(drive);
        fs::remove_dir(&at)?;
        Ok(fs::remove_file(&image)?)
    }

    fn mount(&self) -> Result<()> {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .args([&self.image, &self.at]))
    }

    /// Loses what was written and not synced. Nothing can be written any more, until it comes back.
    pub fn cut_power(&self) -> Result<()> {
        run(Command::new("perl").args(["-e", CUT]).arg(&self.at))
    }

    /// Mounts it again, with what had reached the disk.
    pub fn come_back(&self) -> Result<()> {
        unmount(&self.at)?;
        self.mount()
    }

    /// Takes all room that is left.
    pub fn fill(&self) -> Result<()> {
        let mut ballast = File::create(self.at.join(BALLAST))?;
        for bytes in [1 << 20, 4096] {
            let bytes = vec![1; bytes];
            loop {
                match ballast.write_all(&bytes) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("cannot fill the disk"),
                }
            }
        }
        Ok(())
    }

    /// Frees that room.
    pub fn make_room(&self) -> Result<()> {
        Ok(fs::remove_file(self.at.join(BALLAST))?)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.at) {
            eprintln!("torture: {error:#}");
        }
    }
}

/// Unmounts what a run that was killed has left in this folder.
pub fn unmount_left(folder: &Path) -> Result<()> {
    let folder = std::path::absolute(folder)?;
    for line in fs::read_to_string("/proc/self/mounts")?.lines() {
        let at = line.split(' ').nth(1).map(Path::new);
        if let Some(at) = at.filter(|at| at.starts_with(&folder)) {
            unmount(at)?;
        }
    }
    Ok(())
}

fn unmount(at: &Path) -> Result<()> {
    let started_at = Instant::now();
    loop {
        match run(Command::new("umount").arg(at)) {
            Err(_) if started_at.elapsed() < UNMOUNT_MAX => sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(Stdio::null()).output() {
        Err(error) => bail!("cannot run {name}: {error}"),
        Ok(output) => output,
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", errors.trim());
    Ok(())
}
