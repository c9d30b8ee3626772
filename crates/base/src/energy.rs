//! The energy that the machine's processors use.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of Linux's counters of processors' energy (RAPL).
pub const ENERGY_FOLDER: &str = "/sys/class/powercap";

/// Adds up the energy that all processors of the machine use.
pub struct EnergyMeter {
    processors: Vec<Processor>,
    used_uj: u64,
}

struct Processor {
    /// The file of a counter of microjoules, which wraps around to 0.
    counter: PathBuf,
    /// The largest value of the counter.
    max_uj: u64,
    last_uj: u64,
}

impl EnergyMeter {
    /// Starts to count; `None` if the machine has no readable counters.
    pub fn start(folder: &Path) -> Option<EnergyMeter> {
        let zones = fs::read_dir(folder).ok()?;
        let processors: Vec<Processor> = zones
            .filter_map(|zone| Processor::in_zone(&zone.ok()?.path()))
            .collect();
        (!processors.is_empty()).then_some(EnergyMeter {
            processors,
            used_uj: 0,
        })
    }

    /// Returns the energy since the start, in joules; `None` when a counter cannot be read. Call it often
    /// enough that no counter wraps around twice between two calls.
    pub fn joules(&mut self) -> Option<f64> {
        for processor in &mut self.processors {
            let now_uj = read_number(&processor.counter)?;
            self.used_uj += match now_uj.checked_sub(processor.last_uj) {
                Some(used_uj) => used_uj,
                None => (processor.max_uj - processor.last_uj).saturating_add(now_uj),
            };
            processor.last_uj = now_uj;
        }
        Some(self.used_uj as f64 / 1e6)
    }
}

impl Processor {
    /// Reads the zone of a whole processor. Other zones, of a processor's parts and of the whole machine,
    /// count the same energy again.
    fn in_zone(zone: &Path) -> Option<Processor> {
        let name = fs::read_to_string(zone.join("name")).ok()?;
        if !name.starts_with("package-") {
            return None;
        }
        let counter = zone.join("energy_uj");
        let last_uj = read_number(&counter)?;
        let max_uj = read_number(&zone.join("max_energy_range_uj"))?;
        Some(Processor {
            counter,
            max_uj: max_uj.max(last_uj),
            last_uj,
        })
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_counters_add_up_even_if_they_wrap_around() {
        let folder = tempfile::tempdir().unwrap();
        let write = |zone: &str, file: &str, text: &str| {
            let zone = folder.path().join(zone);
            fs::create_dir_all(&zone).unwrap();
            fs::write(zone.join(file), format!("{text}\n")).unwrap();
        };
        for (zone, name, energy_uj) in [
            ("intel-rapl:0", "package-0", "9000000"),
            ("intel-rapl:0:0", "core", "5"),
            ("intel-rapl:1", "package-1", "1000000"),
            ("intel-rapl:2", "psys", "5"),
        ] {
            write(zone, "name", name);
            write(zone, "energy_uj", energy_uj);
            write(zone, "max_energy_range_uj", "10000000");
        }
        let mut meter = EnergyMeter::start(folder.path()).unwrap();
        assert_eq!(meter.joules(), Some(0.0));
        write("intel-rapl:0", "energy_uj", "500000");
        write("intel-rapl:1", "energy_uj", "3000000");
        assert_eq!(meter.joules(), Some(3.5));
        fs::remove_dir_all(folder.path().join("intel-rapl:1")).unwrap();
        assert_eq!(meter.joules(), None);
        assert!(EnergyMeter::start(&folder.path().join("none")).is_none());
    }
}
