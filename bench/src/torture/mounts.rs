//! A mount name space for this process: no other process sees the mounts in it, and the kernel removes them when the
//! last process in it has ended, also after a kill.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// The variable that names the previous name space to the program in the new one.
const OUTER: &str = "TORTURE_OUTER_MOUNTS";

/// The kinds of mounts that the kernel copies to, or from, other name spaces.
const SHARED: [&str; 2] = ["shared:", "master:"];

/// Shows that the mounts of this process are its own.
pub struct OwnMounts(());

/// Runs this program again in a new mount name space, with the same arguments. Returns there at once.
///
/// # Errors
/// When the system does not permit it.
pub fn enter() -> Result<()> {
    if env::var_os(OUTER).is_some() {
        return OwnMounts::check().map(drop);
    }
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(OUTER, name_space()?)
        .exec();
    Err(error).context("cannot run unshare")
}

impl OwnMounts {
    /// # Errors
    /// When the mounts of this process may be those of other processes.
    pub fn check() -> Result<OwnMounts> {
        let outer = env::var(OUTER).context("this process has no mount name space of its own")?;
        let inner = name_space()?;
        ensure!(
            inner != outer,
            "this process is in the mount name space {inner} that it should have left"
        );
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        match mounts.lines().find(|line| is_shared(line)) {
            Some(line) => bail!("a mount is shared with other name spaces: {line}"),
            None => Ok(OwnMounts(())),
        }
    }
}

/// Returns the name of the mount name space of this process.
fn name_space() -> Result<String> {
    let name = fs::read_link("/proc/self/ns/mnt").context("cannot find the mount name space")?;
    Ok(name.to_string_lossy().into_owned())
}

/// Reads a line of `mountinfo`: six fields, any number of optional ones, and a `-`.
fn is_shared(line: &str) -> bool {
    let optional = line.split(' ').skip(6).take_while(|field| *field != "-");
    optional
        .into_iter()
        .any(|field| SHARED.iter().any(|kind| field.starts_with(kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_shared_mounts_is_refused() {
        assert!(OwnMounts::check().is_err());
    }

    #[test]
    fn shared_mounts_are_recognized() {
        let own = "36 35 98:0 / /mnt rw,noatime - ext3 /dev/root rw,shared:1";
        assert!(!is_shared(own));
        for optional in ["shared:1", "master:2", "shared:7 master:1"] {
            assert!(is_shared(&own.replace(" - ", &format!(" {optional} - "))));
        }
    }
}
