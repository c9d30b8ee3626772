//! Empty: the package only names the dependencies that its lock file pins.
