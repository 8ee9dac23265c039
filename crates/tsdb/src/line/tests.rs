//! Valid lines, invalid lines, and the beginning of the next line.

use super::*;
use crate::point::{FIELDS_MAX, FieldValue};
use crate::value::{STRING_MAX, Value};

const NOW: i64 = 1_465_839_830_123_456_789;

type Outcome = std::result::Result<(usize, Point<'static>), LineError>;

fn all(text: &[u8]) -> Vec<Outcome> {
    let owned = |name: Cow<'_, str>| Cow::Owned(name.into_owned());
    points(text, Precision::Nanosecond, NOW)
        .map(|outcome| {
            let (line, point) = outcome?;
            let fields = point.fields.into_iter().map(|(name, value)| {
                let value = match value.to_value() {
                    Value::Float(value) => FieldValue::Float(value),
                    Value::Integer(value) => FieldValue::Integer(value),
                    Value::Unsigned(value) => FieldValue::Unsigned(value),
                    Value::Boolean(value) => FieldValue::Boolean(value),
                    Value::String(value) => FieldValue::String(value.to_string().into()),
                };
                (owned(name), value)
            });
            let fields = fields.collect();
            Ok((line, Point { series: point.series.into_owned(), fields, time: point.time }))
        })
        .collect()
}

fn point(text: &str) -> Point<'static> {
    let outcomes = all(text.as_bytes());
    let [Ok((1, point))] = &outcomes[..] else { panic!("{text}: {outcomes:?}") };
    point.clone()
}

/// The value of the only field, `a`.
fn value(text: &str) -> FieldValue<'static> {
    let point = point(&format!("m a={text} 1"));
    let [(name, value)] = &point.fields[..] else { panic!("{point:?}") };
    assert_eq!((&**name, point.time), ("a", 1));
    value.clone()
}

