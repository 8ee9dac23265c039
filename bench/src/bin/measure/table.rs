//! Tables in Markdown.

use std::fmt::Write as _;

/// A table that grows by rows.
#[derive(Debug)]
pub(super) struct Table {
    text: String,
    columns: usize,
}

impl Table {
    /// A table with these headings.
    pub(super) fn new<S: AsRef<str>>(headings: impl IntoIterator<Item = S>) -> Self {
        let headings: Vec<String> =
            headings.into_iter().map(|heading| heading.as_ref().to_owned()).collect();
        let columns = headings.len();
        let text = format!("| {} |\n|{}\n", headings.join(" | "), "---|".repeat(columns));
        Self { text, columns }
    }

    /// Adds a row; cells that are missing are empty.
    pub(super) fn row<S: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut cells: Vec<String> =
            cells.into_iter().map(|cell| cell.as_ref().to_owned()).collect();
        cells.resize(self.columns, String::new());
        // Writing to a string does not fail.
        let _written = writeln!(self.text, "| {} |", cells.join(" | ")).is_ok();
    }

    /// The text.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A figure with three digits that count, or a dash.
pub(super) fn figure(value: Option<f64>) -> String {
    let Some(value) = value else {
        return "–".to_owned();
    };
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A ratio as percent.
pub(super) fn percent(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0))
}

/// Cells of a goal that a ratio must reach: ratio, goal, verdict.
pub(super) fn judged(ratio: Option<f64>, goal: f64) -> [String; 3] {
    let verdict = match ratio {
        Some(ratio) if ratio >= goal => "met",
        Some(_) => "**missed**",
        None => "not measured",
    };
    [figure(ratio), format!("≥ {goal}"), verdict.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_as_many_cells_as_there_are_headings() {
        let mut table = Table::new(["a", "b"]);
        table.row(["1"]);
        assert_eq!(table.finish(), "| a | b |\n|---|---|\n| 1 |  |\n");
    }

    #[test]
    fn figures_are_rounded_for_reading() {
        let shown = [1234.5, 12.34, 1.234, 0.01234].map(|value| figure(Some(value)));
        assert_eq!(shown, ["1234", "12.3", "1.23", "0.0123"]);
        assert_eq!(judged(Some(2.9), 3.0), ["2.90", "≥ 3", "**missed**"]);
        assert_eq!(
            (judged(Some(3.0), 3.0)[2].as_str(), judged(None, 3.0)[2].as_str()),
            ("met", "not measured")
        );
        assert_eq!((figure(None), percent(Some(0.654))), ("–".to_owned(), "65 %".to_owned()));
    }
}
