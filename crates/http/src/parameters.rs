//! Parameters of a URL or of a form: `db=points&precision=ms`.

use std::borrow::Cow;

/// The number of parameters of a URL: more than any request has use for.
const PARAMETERS_MAX: usize = 256;

/// Names and values, decoded, in the order given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// The parameters of a URL: the text behind its question mark.
    pub(crate) fn of(query: Option<&str>) -> Self {
        Self::parse(query.unwrap_or_default().as_bytes())
    }

    /// Parses a text `name=value&…`. Bytes that are not UTF-8 become U+FFFD. More than [`PARAMETERS_MAX`] parameters
    /// are ignored: a request keeps its parameters while it waits for its body.
    fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).take(PARAMETERS_MAX).map(owned).collect())
    }

    /// Keeps the first value of each of these names, and adds those of a form: for equal names the form takes
    /// precedence. A form may have many more parameters than anybody reads.
    pub(crate) fn behind(self, form: &[u8], names: &[&str]) -> Self {
        let mut all: Vec<(String, String)> = Vec::with_capacity(names.len());
        let of_url = self.0.into_iter().map(|(name, value)| (name.into(), value.into()));
        for (name, value) in form_urlencoded::parse(form).chain(of_url) {
            if names.contains(&&*name) && !all.iter().any(|(known, _)| *known == *name) {
                all.push(owned((name, value)));
            }
        }
        Self(all)
    }

    /// Takes the first value of this name, if it is not empty.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let (_, value) = self.0.iter_mut().find(|(one, _)| one == name)?;
        Some(std::mem::take(value)).filter(|value| !value.is_empty())
    }

    /// The first value of this name; empty if there is none, as in InfluxDB.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(one, _)| one == name).map_or("", |(_, value)| value)
    }

    /// The first value of this name, if it is not empty.
    pub(crate) fn some(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }

    /// True if the name is there, with any value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(one, _)| one == name)
    }

    /// All values of this name.
    pub(crate) fn all<'p>(&'p self, name: &str) -> impl Iterator<Item = &'p str> {
        self.0.iter().filter(move |(one, _)| one == name).map(|(_, value)| value.as_str())
    }
}

fn owned((name, value): (Cow<'_, str>, Cow<'_, str>)) -> (String, String) {
    (name.into_owned(), value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let found = Parameters::of(Some("db=a+b%20c&q=%22x%22&empty=&flag&db=second"));
        assert_eq!((found.get("db"), found.get("q")), ("a b c", "\"x\""));
        assert_eq!(
            (found.some("empty"), found.has("flag"), found.has("none")),
            (None, true, false)
        );
        assert_eq!(found.all("db").collect::<Vec<_>>(), ["a b c", "second"]);
        let many = b"a&b&".repeat(1000);
        let both = found.behind(&[&many[..], b"db=form&db=c&a"].concat(), &["db", "q", "p"]);
        assert_eq!((both.get("db"), both.get("q"), both.0.len()), ("form", "\"x\"", 2));
        let empty = Parameters::of(Some(&"a&".repeat(32_000)));
        assert!(empty.0.len() <= 256, "{}", empty.0.len());
    }
}
