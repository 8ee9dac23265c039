//! Lines of line protocol: each is refused with a reason, or is a point that is written in a form that reads back the
//! same. The first byte is the precision.
#![no_main]

use coreplane_tsdb::Value;
use coreplane_tsdb::line::{Precision, points, write_point};
use libfuzzer_sys::fuzz_target;

/// The time of a line without a timestamp.
const NOW: i64 = 1_465_839_830_123_456_789;

/// True if two values are the same: floats by their bits.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => a.is_finite() && a.to_bits() == b.to_bits(),
        (a, b) => a == b,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else { return };
    let names = ["n", "u", "ms", "s", "m", "h"];
    let name = names[usize::from(*first) % names.len()];
    let precision = Precision::of_name(name).expect("a name of a precision");
    let mut last = 0;
    for outcome in points(text, precision, NOW) {
        let line = outcome.as_ref().map_or_else(|error| error.line, |(line, _)| *line);
        assert!(line > last, "line {line} behind line {last}");
        last = line;
        let Ok((_, point)) = outcome else { continue };
        assert!(!point.fields.is_empty());
        let fields: Vec<(String, Value)> =
            point.fields.iter().map(|(name, value)| (name.to_string(), value.to_value())).collect();
        let mut written = Vec::new();
        let borrowed = fields.iter().map(|(name, value)| (name.as_str(), value));
        write_point(&mut written, point.series.as_str(), borrowed, point.time);

        let mut lines = points(&written, Precision::Nanosecond, 0);
        let (_, again) = lines.next().expect("a line").expect("a point");
        assert!(lines.next().is_none());
        assert_eq!((&again.series, again.time), (&point.series, point.time));
        assert_eq!(again.fields.len(), fields.len());
        for ((name, value), (again, same)) in fields.iter().zip(&again.fields) {
            assert_eq!(again, name);
            assert!(is_same(value, &same.to_value()), "{value:?}, then {same:?}");
        }
    }
});
