//! How fast the transports are, each beside the same work done by hand: threads beside a channel of the
//! standard library, and, with the feature `mpi`, processes beside bare MPI.
//!
//! ```console
//! $ cargo run --release -p millstream-exchange --features mpi --example transports
//! ```
//!
//! It starts itself for each contender and round, and prints medians.

#[cfg(feature = "mpi")]
mod bare_mpi;
mod cases;
mod ours;
mod standard;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::process::{Command, ExitCode};

const ROUNDS: usize = 5;

/// Each is run by its own processes, two under `mpirun` where it says so.
const CONTENDERS: [(&str, bool); 6] = [
    ("threads that sleep", false),
    ("threads that poll", false),
    ("standard channel that polls", false),
    ("mpi, threads that sleep", true),
    ("mpi, threads that poll", true),
    ("bare mpi", true),
];

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let outcome = match words.as_slice() {
        [] => compare(),
        [contender] => run(contender),
        _ => Err("usage: transports [CONTENDER]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transports: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(contender: &str) -> Result<(), Box<dyn Error>> {
    match contender {
        "threads that sleep" => ours::threads(true),
        "threads that poll" => ours::threads(false),
        "standard channel that polls" => standard::threads(),
        "mpi, threads that sleep" => ours::process(true),
        "mpi, threads that poll" => ours::process(false),
        #[cfg(feature = "mpi")]
        "bare mpi" => bare_mpi::process(),
        other => Err(format!("{other}: no such contender, or it needs the feature mpi").into()),
    }
}

/// Lets all contenders take turns, and prints the median of each case.
fn compare() -> Result<(), Box<dyn Error>> {
    let mut figures: BTreeMap<String, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    let contenders = CONTENDERS
        .into_iter()
        .filter(|(_, is_mpi)| cfg!(feature = "mpi") || !is_mpi);
    for _ in 0..ROUNDS {
        for (contender, is_mpi) in contenders.clone() {
            for line in start(contender, is_mpi)?.lines() {
                let (case, value) = line.split_once('\t').ok_or("a contender said no figure")?;
                let of_case = figures.entry(case.to_owned()).or_default();
                of_case.entry(contender).or_default().push(value.parse()?);
            }
        }
    }
    for (case, contenders) in &mut figures {
        println!("{case}");
        for (contender, values) in contenders {
            values.sort_by(f64::total_cmp);
            let (median, last) = (values[values.len() / 2], values.len() - 1);
            println!(
                "  {contender:28} {median:12.2}  ({:.2} to {:.2})",
                values[0], values[last]
            );
        }
    }
    Ok(())
}

/// What a contender prints.
fn start(contender: &str, is_mpi: bool) -> Result<String, Box<dyn Error>> {
    let program = env::current_exe()?;
    let mut command = if is_mpi {
        let mut command = Command::new("mpirun");
        command.args(["-n", "2"]).arg(program);
        // Open MPI refuses root otherwise.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    } else {
        Command::new(program)
    };
    let output = command.arg(contender).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{contender}: {}\n{said}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
