//! Pictures of a report.

mod panels;
mod rates;

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::register_font;

pub use self::panels::{Panel, panels};
pub use self::rates::{bars, by_rate};
use crate::report::{Case, Report, number};

const FONT: &str = "sans-serif";
const WIDTH: u32 = 1000;
const ROW_HEIGHT: i32 = 34;
const TOP: i32 = 50;
/// Where bars start; names stand before.
const BARS_FROM: i32 = 300;
/// Where a bar of the highest ratio ends, and numbers stand behind.
const BARS_TO: i32 = 900;
/// Higher ratios are drawn as this, and lower ones as its inverse.
const RATIO_MAX: f64 = 32.0;

const OURS: RGBColor = RGBColor(38, 112, 168);
const LIMIT: RGBColor = RGBColor(150, 150, 150);
const TARGET: RGBColor = RGBColor(200, 60, 40);

/// Draws `ratios.png`, all cases beside their limits, and a picture of the rounds of each case.
pub fn draw(report: &Report, out: &Path) -> Result<()> {
    load_font()?;
    let ratios: Vec<&Case> = report
        .cases
        .iter()
        .filter(|case| case.ratio_to_limit.is_some())
        .collect();
    draw_ratios(report, &ratios, &out.join("ratios.png"))?;
    for case in report
        .cases
        .iter()
        .filter(|case| case.rounds.ours.len() > 1)
    {
        let name = case.case.replace('/', "-");
        draw_rounds(case, &out.join(format!("{name}.png")))?;
    }
    Ok(())
}

/// Draws lines over time, in seconds, and behind them the band that the first should stay in.
pub fn over_time(
    path: &Path,
    title: &str,
    lines: [(&str, &[(f64, f64)]); 2],
    band: &Range<f64>,
) -> Result<()> {
    load_font()?;
    let area = BitMapBackend::new(path, (WIDTH, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let points = lines.iter().flat_map(|(_, points)| points.iter());
    let (end, highest) = points.fold((0.0_f64, band.end), |(end, highest), (at, value)| {
        (end.max(*at), highest.max(*value))
    });
    let mut chart = ChartBuilder::on(&area)
        .caption(title, (FONT, 20))
        .margin(15)
        .x_label_area_size(35)
        .y_label_area_size(75)
        .build_cartesian_2d(0.0..end, 0.0..highest * 1.1)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .y_label_formatter(&|value| number(*value))
        .x_desc("seconds")
        .label_style((FONT, 14))
        .draw()?;
    let band = [(0.0, band.start), (end, band.end)];
    chart.draw_series([Rectangle::new(band, OURS.mix(0.15).filled())])?;
    for ((name, points), color) in lines.into_iter().zip([OURS, LIMIT]) {
        chart
            .draw_series([PathElement::new(points, color.stroke_width(2))])?
            .label(name)
            .legend(move |at| Circle::new((at.0 + 8, at.1), 5, color.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .label_font((FONT, 14))
        .background_style(WHITE.filled())
        .border_style(LIMIT)
        .draw()?;
    area.present()?;
    Ok(())
}

/// The machine may have no fonts.
fn load_font() -> Result<()> {
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular())
        .map_err(|_| anyhow!("the plots' font cannot be read"))
}

fn draw_ratios(report: &Report, cases: &[&Case], path: &Path) -> Result<()> {
    let height = TOP + ROW_HEIGHT * (cases.len() as i32 + 1);
    let area = BitMapBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let text = (FONT, 16).into_font();
    let title = format!(
        "{}: ratio to the limit, logarithmic (line: 1; red: target)",
        report.name
    );
    area.draw(&Text::new(title, (20, 15), (FONT, 20)))?;
    let x = |ratio: f64| {
        let part = ratio.clamp(1.0 / RATIO_MAX, RATIO_MAX).log(RATIO_MAX);
        BARS_FROM + ((part + 1.0) / 2.0 * f64::from(BARS_TO - BARS_FROM)) as i32
    };
    for (row, case) in cases.iter().enumerate() {
        let y = TOP + ROW_HEIGHT * row as i32;
        let ratio = case.ratio_to_limit.unwrap_or_default();
        let bar = [(BARS_FROM, y), (x(ratio), y + ROW_HEIGHT - 12)];
        area.draw(&Rectangle::new(bar, OURS.filled()))?;
        area.draw(&Text::new(case.case.clone(), (20, y + 3), text.clone()))?;
        area.draw(&Text::new(
            number(ratio),
            (x(ratio) + 8, y + 3),
            text.clone(),
        ))?;
        if let Some(target) = case.target {
            let line = vec![(x(target), y - 4), (x(target), y + ROW_HEIGHT - 8)];
            area.draw(&PathElement::new(line, TARGET.stroke_width(3)))?;
        }
    }
    let axis = vec![(x(1.0), TOP - 8), (x(1.0), height - ROW_HEIGHT)];
    area.draw(&PathElement::new(axis, BLACK.stroke_width(1)))?;
    area.present()?;
    Ok(())
}

fn draw_rounds(case: &Case, path: &Path) -> Result<()> {
    let area = BitMapBackend::new(path, (640, 360)).into_drawing_area();
    area.fill(&WHITE)?;
    let all = case.rounds.ours.iter().chain(&case.rounds.limit);
    let highest = all.copied().chain(case.limit).fold(0.0, f64::max);
    let rounds = case.rounds.ours.len();
    let mut chart = ChartBuilder::on(&area)
        .caption(&case.case, (FONT, 20))
        .margin(15)
        .x_label_area_size(35)
        .y_label_area_size(75)
        .build_cartesian_2d(0.5..rounds as f64 + 0.5, 0.0..highest * 1.1)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(rounds)
        .x_label_formatter(&|round| format!("{round:.0}"))
        .y_label_formatter(&|value| number(*value))
        .x_desc("round")
        .y_desc(&case.unit)
        .label_style((FONT, 14))
        .draw()?;
    let bound = case.limit.map(|limit| vec![limit; rounds]);
    let limit = match (&case.rounds.limit[..], bound) {
        ([], Some(bound)) => bound,
        (measured, _) => measured.to_vec(),
    };
    for (name, values, color) in [("limit", &limit, LIMIT), ("ours", &case.rounds.ours, OURS)] {
        let points = values.iter().enumerate();
        let points: Vec<(f64, f64)> = points.map(|(n, value)| (n as f64 + 1.0, *value)).collect();
        chart
            .draw_series(
                points
                    .iter()
                    .map(|point| Circle::new(*point, 6, color.filled())),
            )?
            .label(name)
            .legend(move |at| Circle::new((at.0 + 8, at.1), 5, color.filled()));
        chart.draw_series([PathElement::new(points, color.stroke_width(1))])?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .label_font((FONT, 14))
        .background_style(WHITE.filled())
        .border_style(LIMIT)
        .draw()?;
    area.present()?;
    Ok(())
}
