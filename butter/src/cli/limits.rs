//! Limits of the counts on the command line, in one place. They lie far above what is useful and
//! far below where arithmetic on them could overflow, so that no command has to think of it.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::speculate::VERIFY_ROWS;

/// Positions of a sequence: prompts, contexts, answers. No published model has more.
pub(super) const POSITIONS: usize = 1 << 24;
/// Sequences or clients at once.
pub(super) const SEQUENCES: usize = 4096;
/// Rows of a step.
pub(super) const ROWS: usize = 1 << 16;
/// Repetitions of a measurement, or requests of a load.
pub(super) const REPETITIONS: usize = 1 << 20;
/// Lines of a listing.
pub(super) const LINES: usize = 1 << 20;
/// Rows of a verification.
pub(super) const LEAST_VERIFY_ROWS: usize = *VERIFY_ROWS.start();
/// See [`LEAST_VERIFY_ROWS`].
pub(super) const MOST_VERIFY_ROWS: usize = *VERIFY_ROWS.end();

/// Parses a count of `LEAST` to `MOST`. Every flag that is a count is read by it.
pub(super) fn count<const LEAST: usize, const MOST: usize>(text: &str) -> Result<usize, String> {
    in_range(text, LEAST..=MOST)
}

/// Parses two counts as `LEAST-MOST`, or one that is both.
pub(super) fn counts<const LEAST: usize, const MOST: usize>(
    text: &str,
) -> Result<(usize, usize), String> {
    let one = |text: &str| in_range(text, LEAST..=MOST);
    let Some((least, most)) = text.split_once('-') else {
        return one(text).map(|count| (count, count));
    };
    let (least, most) = (one(least)?, one(most)?);
    if least > most {
        return Err(format!("the first must not be more than {most}"));
    }
    Ok((least, most))
}

fn in_range(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if range.contains(&count) => Ok(count),
        _ => Err(format!(
            "it must be a whole number from {} to {}",
            range.start(),
            range.end()
        )),
    }
}

/// Parses a rate: 0, or a number of events a second of which a clock can keep count.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    const RANGE: RangeInclusive<f64> = 1e-3..=1e6;
    match text.trim().parse::<f64>() {
        Ok(rate) if rate == 0.0 || RANGE.contains(&rate) => Ok(rate),
        _ => Err("it must be 0, or from 0.001 to 1000000".to_owned()),
    }
}

/// Parses a temperature that the server takes.
pub(super) fn temperature(text: &str) -> Result<f64, String> {
    const RANGE: RangeInclusive<f64> = 0.0..=100.0;
    match text.trim().parse::<f64>() {
        Ok(temperature) if RANGE.contains(&temperature) => Ok(temperature),
        _ => Err("it must be from 0 to 100".to_owned()),
    }
}

/// Parses a text that has at least one character.
pub(super) fn some_text(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it must have a character".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses where a model lies: a path, or the name of one that `butter pull` has fetched.
pub(super) fn model_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(crate::hub::locate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_keep_to_their_range_and_say_it() {
        assert_eq!(count::<1, 9>(" 9"), Ok(9));
        for wrong in ["0", "10", "-1", "1.0", "", "x", "18446744073709551616"] {
            let error = count::<1, 9>(wrong).expect_err(wrong);
            assert_eq!(error, "it must be a whole number from 1 to 9");
        }
        assert_eq!(counts::<1, 9>("7"), Ok((7, 7)));
        assert_eq!(counts::<1, 9>("1-9"), Ok((1, 9)));
        for wrong in ["", "0", "9-1", "x", "1-", "1-10", "-1"] {
            assert!(counts::<1, 9>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_finite_and_no_pause_is_longer_than_a_clock_counts() {
        assert_eq!((rate("0"), rate("2.5")), (Ok(0.0), Ok(2.5)));
        for wrong in ["nan", "inf", "-1", "1e-300", "1e300", ""] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
