//! The words of `MATRIX` and `STORE`.

use super::Refused;
use coreplane::admin::{CopyOptions, Position, Work};

/// A request to a matrix.
#[derive(Debug, Clone, Copy)]
pub enum MatrixRequest {
    /// `STATUS`: the state of the matrix.
    Status,
    /// `ADDGROUP [LIMIT bytes]`: another group, or the move of keys to the last one.
    AddGroup(CopyOptions),
    /// `REPLACE device [FRESH] [LIMIT bytes]`, `RETIRE device`, `SCRUB [DEVICE device]`: starts long work.
    Begin(Work),
}

/// A request to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRequest {
    /// `INFO`: facts about the store, its medium, and what a power cut would lose.
    Info,
    /// `STATS`: its counters.
    Stats,
    /// `STATUS`: progress of the work that was started last.
    Status,
    /// `VERIFY`: reads and checks everything.
    Verify,
    /// `GROW bytes`: grows the pool, or each device of the matrix, to at least this many bytes.
    Grow(u64),
    /// `RECORDS cursor [COUNT count]`: some records with their values and expiries, and the next cursor.
    Records {
        /// Where to go on; 0 starts at the beginning.
        cursor: u64,
        /// Approximate number of records.
        count: usize,
    },
}

impl MatrixRequest {
    /// Parses the words behind `MATRIX`.
    ///
    /// # Errors
    /// If the words are no request.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        let place = |word: &str| word.parse::<Position>().map_err(Refused::words);
        let (word, rest) = words.split_first().ok_or_else(unknown_of_matrix)?;
        Ok(match (&*word.to_ascii_uppercase(), rest) {
            ("STATUS", []) => Self::Status,
            ("SCRUB", []) => Self::Begin(Work::Scrub(None)),
            ("SCRUB", [device, at]) if device.eq_ignore_ascii_case("device") => {
                Self::Begin(Work::Scrub(Some(place(at)?)))
            }
            ("RETIRE", [at]) => Self::Begin(Work::Retire(place(at)?)),
            ("ADDGROUP", options) => Self::AddGroup(copy_options(options)?),
            ("REPLACE", [at, options @ ..]) => {
                Self::Begin(Work::Replace(place(at)?, copy_options(options)?))
            }
            _ => return Err(unknown_of_matrix()),
        })
    }
}

impl StoreRequest {
    /// Records of one answer: the default, and the maximum.
    const COUNT_DEFAULT: usize = 10;
    const COUNT_MAX: usize = 1024;

    /// Parses the words behind `STORE`.
    ///
    /// # Errors
    /// If the words are no request.
    pub fn parse(words: &[&str]) -> Result<Self, Refused> {
        let (word, rest) = words.split_first().ok_or_else(unknown_of_store)?;
        Ok(match (&*word.to_ascii_uppercase(), rest) {
            ("INFO", []) => Self::Info,
            ("STATS", []) => Self::Stats,
            ("STATUS", []) => Self::Status,
            ("VERIFY", []) => Self::Verify,
            ("GROW", [bytes]) => Self::Grow(number(bytes, "GROW wants bytes")?),
            ("RECORDS", [cursor, rest @ ..]) => {
                let cursor = number(cursor, "invalid cursor")?;
                let count = match rest {
                    [] => Self::COUNT_DEFAULT,
                    [count, given] if count.eq_ignore_ascii_case("count") => {
                        let given: u64 = number(given, "COUNT wants a number")?;
                        usize::try_from(given).unwrap_or(usize::MAX).clamp(1, Self::COUNT_MAX)
                    }
                    _ => return Err(unknown_of_store()),
                };
                Self::Records { cursor, count }
            }
            _ => return Err(unknown_of_store()),
        })
    }
}

fn number(word: &str, complaint: &str) -> Result<u64, Refused> {
    word.parse().map_err(|_| Refused::words(complaint))
}

fn unknown_of_matrix() -> Refused {
    Refused::words(
        "try MATRIX STATUS, MATRIX REPLACE device [FRESH] [LIMIT bytes], MATRIX RETIRE device, \
         MATRIX ADDGROUP [LIMIT bytes] or MATRIX SCRUB [DEVICE device]",
    )
}

fn unknown_of_store() -> Refused {
    Refused::words(
        "try STORE INFO, STORE STATS, STORE STATUS, STORE VERIFY, STORE GROW bytes or \
         STORE RECORDS cursor [COUNT count]",
    )
}

fn copy_options(words: &[&str]) -> Result<CopyOptions, Refused> {
    let mut options = CopyOptions::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case("fresh") {
            options.is_fresh = true;
        } else if word.eq_ignore_ascii_case("limit") {
            let limit = words.next().and_then(|word| word.parse().ok()).filter(|limit| *limit > 0);
            let wanted = || Refused::words("LIMIT wants bytes in a second");
            options.bytes_per_second_max = Some(limit.ok_or_else(wanted)?);
        } else {
            return Err(Refused::words(format!("`{word}` is none of FRESH, LIMIT")));
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_matrix_are_read() {
        let parse = |text: &str| {
            let words: Vec<&str> = text.split(' ').collect();
            MatrixRequest::parse(&words)
        };
        assert!(matches!(parse("status"), Ok(MatrixRequest::Status)));
        assert!(matches!(parse("Scrub"), Ok(MatrixRequest::Begin(Work::Scrub(None)))));
        let at = Position { group: 0, device: 1 };
        let scrub = parse("SCRUB DEVICE g0d1");
        assert!(matches!(scrub, Ok(MatrixRequest::Begin(Work::Scrub(Some(it)))) if it == at));
        let replace = parse("REPLACE g0d1 FRESH LIMIT 5");
        assert!(matches!(replace, Ok(MatrixRequest::Begin(Work::Replace(it, options)))
            if it == at && options.is_fresh && options.bytes_per_second_max == Some(5)));
        assert!(matches!(parse("addgroup limit 7"), Ok(MatrixRequest::AddGroup(options))
            if !options.is_fresh && options.bytes_per_second_max == Some(7)));
        for wrong in
            ["", "nonsense", "retire", "retire g0", "scrub g0d1", "addgroup limit 0", "status now"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn requests_of_a_store_are_read() {
        let parse = |text: &str| {
            let words: Vec<&str> = text.split(' ').collect();
            StoreRequest::parse(&words).ok()
        };
        for (text, request) in [
            ("info", StoreRequest::Info),
            ("STATS", StoreRequest::Stats),
            ("Status", StoreRequest::Status),
            ("verify", StoreRequest::Verify),
            ("grow 100", StoreRequest::Grow(100)),
            ("records 7", StoreRequest::Records { cursor: 7, count: 10 }),
            ("records 7 count 0", StoreRequest::Records { cursor: 7, count: 1 }),
            ("records 7 COUNT 99999999", StoreRequest::Records { cursor: 7, count: 1024 }),
        ] {
            assert_eq!(parse(text), Some(request), "{text}");
        }
        for wrong in [
            "",
            "grow",
            "grow 1GiB",
            "grow -1",
            "records",
            "records x",
            "records 0 count",
            "info all",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
