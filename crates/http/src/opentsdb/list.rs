//! Lists in JSON that are bounded while they are read: an element may take many times the bytes of its text.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use std::fmt;

/// A list of which at most `MAX` elements are kept, and one more, which shows that there are too many.
#[derive(Debug)]
pub(super) struct Few<T, const MAX: usize>(pub(super) Vec<T>);

impl<T, const MAX: usize> Default for Few<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Few<T, MAX> {
    type Value = Self;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while self.0.len() <= MAX {
            let Some(element) = list.next_element()? else { return Ok(self) };
            self.0.push(element);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Self::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_of_a_long_list_is_kept_than_shows_its_length() {
        let of = |text: &str| serde_json::from_str::<Few<u8, 3>>(text).map(|few| few.0);
        assert_eq!(of("[1,2]").unwrap(), [1, 2]);
        assert_eq!(of(&format!("[{}1]", "1,".repeat(1000))).unwrap(), [1; 4]);
        assert!(of("[1,1,1,1,1").is_err() && of("{}").is_err());
    }
}
