//! The throughput of each contender, and its cost.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::panels::COLORS;
use super::{BARS_FROM, BARS_TO, FONT, OURS, ROW_HEIGHT, TOP, WIDTH, load_font};
use crate::report::number;

/// Draws a bar for each contender.
pub fn bars(path: &Path, title: &str, bars: &[(&str, f64)]) -> Result<()> {
    load_font()?;
    let height = TOP + ROW_HEIGHT * (bars.len() as i32 + 1);
    let area = BitMapBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title.to_owned(), (20, 15), (FONT, 20)))?;
    let highest = bars.iter().map(|(_, value)| *value).fold(1e-9, f64::max);
    let text = (FONT, 16).into_font();
    for (row, (name, value)) in bars.iter().enumerate() {
        let y = TOP + ROW_HEIGHT * row as i32;
        let end = BARS_FROM + (value / highest * f64::from(BARS_TO - BARS_FROM)) as i32;
        let bar = [(BARS_FROM, y), (end, y + ROW_HEIGHT - 12)];
        area.draw(&Rectangle::new(bar, OURS.filled()))?;
        area.draw(&Text::new((*name).to_owned(), (20, y + 3), text.clone()))?;
        area.draw(&Text::new(number(*value), (end + 8, y + 3), text.clone()))?;
    }
    area.present()?;
    Ok(())
}

/// Draws a line for each contender, over rates, both logarithmic.
pub fn by_rate(path: &Path, title: &str, lines: &[(String, Vec<(f64, f64)>)]) -> Result<()> {
    load_font()?;
    let area = BitMapBackend::new(path, (WIDTH, 520)).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|(_, points)| points);
    let range = |pick: fn(&(f64, f64)) -> f64| {
        let low = points().map(pick).fold(f64::INFINITY, f64::min);
        let high = points().map(pick).fold(f64::NEG_INFINITY, f64::max);
        match low <= high {
            true => (low.max(1e-3) * 0.8..high.max(1e-3) * 1.25).log_scale(),
            false => (1.0..10.0).log_scale(),
        }
    };
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 20))
        .margin(15)
        .x_label_area_size(35)
        .y_label_area_size(75)
        .build_cartesian_2d(range(|point| point.0), range(|point| point.1))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .label_style((FONT, 14))
        .draw()?;
    for ((name, points), color) in lines.iter().zip(COLORS.into_iter().cycle()) {
        let marks = points
            .iter()
            .map(|point| Circle::new(*point, 5, color.filled()));
        chart
            .draw_series(marks)?
            .label(name)
            .legend(move |at| Circle::new((at.0 + 8, at.1), 5, color.filled()));
        let line = PathElement::new(points.clone(), color.stroke_width(2));
        chart.draw_series([line])?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font((FONT, 14))
        .background_style(WHITE.mix(0.7).filled())
        .draw()?;
    area.present()?;
    Ok(())
}
