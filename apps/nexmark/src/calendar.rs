//! Days and minutes of UTC as text.

use millstream::Timestamp;

const DAY_MS: i64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;

/// Returns the day, such as `2015-07-15`.
pub fn day(time: Timestamp) -> String {
    let (year, month, day) = date(time.0.div_euclid(DAY_MS));
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the hour and minute, such as `09:30`.
pub fn minute(time: Timestamp) -> String {
    let minute = time.0.rem_euclid(HOUR_MS) / MINUTE_MS;
    format!("{:02}:{minute:02}", hour(time))
}

/// Returns the hour of the day, from 0 to 23.
pub fn hour(time: Timestamp) -> i64 {
    time.0.rem_euclid(DAY_MS) / HOUR_MS
}

/// Returns year, month and day of the Gregorian calendar, of a number of days since 1970-01-01.
///
/// Years are counted from March, so that a leap day is the last one of its year. Eras of 400 years have the same days.
fn date(days: i64) -> (i64, i64, i64) {
    const ERA_DAYS: i64 = 400 * 365 + 97;
    /// From 0000-03-01 to 1970-01-01.
    const TO_1970_DAYS: i64 = 719_468;
    let days = days + TO_1970_DAYS;
    let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    // Without the leap days before it, each year has 365 days.
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / (ERA_DAYS - 1);
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (year_of_era * 365 + year_of_era / 4 - year_of_era / 100);
    // From March on, five months have 153 days, again and again.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let is_of_next_year = month >= 10;
    let month = if is_of_next_year {
        month - 9
    } else {
        month + 3
    };
    let year = era * 400 + year_of_era + i64::from(is_of_next_year);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_gregorian_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (16_631, "2015-07-15"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
            (-719_468, "0000-03-01"),
        ] {
            assert_eq!(day(Timestamp(days * DAY_MS)), expected);
            assert_eq!(day(Timestamp(days * DAY_MS + DAY_MS - 1)), expected);
        }
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let length = |year: i64, month: i64| match month {
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let mut expected = (1970, 1, 1);
        for days in 0..200_000 {
            assert_eq!(date(days), expected);
            let (year, month, day) = expected;
            expected = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == length(year, month) => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
        }
    }

    #[test]
    fn hours_and_minutes_are_those_of_utc() {
        assert_eq!(minute(Timestamp(1_436_918_400_000)), "00:00");
        assert_eq!(minute(Timestamp(1_436_918_400_000 + 34_259_999)), "09:30");
        assert_eq!(minute(Timestamp(-1)), "23:59");
        assert_eq!(hour(Timestamp(i64::MIN)), hour(Timestamp(i64::MIN + 1)));
        // The first and the last times have days, too.
        assert!(day(Timestamp(i64::MIN)).starts_with('-') && day(Timestamp(i64::MAX)).len() > 10);
    }
}
