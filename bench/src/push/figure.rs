//! Figures like the paper's: a panel for each number of producers, a line for each contender.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::run::Rounds;
use crate::plot;

/// The data of one picture.
pub struct Figure {
    /// Of its files.
    pub name: String,
    pub title: String,
    pub panels: Vec<Panel>,
}

pub struct Panel {
    pub title: String,
    /// From left to right: the label, and the costs of the contenders there.
    pub points: Vec<(String, Vec<Rounds>)>,
}

impl Figure {
    /// Draws the rates and the costs, and writes all numbers into a file for programs.
    pub fn write(&self, out: &Path) -> Result<()> {
        let rate = |rounds: &Rounds| rounds.median(|ran| ran.million_per_s);
        let cost = |rounds: &Rounds| {
            rounds.broker_cpu_s_per_million() + rounds.consumer_cpu_s_per_million()
        };
        self.draw(out, "", "million records/s", rate)?;
        let unit = "CPU-s/million records, broker and consumers";
        self.draw(out, "-cpu", unit, cost)?;
        fs::write(out.join(format!("{}.csv", self.name)), self.table())?;
        Ok(())
    }

    fn draw(
        &self,
        out: &Path,
        suffix: &str,
        unit: &str,
        pick: impl Fn(&Rounds) -> f64,
    ) -> Result<()> {
        let panels = self.panels.iter().map(|panel| panel.lines(&pick));
        let panels: Vec<plot::Panel> = panels.collect();
        let path = out.join(format!("{}{suffix}.png", self.name));
        plot::panels(&path, &format!("{}: {unit}", self.title), &panels)
    }

    fn table(&self) -> String {
        let mut table = "panel,at,contender,million_per_s,produced_million_per_s,\
            broker_cpu_s_per_million,consumer_cpu_s_per_million,broker_threads,consumer_threads\n"
            .to_owned();
        for panel in &self.panels {
            for (at, contenders) in &panel.points {
                for one in contenders {
                    let _ = writeln!(
                        table,
                        "{},{at},{},{:.3},{:.3},{:.4},{:.4},{},{}",
                        panel.title,
                        one.name,
                        one.median(|ran| ran.million_per_s),
                        one.median(|ran| ran.produced_million_per_s),
                        one.broker_cpu_s_per_million(),
                        one.consumer_cpu_s_per_million(),
                        one.broker_threads(),
                        one.consumer_threads(),
                    );
                }
            }
        }
        table
    }
}

impl Panel {
    fn lines(&self, pick: impl Fn(&Rounds) -> f64) -> plot::Panel {
        let names = self.points.first().map(|(_, all)| all.as_slice());
        let names = names.unwrap_or_default().iter().map(|one| one.name.clone());
        let line = |(index, name)| {
            let points = self.points.iter();
            let values = points.map(|(_, all)| pick(&all[index])).collect();
            (name, values)
        };
        plot::Panel {
            title: self.title.clone(),
            labels: self.points.iter().map(|(at, _)| at.clone()).collect(),
            lines: names.enumerate().map(line).collect(),
        }
    }
}
