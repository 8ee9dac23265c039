//! Texts of keys: the canonical spelling, the names read back, and refused texts.

use super::*;
use proptest::prelude::*;

fn tags_of(key: &SeriesKey<'_>) -> Vec<(String, String)> {
    key.tags().map(|(key, value)| (key.into_owned(), value.into_owned())).collect()
}

fn refusal(text: &str) -> String {
    SeriesKey::of_text(text).expect_err(text).to_string()
}

#[test]
fn tags_ascend_and_empty_ones_are_left_out() {
    let key = SeriesKey::new("cpu", [("region", "eu"), ("rack", ""), ("host", "a")]).unwrap();
    assert_eq!(key.as_str(), "cpu,host=a,region=eu");
    assert_eq!(SeriesKey::new("cpu", []).unwrap().as_str(), "cpu");
}

#[test]
fn escapes_are_those_of_influxdb() {
    let key = SeriesKey::new("a=b c,d", [("k=1", r"v\,x"), (r"b\c", "é =")]).unwrap();
    assert_eq!(key.as_str(), r"a=b\ c\,d,b\c=é\ \=,k\=1=v\\,x");
    assert_eq!(key.measurement(), "a=b c,d");
    let expected = [(r"b\c", "é ="), ("k=1", r"v\,x")].map(|(k, v)| (k.into(), v.into()));
    assert_eq!(tags_of(&key), expected);
    // In a measurement an equals sign needs no escape, and loses it unless a backslash stands before it.
    assert_eq!(SeriesKey::of_text(r"m\=x,a=b").unwrap().as_str(), "m=x,a=b");
    let key = SeriesKey::new(r"m\=x\", []);
    assert!(key.is_err());
    let key = SeriesKey::new(r"m\=x", []).unwrap();
    assert_eq!((key.as_str(), &*key.measurement()), (r"m\\=x", r"m\=x"));
}

#[test]
fn a_canonical_text_is_borrowed_and_another_is_sorted() {
    let key = SeriesKey::of_text("cpu,host=a,region=eu").unwrap();
    assert!(matches!(key.0, Cow::Borrowed(_)));
    let key = SeriesKey::of_text("cpu,region=eu,host=a").unwrap();
    assert_eq!(key.as_str(), "cpu,host=a,region=eu");
    // Order is by the unescaped bytes: a comma is less than a minus, and a backslash greater than both.
    let key = SeriesKey::of_text(r"m,a-=1,a\,=2").unwrap();
    assert_eq!(key.as_str(), r"m,a\,=2,a-=1");
    assert!(matches!(SeriesKey::of_text(key.as_str()).unwrap().0, Cow::Borrowed(_)));
}

#[test]
fn what_is_no_key_is_refused_with_influxdb_words() {
    assert_eq!(refusal(""), "missing measurement");
    assert_eq!(refusal(",a=b"), "missing measurement");
    assert_eq!(refusal("m,"), "missing tag key");
    assert_eq!(refusal("m,=b"), "missing tag key");
    assert_eq!(refusal("m,a"), "missing tag value");
    assert_eq!(refusal("m,a b"), "missing tag value");
    assert_eq!(refusal("m,a="), "missing tag value");
    assert_eq!(refusal("m,a=,b=c"), "missing tag value");
    assert_eq!(refusal("m,a=b=c"), "invalid tag format");
    assert_eq!(refusal("m,a=b,a=c"), "duplicate tags");
    assert_eq!(refusal("m,b=1,a=b,b=c"), "duplicate tags");
    for text in ["m n", "m,a=b c", "m,a=b\nc", r"m,a=b\", r"m\", "#m", "\tm"] {
        refusal(text);
    }
}

#[test]
fn names_that_no_line_can_say_are_refused() {
    for measurement in ["", "#a", "\ta", "\0", "a\nb", r"a\"] {
        assert!(SeriesKey::new(measurement, []).is_err(), "{measurement:?}");
    }
    for tag in [("", "a"), ("a\n", "a"), ("a", "\n"), (r"a\", "a"), ("a", r"a\")] {
        assert!(SeriesKey::new("m", [tag]).is_err(), "{tag:?}");
    }
    assert!(SeriesKey::new("m", [("a", "1"), ("a", "2")]).is_err());
}

#[test]
fn a_key_has_a_greatest_length() {
    let longest = "m".repeat(KEY_MAX);
    assert!(SeriesKey::new(&longest, []).is_ok() && SeriesKey::of_text(&longest).is_ok());
    let longer = "m".repeat(KEY_MAX + 1);
    assert!(SeriesKey::new(&longer, []).is_err() && SeriesKey::of_text(&longer).is_err());
}

#[test]
fn values_keep_what_they_are() {
    let values = [
        (FieldValue::Float(-0.5), Value::Float(-0.5)),
        (FieldValue::Integer(-3), Value::Integer(-3)),
        (FieldValue::Unsigned(u64::MAX), Value::Unsigned(u64::MAX)),
        (FieldValue::Boolean(true), Value::Boolean(true)),
        (FieldValue::String(Cow::Borrowed("é")), Value::String("é".into())),
    ];
    for (from, to) in values {
        assert_eq!(from.field_type(), to.field_type());
        assert_eq!(from.to_value(), to);
    }
}

/// Short names of characters that matter for escapes and order.
fn name() -> impl Strategy<Value = String> {
    r"[a=, \\#-]{0,2}[ab=, \\é]{0,2}[ac,= é]"
}

proptest! {
    #[test]
    fn a_key_says_its_names_and_any_order_of_its_text_is_the_same_key(
        measurement in name(),
        tags in prop::collection::btree_map(name(), name(), 0..5),
        turn in 0..5_usize,
    ) {
        prop_assume!(!measurement.starts_with('#'));
        let mut pairs: Vec<_> = tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let places = pairs.len().max(1);
        pairs.rotate_left(turn % places);
        let key = SeriesKey::new(&measurement, pairs).unwrap();
        prop_assert_eq!(key.measurement(), measurement);
        prop_assert_eq!(tags_of(&key), Vec::from_iter(tags));

        let (head, rest) = halves(key.as_str(), is_comma);
        let mut raw: Vec<_> = RawTags(rest).collect();
        raw.rotate_left(turn % places);
        let text: String = raw.iter().map(|(k, v)| format!(",{k}={v}")).collect();
        let text = format!("{head}{text}");
        let again = SeriesKey::of_text(&text).unwrap();
        prop_assert_eq!(&again, &key);
        prop_assert_eq!(again.into_owned(), key);
    }

    #[test]
    fn any_text_is_refused_or_a_key_that_reads_the_same(text in r"[ab=, \\\n#é]{0,12}") {
        if let Ok(key) = SeriesKey::of_text(&text) {
            let tags = tags_of(&key);
            let pairs = tags.iter().map(|(k, v)| (k.as_str(), v.as_str()));
            prop_assert_eq!(SeriesKey::new(&key.measurement(), pairs).unwrap(), key);
        }
    }
}
