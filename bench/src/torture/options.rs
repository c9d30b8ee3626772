//! Settings of torture.

/// The settings of the command line; the others have defaults.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Options {
    /// The seed of the first trial; drawn when it is missing.
    pub seed: Option<u32>,
    /// The number of trials, instead of a time.
    pub trials: Option<u32>,
    /// Trials also cut the power and fill the disk, on a file system that they mount.
    pub loop_disk: bool,
}

impl Options {
    /// Takes `--seed`.
    pub fn set_seed(&mut self, text: &str) -> Result<(), String> {
        let seed = text.parse().ok();
        let refused = || format!("--seed {text}: a number from 0 to {}", u32::MAX);
        self.seed = Some(seed.ok_or_else(refused)?);
        Ok(())
    }

    /// Takes `--trials`.
    pub fn set_trials(&mut self, text: &str) -> Result<(), String> {
        let trials = text.parse().ok().filter(|trials| *trials > 0);
        let refused = || format!("--trials {text}: a number, at least 1");
        self.trials = Some(trials.ok_or_else(refused)?);
        Ok(())
    }
}
