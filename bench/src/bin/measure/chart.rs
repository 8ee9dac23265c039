//! Bar charts in SVG, by hand: groups of bars, one colour a series.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 80.0;
/// Names in a line of the legend.
const LEGEND: usize = 3;
const COLOURS: [&str; 6] = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#9c755f"];

/// Bars in groups; a series has a figure for each group, or none.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) unit: String,
    pub(super) groups: Vec<String>,
    pub(super) series: Vec<(String, Vec<Option<f64>>)>,
}

impl Chart {
    /// The picture.
    pub(super) fn svg(&self) -> String {
        let greatest = self.series.iter().flat_map(|(_, figures)| figures.iter().flatten());
        let top = ceiling(greatest.copied().fold(0.0, f64::max));
        let (inner, base) = (WIDTH - LEFT - 20.0, HEIGHT - BOTTOM);
        let scale = (base - TOP) / top;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        text(&mut svg, LEFT, 20.0, "start", &format!("{} ({})", self.title, self.unit));
        for step in 0..=4 {
            let value = top * f64::from(step) / 4.0;
            let y = base - value * scale;
            line(&mut svg, LEFT, y, WIDTH - 20.0);
            text(&mut svg, LEFT - 6.0, y + 4.0, "end", &super::table::figure(Some(value)));
        }
        let group = inner / self.groups.len().max(1) as f64;
        let bar = group * 0.8 / self.series.len().max(1) as f64;
        for (at, name) in self.groups.iter().enumerate() {
            let start = LEFT + group * at as f64;
            text(&mut svg, start + group / 2.0, base + 16.0, "middle", name);
            for (of, (_, figures)) in self.series.iter().enumerate() {
                if let Some(value) = figures.get(at).copied().flatten() {
                    let x = start + group * 0.1 + bar * of as f64;
                    rectangle(&mut svg, (x, base - value * scale), (bar * 0.92, value * scale), of);
                    let shown = super::table::figure(Some(value));
                    text(&mut svg, x + bar / 2.0, base - value * scale - 3.0, "middle", &shown);
                }
            }
        }
        for (of, (name, _)) in self.series.iter().enumerate() {
            let x = LEFT + inner / LEGEND as f64 * (of % LEGEND) as f64;
            let y = base + 34.0 + 18.0 * (of / LEGEND) as f64;
            rectangle(&mut svg, (x, y), (12.0, 12.0), of);
            text(&mut svg, x + 16.0, y + 10.0, "start", name);
        }
        svg + "</svg>\n"
    }
}

/// The next round figure above.
fn ceiling(value: f64) -> f64 {
    let unit = 10_f64.powf(value.max(1e-9).log10().floor());
    [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * unit)
        .find(|top| *top >= value * 1.05)
        .unwrap_or(unit * 15.0)
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, shown: &str) {
    let shown = shown.replace('&', "&amp;").replace('<', "&lt;");
    // Writing to a string does not fail.
    let _written =
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{shown}</text>")
            .is_ok();
}

fn line(svg: &mut String, x: f64, y: f64, end: f64) {
    let _written = writeln!(
        svg,
        "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{end:.1}\" y2=\"{y:.1}\" stroke=\"#ccc\"/>"
    )
    .is_ok();
}

fn rectangle(svg: &mut String, at: (f64, f64), size: (f64, f64), series: usize) {
    let _written = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
        at.0,
        at.1,
        size.0,
        size.1,
        COLOURS[series % COLOURS.len()]
    )
    .is_ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_for_each_figure_that_is_there() {
        let chart = Chart {
            title: "reads & writes".to_owned(),
            unit: "M/s".to_owned(),
            groups: vec!["small".to_owned(), "large".to_owned()],
            series: vec![
                ("a".to_owned(), vec![Some(1.0), Some(2.0)]),
                ("b".to_owned(), vec![Some(3.5), None]),
            ],
        };
        let svg = chart.svg();
        // The ground, three bars, two in the legend.
        assert_eq!(svg.matches("<rect").count(), 1 + 3 + 2);
        assert!(svg.contains("reads &amp; writes") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn the_scale_ends_above_the_greatest_figure() {
        for value in [0.003, 0.99, 1.0, 2.1, 9.9, 123.0] {
            let top = ceiling(value);
            assert!(top > value && top <= value * 2.2, "{value}: {top}");
        }
    }
}
