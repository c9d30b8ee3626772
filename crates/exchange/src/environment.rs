//! How a program learns that it was started as one of several.

use crate::error::ExchangeError;
use crate::ranks::Ranks;

/// What launchers tell the processes that they start: the variable with their number. A variable beside it must be set
/// as well, if one is named: SLURM tells the script of a job, which runs once, of all its tasks too, but of a step only
/// what `srun` starts.
const LAUNCHERS: [(&str, Option<&str>); 4] = [
    ("OMPI_COMM_WORLD_SIZE", None),
    ("PMI_SIZE", None),
    ("MV2_COMM_WORLD_SIZE", None),
    ("SLURM_STEP_NUM_TASKS", Some("SLURM_PROCID")),
];

/// What a launcher has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tasks {
    pub variable: &'static str,
    /// Two or more.
    pub count: u32,
}

impl Tasks {
    /// Who started this process together with others; `None` if it is alone.
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Option<Tasks> {
        let told = |(name, beside): (&'static str, Option<&str>)| {
            let count = variable(name)?.trim().parse().ok()?;
            let is_meant = beside.is_none_or(|beside| variable(beside).is_some());
            (is_meant && count > 1).then_some(Tasks {
                variable: name,
                count,
            })
        };
        LAUNCHERS.into_iter().find_map(told)
    }

    /// This rank among the others.
    #[cfg(feature = "mpi")]
    pub fn join(self) -> Result<Ranks, ExchangeError> {
        crate::mpi::endpoint(Some(self.count)).map(Ranks::new)
    }

    /// This rank among the others.
    #[cfg(not(feature = "mpi"))]
    pub fn join(self) -> Result<Ranks, ExchangeError> {
        Err(ExchangeError::WithoutMpi {
            variable: self.variable,
            tasks: self.count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: Option<(&'static str, u32)>) {
        let read = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let expected = expected.map(|(variable, count)| Tasks { variable, count });
        assert_eq!(Tasks::find(read), expected);
    }

    #[test]
    fn launchers_are_recognized() {
        check(&[], None);
        let open_mpi = "OMPI_COMM_WORLD_SIZE";
        check(&[(open_mpi, "4")], Some((open_mpi, 4)));
        check(&[(open_mpi, "1")], None);
        check(&[(open_mpi, "many")], None);
        check(&[("PMI_SIZE", "300")], Some(("PMI_SIZE", 300)));
        let slurm = "SLURM_STEP_NUM_TASKS";
        check(&[(slurm, "8"), ("SLURM_PROCID", "7")], Some((slurm, 8)));
        // The script of a job is alone, however many tasks its steps will have.
        check(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")], None);
    }

    #[cfg(not(feature = "mpi"))]
    #[test]
    fn who_is_one_of_several_without_mpi_is_told_what_to_do() {
        let tasks = Tasks {
            variable: "PMI_SIZE",
            count: 4,
        };
        let error = tasks
            .join()
            .map(|ranks| ranks.count())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("PMI_SIZE") && error.contains("--features mpi"),
            "{error}"
        );
    }
}
