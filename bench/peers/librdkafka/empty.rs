//! Nothing: the package only names what its lock file pins.
