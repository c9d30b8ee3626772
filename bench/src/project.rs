//! The project's folder, and the programs that are built in it: ours and the peers that it is measured beside.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the project.
pub fn root() -> PathBuf {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench).to_owned()
}

/// The program `millstream`: the one that `MILLSTREAM_BIN` names, or the one beside this program.
pub fn our_program() -> Option<PathBuf> {
    let named = env::var_os("MILLSTREAM_BIN").map(PathBuf::from);
    let beside = || Some(env::current_exe().ok()?.with_file_name("millstream"));
    named.or_else(beside).filter(|program| program.exists())
}

/// A file that `bench/peers/setup.sh` builds.
pub fn peer(path: impl AsRef<Path>) -> PathBuf {
    root().join("target/peers").join(path)
}

/// Returns whether a file of a peer is built, and prints a line if not.
pub fn is_built(path: &str, peer_name: &str) -> bool {
    let is_built = peer(path).exists();
    if !is_built {
        eprintln!("bench: {peer_name} left out: bench/peers/setup.sh has not built it");
    }
    is_built
}

/// Builds those of these peers that are missing; the script prints the reason for one that this machine cannot build.
pub fn build_peers<'n>(names: impl IntoIterator<Item = &'n str>) {
    let status = Command::new(root().join("bench/peers/setup.sh"))
        .args(names)
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("bench: setup.sh failed ({status}); see above"),
        Err(error) => eprintln!("bench: cannot start setup.sh: {error}"),
    }
}
