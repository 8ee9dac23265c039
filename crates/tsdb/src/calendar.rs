//! The proleptic Gregorian calendar: days since 1970 and dates, without leap seconds (Hinnant's algorithms).
//!
//! Years begin in March, so that the leap day is the last one. Four hundred years, an era, have 146,097 days.

/// Days from 1970-01-01 to 0000-03-01, backwards.
const BEFORE_1970: i64 = 719_468;
/// Days of an era.
const ERA: i64 = 146_097;

/// Days from 1970-01-01 to a date. A day behind the end of its month is one of the next month.
#[must_use]
pub fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - BEFORE_1970
}

/// Year, month and day of a number of days since 1970-01-01.
#[must_use]
pub fn date(days: i64) -> (i64, i64, i64) {
    let days = days + BEFORE_1970;
    let (era, of_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_day_follows_the_one_before() {
        let mut before = date(-800_000);
        for day in -799_999..800_000 {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month, of_month), day);
            let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
            match (month, of_month) {
                (1, 1) => assert_eq!(before, (year - 1, 12, 31)),
                (3, 1) => assert_eq!(before, (year, 2, 28 + i64::from(is_leap))),
                (_, 1) => assert!(before.0 == year && before.1 == month - 1 && before.2 >= 30),
                _ => assert_eq!(before, (year, month, of_month - 1)),
            }
            before = (year, month, of_month);
        }
        assert_eq!((date(0), date(11_016)), ((1970, 1, 1), (2000, 2, 29)));
        assert_eq!(days(2001, 2, 31), days(2001, 3, 3));
    }
}
