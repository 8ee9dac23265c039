//! Values of fields, one by one and in columns.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The type of the values of a field. A field of a measurement has one type in all of its series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldType {
    /// 64-bit floating point; finite.
    Float,
    /// 64-bit, signed.
    Integer,
    /// 64-bit, unsigned.
    Unsigned,
    /// True or false.
    Boolean,
    /// UTF-8, of [`STRING_MAX`] bytes at most.
    String,
}

/// Bytes of a string at most.
pub const STRING_MAX: usize = 64 * 1024;

// media-format: begin pool
const TYPES: [FieldType; 5] = [
    FieldType::Float,
    FieldType::Integer,
    FieldType::Unsigned,
    FieldType::Boolean,
    FieldType::String,
];

impl FieldType {
    /// The number of the type in pools.
    pub(crate) fn code(self) -> u8 {
        TYPES.iter().zip(0..).find(|(it, _)| **it == self).map_or(0, |(_, code)| code)
    }

    /// The type with this number in pools.
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        TYPES.get(usize::from(code)).copied()
    }
}
// media-format: end

impl FieldType {
    /// The name that InfluxDB has for the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Integer => "integer",
            Self::Unsigned => "unsigned",
            Self::Boolean => "boolean",
            Self::String => "string",
        }
    }
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of a field of floats.
    Float(f64),
    /// Of a field of integers.
    Integer(i64),
    /// Of a field of unsigned integers.
    Unsigned(u64),
    /// Of a field of booleans.
    Boolean(bool),
    /// Of a field of strings.
    String(Arc<str>),
}

impl Value {
    /// The type of its field.
    #[must_use]
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Float(_) => FieldType::Float,
            Self::Integer(_) => FieldType::Integer,
            Self::Unsigned(_) => FieldType::Unsigned,
            Self::Boolean(_) => FieldType::Boolean,
            Self::String(_) => FieldType::String,
        }
    }
}

/// Values of one field.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// Floats.
    Float(Vec<f64>),
    /// Integers.
    Integer(Vec<i64>),
    /// Unsigned integers.
    Unsigned(Vec<u64>),
    /// Booleans.
    Boolean(Vec<bool>),
    /// Strings.
    String(Vec<Arc<str>>),
}

impl Column {
    /// An empty one.
    #[must_use]
    pub fn new(of: FieldType) -> Self {
        match of {
            FieldType::Float => Self::Float(Vec::new()),
            FieldType::Integer => Self::Integer(Vec::new()),
            FieldType::Unsigned => Self::Unsigned(Vec::new()),
            FieldType::Boolean => Self::Boolean(Vec::new()),
            FieldType::String => Self::String(Vec::new()),
        }
    }

    /// The type of its field.
    #[must_use]
    pub fn field_type(&self) -> FieldType {
        match self {
            Self::Float(_) => FieldType::Float,
            Self::Integer(_) => FieldType::Integer,
            Self::Unsigned(_) => FieldType::Unsigned,
            Self::Boolean(_) => FieldType::Boolean,
            Self::String(_) => FieldType::String,
        }
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Float(values) => values.len(),
            Self::Integer(values) => values.len(),
            Self::Unsigned(values) => values.len(),
            Self::Boolean(values) => values.len(),
            Self::String(values) => values.len(),
        }
    }

    /// True if there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Value> {
        match self {
            Self::Float(values) => values.get(at).map(|it| Value::Float(*it)),
            Self::Integer(values) => values.get(at).map(|it| Value::Integer(*it)),
            Self::Unsigned(values) => values.get(at).map(|it| Value::Unsigned(*it)),
            Self::Boolean(values) => values.get(at).map(|it| Value::Boolean(*it)),
            Self::String(values) => values.get(at).map(|it| Value::String(Arc::clone(it))),
        }
    }

    /// Appends a value; false if it is of another type.
    pub fn push(&mut self, value: Value) -> bool {
        match (self, value) {
            (Self::Float(values), Value::Float(value)) => values.push(value),
            (Self::Integer(values), Value::Integer(value)) => values.push(value),
            (Self::Unsigned(values), Value::Unsigned(value)) => values.push(value),
            (Self::Boolean(values), Value::Boolean(value)) => values.push(value),
            (Self::String(values), Value::String(value)) => values.push(value),
            _ => return false,
        }
        true
    }
}

impl Column {
    /// Bytes of the texts of strings.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::String(values) => values.iter().map(|it| it.len()).sum(),
            _ => 0,
        }
    }

    /// The values at these places, in the order of the places; places out of range are left out.
    pub(crate) fn gather(&self, places: impl Iterator<Item = usize>) -> Self {
        fn of<T: Clone>(values: &[T], places: impl Iterator<Item = usize>) -> Vec<T> {
            places.filter_map(|at| values.get(at).cloned()).collect()
        }
        match self {
            Self::Float(values) => Self::Float(of(values, places)),
            Self::Integer(values) => Self::Integer(of(values, places)),
            Self::Unsigned(values) => Self::Unsigned(of(values, places)),
            Self::Boolean(values) => Self::Boolean(of(values, places)),
            Self::String(values) => Self::String(of(values, places)),
        }
    }

    /// Appends a range of another column; false if that has another type, or not all of the range.
    pub(crate) fn extend(&mut self, other: &Self, range: Range<usize>) -> bool {
        fn of<T: Clone>(to: &mut Vec<T>, from: &[T], range: Range<usize>) -> bool {
            let found = from.get(range);
            to.extend_from_slice(found.unwrap_or_default());
            found.is_some()
        }
        match (self, other) {
            (Self::Float(to), Self::Float(from)) => of(to, from, range),
            (Self::Integer(to), Self::Integer(from)) => of(to, from, range),
            (Self::Unsigned(to), Self::Unsigned(from)) => of(to, from, range),
            (Self::Boolean(to), Self::Boolean(from)) => of(to, from, range),
            (Self::String(to), Self::String(from)) => of(to, from, range),
            _ => false,
        }
    }
}

/// The places in a range, of ascending times.
pub(crate) fn places(times: &[i64], range: &RangeInclusive<i64>) -> Range<usize> {
    let from = times.partition_point(|time| time < range.start());
    from..times.partition_point(|time| time <= range.end()).max(from)
}

/// Points of one field of one series: ascending times, none twice, and as many values.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Nanoseconds since 1970.
    pub times: Vec<i64>,
    /// The values.
    pub values: Column,
}

impl Block {
    /// An empty one.
    #[must_use]
    pub fn new(of: FieldType) -> Self {
        Self { times: Vec::new(), values: Column::new(of) }
    }

    /// How many points it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// True if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// The places of its points in a range of time.
    pub(crate) fn places(&self, range: &RangeInclusive<i64>) -> Range<usize> {
        places(&self.times, range)
    }

    /// Appends points of another, which are later.
    pub(crate) fn extend(&mut self, other: &Self, range: Range<usize>) {
        if let Some(times) = other.times.get(range.clone())
            && self.values.extend(&other.values, range)
        {
            self.times.extend_from_slice(times);
        }
    }

    /// Some of its points.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let mut part = Self::new(self.values.field_type());
        part.extend(self, range);
        part
    }

    /// The points that are in a range of time.
    pub(crate) fn within(self, range: &RangeInclusive<i64>) -> Self {
        let places = self.places(range);
        if places == (0..self.len()) {
            return self;
        }
        self.part(places)
    }
}
