//! The exit codes of the program.

/// The command was carried out, or was ended by a signal in good order.
pub const DONE: u8 = 0;
/// The command failed.
pub const FAILED: u8 = 1;
/// The command line makes no sense. clap uses the same code.
pub const WRONG_USAGE: u8 = 2;
/// The command was interrupted a second time: 128 + SIGINT, as shells do.
pub const INTERRUPTED: u8 = 130;
