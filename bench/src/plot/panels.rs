//! Charts side by side, all with the same lines.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::{FONT, LIMIT, OURS, TARGET, load_font};
use crate::report::number;

const PANEL_WIDTH: u32 = 600;
const PANEL_HEIGHT: u32 = 360;
const TITLE_HEIGHT: i32 = 40;
const COLUMNS: usize = 2;

/// How much wider a chart is than its lines: the names stand at the right.
const LEGEND: f64 = 1.5;

pub(super) const COLORS: [RGBColor; 7] = [
    LIMIT,
    RGBColor(210, 150, 40),
    OURS,
    TARGET,
    RGBColor(240, 210, 150),
    RGBColor(140, 190, 225),
    RGBColor(235, 165, 150),
];

/// One chart: lines over labelled places.
pub struct Panel {
    pub title: String,
    pub labels: Vec<String>,
    pub lines: Vec<(String, Vec<f64>)>,
}

/// Draws charts.
pub fn panels(path: &Path, title: &str, panels: &[Panel]) -> Result<()> {
    load_font()?;
    let columns = COLUMNS.min(panels.len().max(1));
    let rows = panels.len().div_ceil(columns).max(1);
    let width = columns as u32 * PANEL_WIDTH;
    let height = rows as u32 * PANEL_HEIGHT + TITLE_HEIGHT as u32;
    let area = BitMapBackend::new(path, (width, height)).into_drawing_area();
    area.fill(&WHITE)?;
    area.draw(&Text::new(title.to_owned(), (20, 12), (FONT, 20)))?;
    let (_, below) = area.split_vertically(TITLE_HEIGHT);
    for (panel, place) in panels.iter().zip(below.split_evenly((rows, columns))) {
        draw(panel, &place)?;
    }
    area.present()?;
    Ok(())
}

fn draw(
    panel: &Panel,
    area: &DrawingArea<BitMapBackend<'_>, plotters::coord::Shift>,
) -> Result<()> {
    let values = panel.lines.iter().flat_map(|(_, values)| values);
    let highest = values.copied().fold(0.0_f64, f64::max);
    let count = panel.labels.len();
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(55)
        .build_cartesian_2d(-0.3..count as f64 * LEGEND, 0.0..highest.max(1e-9) * 1.1)?;
    let label = |at: &f64| {
        let is_at_place = (at - at.round()).abs() < 0.01 && *at > -0.5;
        let label = is_at_place.then(|| panel.labels.get(at.round() as usize));
        label.flatten().cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels(2 * count)
        .x_label_formatter(&label)
        .y_label_formatter(&|value| number(*value))
        .label_style((FONT, 13))
        .draw()?;
    for ((name, values), color) in panel.lines.iter().zip(COLORS.into_iter().cycle()) {
        let points = values.iter().enumerate();
        let points: Vec<(f64, f64)> = points.map(|(n, value)| (n as f64, *value)).collect();
        let marks = points
            .iter()
            .map(|point| Circle::new(*point, 4, color.filled()));
        chart
            .draw_series(marks)?
            .label(name)
            .legend(move |at| Circle::new((at.0 + 8, at.1), 4, color.filled()));
        chart.draw_series([PathElement::new(points, color.stroke_width(2))])?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .label_font((FONT, 12))
        .background_style(WHITE.mix(0.7).filled())
        .draw()?;
    Ok(())
}
