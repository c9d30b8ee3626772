//! RocksDB as a table of keys, which a program of `bench/peers` uses.

use std::ffi::OsStr;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use millstream_testing::command;
use serde::de::DeserializeOwned;

use crate::folder::Folder;
use crate::measure::Bench;
use crate::project::{build_peers, is_built, peer};

/// The program that `bench/peers/setup.sh` builds.
const PROGRAM: &str = "rocksdb/peer";

/// The most bytes of a table.
const BYTES_MAX: u64 = 8 << 30;

/// A table of as many keys as a case has.
pub struct RocksDb {
    folder: Folder,
}

impl RocksDb {
    /// Fills a table, if the program is built. A quick run goes without it.
    pub fn filled(bench: &Bench, keys: u64) -> Result<Option<RocksDb>> {
        if bench.is_quick() {
            return Ok(None);
        }
        build_peers(["rocksdb"]);
        if !is_built(PROGRAM, "RocksDB") {
            return Ok(None);
        }
        let folder = bench.folder("rocksdb", BYTES_MAX)?;
        let filled = command(peer(PROGRAM))
            .arg("fill")
            .arg(folder.path())
            .arg(keys.to_string())
            .status()?;
        ensure!(filled.success(), "RocksDB was not filled: {filled}");
        Ok(Some(RocksDb { folder }))
    }

    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Runs the program, and returns the figures that it prints.
    pub fn run<T: DeserializeOwned>(
        &self,
        order: &str,
        words: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<T> {
        let output = command(peer(PROGRAM))
            .arg(order)
            .arg(self.folder.path())
            .args(words)
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(output.status.success(), "RocksDB: {}", output.status);
        serde_json::from_slice(&output.stdout).context("RocksDB printed something else")
    }
}
