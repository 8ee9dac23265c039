//! Parameters of a URL or of a form: `db=points&precision=ms`.

use std::borrow::Cow;

/// Names and values, decoded, in the order given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// The parameters of a URL: the text behind its question mark.
    pub(crate) fn of(query: Option<&str>) -> Self {
        Self::parse(query.unwrap_or_default().as_bytes())
    }

    /// Parses a text `name=value&…`. Bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn parse(text: &[u8]) -> Self {
        Self(form_urlencoded::parse(text).map(owned).collect())
    }

    /// The parameters of `first`, then these: for equal names those of `first` take precedence.
    pub(crate) fn behind(self, first: Self) -> Self {
        let mut all = first.0;
        all.extend(self.0);
        Self(all)
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
        let both = found.behind(Parameters::parse(b"db=form"));
        assert_eq!(both.get("db"), "form");
    }
}
