//! Detects whether a launcher started this program as one of several tasks.

use std::num::NonZeroUsize;

use crate::error::ExchangeError;
use crate::ranks::Ranks;

/// The variables in which launchers pass the number of tasks. If a second variable is named beside one, it must be set
/// as well: SLURM sets the first one also for the script of a job, which runs once, but the second one only for a step
/// that `srun` starts. SLURM comes last, since `mpirun` starts its own helpers with `srun`.
const LAUNCHERS: [(&str, Option<&str>); 4] = [
    ("OMPI_COMM_WORLD_SIZE", None),
    ("PMI_SIZE", None),
    ("MV2_COMM_WORLD_SIZE", None),
    (SLURM_TASKS, Some(SLURM_TASK)),
];

const SLURM_TASKS: &str = "SLURM_STEP_NUM_TASKS";
const SLURM_TASK: &str = "SLURM_PROCID";
const SLURM_CPUS: &str = "SLURM_CPUS_PER_TASK";

/// The tasks that a launcher has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tasks {
    pub variable: &'static str,
    /// Two or more.
    pub count: u32,
}

impl Tasks {
    /// Returns the tasks that this process belongs to; `None` if it is alone.
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Option<Tasks> {
        let find = |(name, beside): (&'static str, Option<&str>)| {
            let count = variable(name)?.trim().parse().ok()?;
            let is_meant = beside.is_none_or(|beside| variable(beside).is_some());
            is_meant.then_some(Tasks {
                variable: name,
                count,
            })
        };
        let tasks = LAUNCHERS.into_iter().find_map(find);
        tasks.filter(|tasks| tasks.count > 1)
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

/// The CPUs that this process was given by `srun -c`; `None` if it was not started so. SLURM does not bind processes to
/// their CPUs on every cluster, so that they may see more.
pub fn cpus_of_task() -> Option<NonZeroUsize> {
    cpus(|name| std::env::var(name).ok())
}

fn cpus(variable: impl Fn(&str) -> Option<String>) -> Option<NonZeroUsize> {
    // The script of a job has all CPUs of its node.
    variable(SLURM_TASKS).and(variable(SLURM_TASK))?;
    variable(SLURM_CPUS)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading<'a>(variables: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: Option<(&'static str, u32)>) {
        let expected = expected.map(|(variable, count)| Tasks { variable, count });
        assert_eq!(Tasks::find(reading(variables)), expected);
    }

    #[test]
    fn launchers_are_recognized_by_their_variables() {
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

    #[test]
    fn a_single_process_of_mpirun_is_alone_beside_sruns_helper_processes() {
        let helpers = [(SLURM_TASKS, "2"), (SLURM_TASK, "1")];
        let one = ("OMPI_COMM_WORLD_SIZE", "1");
        check(&[one, helpers[0], helpers[1]], None);
    }

    #[test]
    fn a_task_gets_the_number_of_cpus_that_srun_sets() {
        let check = |variables: &[(&str, &str)], expected: Option<usize>| {
            let cpus = cpus(reading(variables));
            assert_eq!(cpus.map(usize::from), expected, "{variables:?}");
        };
        let task = [(SLURM_TASKS, "1"), (SLURM_TASK, "0")];
        check(&[task[0], task[1], (SLURM_CPUS, "3")], Some(3));
        check(&[task[0], task[1], (SLURM_CPUS, "0")], None);
        check(&task, None);
        check(&[task[1], (SLURM_CPUS, "3")], None);
    }

    #[cfg(not(feature = "mpi"))]
    #[test]
    fn a_build_without_mpi_refuses_several_tasks_and_names_the_remedy() {
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
