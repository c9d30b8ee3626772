//! A small file system in a file: its power can be cut, and it can be filled. It takes root, and loop devices.
//!
//! A mistake here could stop or fill the file system of the machine. So the drive is mounted only in a mount name space
//! of this process, and reached only through a file descriptor that was opened right after the mount, and whose device
//! is the loop device of the drive's file.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, major, minor, open, openat, unlinkat};

use super::mounts::OwnMounts;

/// Trials store up to 70 MB.
const BYTES: u64 = 160 << 20;

/// The file that fills the disk, in the root folder.
const BALLAST: &str = "ballast";

/// The sizes of writes that fill the disk: the last ones fill the rest that the first ones leave.
const FILL_BYTES: [usize; 2] = [1 << 20, 4096];

/// `FS_IOC_SHUTDOWN` without writing anything back: the drive loses all unsynced writes, as in a power failure. The
/// standard input is the root folder, and the argument its device. No safe function of a library has this request.
const CUT: &str = r#"
    my $device = (stat STDIN)[0];
    defined $device && $device == $ARGV[0] or die "the standard input is not on device $ARGV[0]\n";
    my $no_flush = pack("L", 2);
    ioctl(STDIN, 0x8004587d, $no_flush) or die "FS_IOC_SHUTDOWN: $!\n";
"#;

/// A file system that was in use a moment ago can be unmounted by then.
const UNMOUNT_MAX: Duration = Duration::from_secs(30);

/// An ext4 file system. Dropping this unmounts it, and leaves its file.
pub struct Drive {
    image: PathBuf,
    /// Where it is mounted.
    at: PathBuf,
    /// `None` while it is not mounted.
    root: Option<Root>,
}

/// The root folder of the mounted file system.
struct Root {
    folder: OwnedFd,
    device: u64,
}

impl Drive {
    /// Makes a file system in the file `image`, and mounts it at a new folder.
    pub fn make(_: &OwnMounts, image: &Path, at: &Path) -> Result<Drive> {
        File::create(image)?.set_len(BYTES)?;
        fs::create_dir_all(at)?;
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .arg(image))?;
        let mut drive = Drive {
            image: fs::canonicalize(image)?,
            at: at.to_owned(),
            root: None,
        };
        drive.mount()?;
        Ok(drive)
    }

    /// Tries all that trials do with a drive.
    ///
    /// # Errors
    /// When the system does not permit something, or lacks a program.
    pub fn try_out(mounts: &OwnMounts, folder: &Path) -> Result<()> {
        let (image, at) = (folder.join("try.img"), folder.join("try"));
        let mut drive = Drive::make(mounts, &image, &at)?;
        drive.fill()?;
        drive.make_room()?;
        drive.cut_power()?;
        drive.come_back()?;
        drop(drive);
        fs::remove_dir(&at)?;
        Ok(fs::remove_file(&image)?)
    }

    /// Mounts it. The loop device ends with the mount, since `mount` makes it so (`autoclear`).
    fn mount(&mut self) -> Result<()> {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .args([&self.image, &self.at]))?;
        let root = Root::open(&self.at)?;
        root.check(&self.image, &self.at)?;
        self.root = Some(root);
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        // An open descriptor keeps it in use.
        self.root = None;
        let started_at = Instant::now();
        loop {
            match run(Command::new("umount").arg(&self.at)) {
                Err(_) if started_at.elapsed() < UNMOUNT_MAX => sleep(Duration::from_millis(50)),
                result => return result,
            }
        }
    }

    /// Returns the root folder, checked once more.
    fn root(&self) -> Result<&Root> {
        let root = self.root.as_ref().context("the drive is not mounted")?;
        root.check(&self.image, &self.at)?;
        Ok(root)
    }

    /// Loses the data that was written and not synced. Nothing can be written until the drive comes back.
    pub fn cut_power(&self) -> Result<()> {
        let root = self.root()?;
        run(Command::new("perl")
            .args(["-e", CUT])
            .arg(root.device.to_string())
            .stdin(root.folder.try_clone()?))
    }

    /// Mounts it again, with the data that had reached the disk.
    pub fn come_back(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// Takes all room that is left.
    pub fn fill(&self) -> Result<()> {
        let root = self.root()?;
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let ballast = openat(&root.folder, BALLAST, flags, Mode::RUSR | Mode::WUSR)?;
        let mut ballast = File::from(ballast);
        ensure!(
            ballast.metadata()?.dev() == root.device,
            "the ballast is not on the drive"
        );
        let mut left = BYTES;
        for bytes in FILL_BYTES {
            let bytes = vec![1; bytes];
            loop {
                match ballast.write(&bytes) {
                    Ok(written) => {
                        let rest = left.checked_sub(written as u64);
                        left = rest.context("the drive takes more than its size")?;
                    }
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error).context("cannot fill the disk"),
                }
            }
        }
        Ok(())
    }

    /// Frees that room.
    pub fn make_room(&self) -> Result<()> {
        Ok(unlinkat(&self.root()?.folder, BALLAST, AtFlags::empty())?)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("torture: {error:#}");
        }
    }
}

impl Root {
    fn open(at: &Path) -> Result<Root> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder =
            open(at, flags, Mode::empty()).with_context(|| format!("cannot open {at:?}"))?;
        let device = fstat(&folder)?.st_dev;
        Ok(Root { folder, device })
    }

    /// Checks that this is the root of the file system in `image`, and no folder of the machine's.
    fn check(&self, image: &Path, at: &Path) -> Result<()> {
        let device = fstat(&self.folder)?.st_dev;
        let parent = at.parent().context("the drive is mounted at /")?;
        ensure!(
            device == self.device && device != fs::metadata(parent)?.dev(),
            "{at:?} is not a file system of its own"
        );
        let number = format!("{}:{}", major(device), minor(device));
        let backing = format!("/sys/dev/block/{number}/loop/backing_file");
        let backing = fs::read_to_string(&backing)
            .with_context(|| format!("{at:?} is not on a loop device: {backing}"))?;
        ensure!(
            Path::new(backing.trim_end_matches('\n')) == image,
            "{at:?} is on the loop device of {backing:?}"
        );
        Ok(())
    }
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = match command.output() {
        Err(error) => bail!("cannot run {name}: {error}"),
        Ok(output) => output,
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", errors.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_mount_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (image, at) = (folder.path().join("image"), folder.path().join("at"));
        fs::create_dir(&at).unwrap();
        let root = Root::open(&at).unwrap();
        let error = root.check(&image, &at).unwrap_err().to_string();
        assert!(error.contains("not a file system of its own"), "{error}");
        let drive = Drive {
            image: image.clone(),
            at: at.clone(),
            root: Some(root),
        };
        assert!(drive.fill().is_err() && drive.cut_power().is_err());
        assert!(!at.join(BALLAST).exists());
        // Dropping it would try to unmount for some time.
        std::mem::forget(drive);
    }

    /// `/proc` is a file system of its own, and no loop device.
    #[test]
    fn another_file_system_is_refused() {
        let at = Path::new("/proc");
        let root = Root::open(at).unwrap();
        let error = root.check(Path::new("/image"), at).unwrap_err().to_string();
        assert!(error.contains("not on a loop device"), "{error}");
    }
}
