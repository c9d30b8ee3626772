//! Checkpoints of the applications: their directory, and warnings about failed ones.

use std::sync::Arc;

use millstream_connect::{CheckpointDir, CheckpointDirError};
use millstream_exchange::Ranks;
use millstream_flow::{Checkpointing, Resume, Running};

use crate::args::{CheckpointArgs, ResumeWhen};
use crate::console::{count_of, tell};

/// Returns the checkpoint options of a rank, if the flags ask for checkpoints.
///
/// # Errors
/// If the directory cannot be created or read, or holds other files.
pub fn checkpointing(args: &CheckpointArgs) -> Result<Option<Checkpointing>, CheckpointDirError> {
    let Some(dir) = &args.checkpoints else {
        return Ok(None);
    };
    Ok(Some(Checkpointing {
        store: Arc::new(CheckpointDir::open(dir)?),
        interval: args.checkpoint_interval,
        resume: match args.resume {
            None => Resume::Never,
            Some(ResumeWhen::IfAny) => Resume::IfAny,
            Some(ResumeWhen::Always) => Resume::Always,
        },
    }))
}

/// Warns on stderr about checkpoints that a rank cannot write; its flow continues.
pub struct CheckpointWatch {
    /// Where there are several.
    rank: Option<u32>,
    /// The last warning, so that a full disk does not cause a warning for each checkpoint.
    told: Option<String>,
}

impl CheckpointWatch {
    pub fn new(ranks: &Ranks) -> CheckpointWatch {
        CheckpointWatch {
            rank: (ranks.count() > 1).then(|| ranks.rank()),
            told: None,
        }
    }

    /// Looks at the flow now.
    pub fn look(&mut self, running: &Running) {
        let error = running.checkpoints().and_then(|counts| counts.error);
        if error.is_some() && error != self.told {
            let reason = error.as_deref().unwrap_or_default();
            self.tell(&format!(
                "a checkpoint cannot be kept, and the flow goes on: {reason}"
            ));
            self.told = error;
        }
    }

    /// Looks at a flow that has ended.
    pub fn end(&mut self, running: &Running) {
        self.look(running);
        let counts = running.checkpoints().unwrap_or_default();
        if counts.failed > 0 {
            let kept = count_of(counts.kept, "checkpoint");
            let failed = count_of(counts.failed, "attempt");
            self.tell(&format!("{kept} kept; {failed} to keep one failed"));
        }
    }

    fn tell(&self, message: &str) {
        match self.rank {
            Some(rank) => tell(format_args!("rank {rank}: {message}")),
            None => tell(format_args!("{message}")),
        }
    }
}