/// The fault of a line.
fn fault(text: impl AsRef<[u8]>) -> String {
    let outcomes = all(text.as_ref());
    let [Err(error)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(error.message.starts_with("unable to parse '"), "{error}");
    error.message.rsplit("': ").next().unwrap().to_owned()
}

fn fault_of_value(text: &str) -> String {
    fault(format!("m a={text} 1"))
}

#[test]
fn a_typical_line() {
    let line = "cpu,host=host_1,region=eu usage_user=12i,idle=3.5 1465839830100400200\n";
    let point = point(line);
    assert_eq!(point.series.as_str(), "cpu,host=host_1,region=eu");
    let expected = [("usage_user", FieldValue::Integer(12)), ("idle", FieldValue::Float(3.5))];
    assert!(point.fields.iter().map(|(name, value)| (&**name, value.clone())).eq(expected));
    assert_eq!(point.time, 1_465_839_830_100_400_200);
}

#[test]
fn floats_are_those_of_influxdb() {
    let taken = ["1", "1.", ".5", "-.5", "1e5", "1E-5", "1.5e+3", "-0", "007", "1e-400", "-12.25"];
    for text in taken {
        let expected: f64 = text.parse().unwrap();
        let FieldValue::Float(value) = value(text) else { panic!("{text}") };
        assert_eq!(value.to_bits(), expected.to_bits(), "{text}");
    }
    for text in [".", "-", "-.", "1.1.1", "NaN", "nan", "1e5x", "0x10", "1-", "--1", "1=2"] {
        assert_eq!(fault_of_value(text), "invalid number", "{text}");
    }
    assert_eq!(fault_of_value("1e400x"), "invalid number");
    for text in ["1e", "1e+", "1e400", "-1e400"] {
        assert_eq!(fault_of_value(text), "invalid float", "{text}");
    }
    for text in ["Inf", "+1", "infinity", "e5"] {
        assert_eq!(fault_of_value(text), "invalid boolean", "{text}");
    }
}

#[test]
fn whole_numbers_have_their_bounds() {
    assert_eq!(value("-9223372036854775808i"), FieldValue::Integer(i64::MIN));
    assert_eq!(value("9223372036854775807i"), FieldValue::Integer(i64::MAX));
    assert_eq!(value("000000000000000000000012i"), FieldValue::Integer(12));
    assert_eq!(value("18446744073709551615u"), FieldValue::Unsigned(u64::MAX));
    let out = ["9223372036854775808i", "-9223372036854775809i", "18446744073709551616u"];
    for text in out {
        let (digits, kind) = text.split_at(text.len() - 1);
        let (kind, function) = if kind == "i" { ("integer", "Int") } else { ("unsigned", "Uint") };
        let why = format!("strconv.Parse{function}: parsing \"{digits}\": value out of range");
        assert_eq!(fault_of_value(text), format!("unable to parse {kind} {digits}: {why}"));
    }
    for text in ["1.5i", "1e5i", "i", "-i", "-1u", "1iu", "9i10", "1u1", "1.u"] {
        let expected = if text == "i" { "invalid boolean" } else { "invalid number" };
        assert_eq!(fault_of_value(text), expected, "{text}");
    }
}

#[test]
fn booleans_are_ten_words() {
    for (words, expected) in
        [(["t", "T", "true", "True", "TRUE"], true), (["f", "F", "false", "False", "FALSE"], false)]
    {
        for word in words {
            assert_eq!(value(word), FieldValue::Boolean(expected));
        }
    }
    for word in ["tru", "tRUE", "truee", "fals", "yes", "t1", "true\""] {
        assert_eq!(fault_of_value(word), "invalid boolean", "{word}");
    }
}

#[test]
fn strings_have_two_escapes_and_may_have_newlines() {
    let cases = [
        (r#""""#, ""),
        (r#""a, b = c""#, "a, b = c"),
        (r#""\"\\""#, r#""\"#),
        (r#""\n\,\\\"é""#, r#"\n\,\"é"#),
        ("\"a\nb\"", "a\nb"),
    ];
    for (text, expected) in cases {
        assert_eq!(value(text), FieldValue::String(expected.into()), "{text}");
    }
    assert_eq!(fault_of_value(r#""a""#.repeat(2).as_str()), "invalid field format");
    assert_eq!(fault_of_value(r#""a"b"#), "invalid field format");
    for text in [r#"m a="b"#, r#"m a=""#, r#"m a="b\"#, r#"m a="\""#] {
        assert_eq!(fault(text), "unbalanced quotes", "{text}");
    }
    let longest = format!("\"{}\"", "é".repeat(STRING_MAX / 2));
    assert!(matches!(value(&longest), FieldValue::String(it) if it.len() == STRING_MAX));
    let longer = format!("\"{}\"", "e".repeat(STRING_MAX + 1));
    assert_eq!(fault_of_value(&longer), "max string length exceeded: 65537 > 65536");
}

#[test]
fn names_have_escapes() {
    let point = point(r#"m\ n\,o,t\ u=v\=w f\,g\ h\=i=1,j\k=2,l\"m=3"#);
    assert_eq!(point.series.measurement(), "m n,o");
    assert_eq!(point.series.tags().next(), Some(("t u".into(), "v=w".into())));
    assert!(point.fields.iter().map(|(name, _)| &**name).eq(["f,g h=i", r"j\k", "l\"m"]));
}

#[test]
fn what_is_missing_is_named() {
    let cases = [
        ("m", "missing fields"),
        ("m ", "invalid field format"),
        ("m,a=b", "missing fields"),
        ("m,a=b  ", "invalid field format"),
        ("m \r\n", "invalid field format"),
        (",a=b c=1", "missing measurement"),
        ("m, a=1", "missing tag key"),
        ("m,a a=1", "missing tag value"),
        ("m,a= b=1", "missing tag value"),
        ("m,a=b=c d=1", "invalid tag format"),
        ("m,a=1,a=2 b=1", "duplicate tags"),
        ("m =1", "missing field key"),
        ("m a=1,=2", "missing field key"),
        ("m a=", "missing field value"),
        ("m a=,b=1", "missing field value"),
        ("m a= 1", "missing field value"),
        ("m a", "invalid field format"),
        ("m a 1", "invalid field format"),
        ("m a=1,b", "invalid field format"),
        ("m a=1,", "invalid field format"),
        ("m a=1,,b=2", "invalid field format"),
        ("m a,b=1", "invalid field format"),
        ("m a=1,\tb=2", "invalid field format"),
        ("m a=1 1x", "bad timestamp"),
        ("m a=1 x", "bad timestamp"),
        ("m a=1 -", "bad timestamp"),
        ("m a=1 1 2", "point is invalid"),
    ];
    for (text, expected) in cases {
        assert_eq!(fault(text), expected, "{text:?}");
    }
    let long = "k".repeat(crate::point::KEY_MAX - 5);
    point(&format!("m {}=1", &long));
    assert_eq!(fault(format!("m x{long}=1")), "max key length exceeded: 65536 > 65535");
}

#[test]
fn a_line_has_so_many_fields_and_no_more() {
    let fields = |count: usize| vec!["a=1"; count].join(",");
    assert_eq!(point(&format!("m {}", fields(FIELDS_MAX))).fields.len(), FIELDS_MAX);
    let outcomes = all(format!("m {}\nm b=2", fields(FIELDS_MAX + 1)).as_bytes());
    let [Err(error), Ok((2, _))] = &outcomes[..] else { panic!("{}", outcomes.len()) };
    assert!(error.message.ends_with("': max fields per line exceeded: 65535"), "{error}");
}

#[test]
fn what_is_no_text_is_an_error_of_its_line() {
    for text in [&b"m\xff a=1"[..], b"m,a=\xff a=1", b"m \xff=1", b"m a=\"\xff\""] {
        assert_eq!(fault(text), "invalid UTF-8");
    }
    assert_eq!(fault(b"m a=1\xff"), "invalid number");
}

#[test]
fn times_are_scaled_and_bounded() {
    let time = |text: &str, precision| {
        let line = format!("m a=1 {text}");
        points(line.as_bytes(), precision, NOW).next().unwrap().map(|(_, point)| point.time)
    };
    let units = ["n", "ns", "u", "us", "µ", "ms", "s", "m", "h"];
    let scaled = units.map(|unit| time("2", Precision::of_name(unit).unwrap()).unwrap());
    let thousands = [2, 2, 2_000, 2_000, 2_000, 2_000_000, 2_000_000_000];
    assert_eq!(scaled[..7], thousands);
    assert_eq!(scaled[7..], [120_000_000_000, 7_200_000_000_000]);
    assert_eq!(Precision::of_name("d"), None);
    for text in ["-9223372036854775806", "9223372036854775806", "000000000000000000000001"] {
        assert_eq!(time(text, Precision::Nanosecond).unwrap(), text.parse::<i64>().unwrap());
    }
    let out = ["-9223372036854775807", "9223372036854775807", "18446744073709551617"];
    let outside = "time outside range -9223372036854775806 - 9223372036854775806";
    for text in out.into_iter().chain(["36893488147419103233", "99999999999999999999999"]) {
        assert!(time(text, Precision::Nanosecond).unwrap_err().message.ends_with(outside));
    }
    assert!(time("9223372037", Precision::Second).unwrap_err().message.ends_with(outside));
}

#[test]
fn a_line_without_a_time_has_now_cut_to_the_precision() {
    let time = |precision, now| points(b"m a=1", precision, now).next().unwrap().unwrap().1.time;
    assert_eq!(time(Precision::Nanosecond, NOW), NOW);
    assert_eq!(time(Precision::Second, NOW), 1_465_839_830_000_000_000);
    assert_eq!(time(Precision::Second, -1), -1_000_000_000);
    assert_eq!(time(Precision::Hour, i64::MIN), i64::MIN);
}

#[test]
fn lines_are_numbered_and_the_broken_ones_skipped() {
    let text =
        "\n# a=\"c\r\n m a=1 1\r\n\r\nm\nm a=\"x\ny\" 2\nm a=1 \nbad,a=b c=\"\nd=\" x\n\tm a=2 3";
    let outcomes = all(text.as_bytes());
    let lines = outcomes.iter().map(|outcome| match outcome {
        Ok((line, _)) => (*line, true),
        Err(error) => (error.line, false),
    });
    assert!(lines.eq([(3, true), (5, false), (6, true), (8, true), (9, false), (11, true)]));
}

#[test]
fn a_broken_line_ends_where_influxdb_ends_it() {
    // An escaped newline ends no line, so that what follows is not taken for a point.
    assert_eq!(fault("m,a=b\\\nx c=1"), "missing fields");
    // A quote in a name begins no string, so that the next newline ends the line.
    let outcomes = all(b"m a\"b=x\nm c=1");
    assert!(matches!(&outcomes[..], [Err(LineError { line: 1, .. }), Ok((2, _))]), "{outcomes:?}");
    // A newline within quotes ends no line, and a string without a closing quote goes to the end.
    assert_eq!(fault("m a=x,b=\"\nm c=1\n\""), "invalid boolean");
    assert_eq!(fault("m a=\"b\nm c=1"), "unbalanced quotes");
}

#[test]
fn an_error_has_some_of_the_line() {
    let long = format!("m {}", "x".repeat(1_000));
    let outcomes = all(long.as_bytes());
    let Err(error) = &outcomes[0] else { panic!("{outcomes:?}") };
    let expected = format!("unable to parse 'm {}': invalid field format", "x".repeat(254));
    assert_eq!(error.to_string(), expected);
}

#[test]
fn points_are_written_as_lines() {
    let write = |value: Value| {
        let mut out = Vec::new();
        write_point(&mut out, "m,a=b", [("x y", &value), ("z", &Value::Boolean(true))], -5);
        String::from_utf8(out).unwrap()
    };
    let cases = [
        (Value::Float(1.5), "1.5"),
        (Value::Float(-0.0), "-0"),
        (Value::Float(1e300), "1e300"),
        (Value::Float(5e-324), "5e-324"),
        (Value::Float(0.1), "0.1"),
        (Value::Integer(i64::MIN), "-9223372036854775808i"),
        (Value::Unsigned(7), "7u"),
        (Value::Boolean(false), "false"),
        (Value::String("a \"b\" \\\n".into()), "\"a \\\"b\\\" \\\\\n\""),
    ];
    for (value, text) in cases {
        assert_eq!(write(value), format!("m,a=b x\\ y={text},z=true -5\n"));
    }
    let mut out = b"x".to_vec();
    write_point(&mut out, "m", [], 1);
    assert_eq!(out, b"x");
}
