//! Figures of several rounds, and their medians.

use std::collections::BTreeMap;

/// Figures by what was measured and of whom: `("get uniform", "rocksdb")`, one a round.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    figures: BTreeMap<(String, String), Vec<f64>>,
}

impl Rounds {
    /// Adds a figure.
    pub(super) fn add(&mut self, what: &str, whose: &str, figure: f64) {
        self.figures.entry((what.to_owned(), whose.to_owned())).or_default().push(figure);
    }

    /// The median; none if there is no figure.
    pub(super) fn median(&self, what: &str, whose: &str) -> Option<f64> {
        let mut figures = self.figures.get(&(what.to_owned(), whose.to_owned()))?.clone();
        figures.sort_by(f64::total_cmp);
        let middle = figures.len() / 2;
        if figures.len() % 2 == 1 {
            return figures.get(middle).copied();
        }
        Some(f64::midpoint(*figures.get(middle.checked_sub(1)?)?, *figures.get(middle)?))
    }

    /// The greatest of all rounds; none if there is no figure.
    pub(super) fn greatest(&self, what: &str, whose: &str) -> Option<f64> {
        let figures = self.figures.get(&(what.to_owned(), whose.to_owned()))?;
        figures.iter().copied().max_by(f64::total_cmp)
    }

    /// How far the rounds are apart at worst, over everything of `whose`: (max - min) / median.
    pub(super) fn spread(&self, whose: &str) -> Option<f64> {
        self.figures
            .iter()
            .filter(|((_, owner), figures)| owner == whose && figures.len() > 1)
            .filter_map(|((what, _), figures)| {
                let max = figures.iter().copied().fold(f64::MIN, f64::max);
                let min = figures.iter().copied().fold(f64::MAX, f64::min);
                Some((max - min) / self.median(what, whose)?)
            })
            .max_by(f64::total_cmp)
    }

    /// One median over another.
    pub(super) fn ratio(&self, what: &str, whose: &str, to: (&str, &str)) -> Option<f64> {
        Some(self.median(what, whose)? / self.median(to.0, to.1)?)
    }

    /// The greatest median among `of`, and whose it is.
    pub(super) fn best<'a>(
        &self,
        what: &str,
        of: impl IntoIterator<Item = &'a str>,
    ) -> Option<(f64, &'a str)> {
        of.into_iter()
            .filter_map(|whose| Some((self.median(what, whose)?, whose)))
            .max_by(|a, b| a.0.total_cmp(&b.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_ratios_and_the_best() {
        let mut rounds = Rounds::default();
        for figure in [9.0, 1.0, 3.0] {
            rounds.add("get", "a", figure);
        }
        rounds.add("get", "b", 1.0);
        rounds.add("get", "b", 2.0);
        assert_eq!(rounds.median("get", "a"), Some(3.0));
        assert_eq!(rounds.median("get", "b"), Some(1.5));
        assert_eq!(rounds.median("put", "a"), None);
        assert_eq!((rounds.greatest("get", "a"), rounds.greatest("put", "a")), (Some(9.0), None));
        assert_eq!(rounds.ratio("get", "a", ("get", "b")), Some(2.0));
        assert_eq!(rounds.best("get", ["b", "a", "c"]), Some((3.0, "a")));
        assert!(rounds.spread("a").is_some_and(|spread| (spread - 8.0 / 3.0).abs() < 1e-9));
        assert_eq!(rounds.spread("c"), None);
    }
}
