//! Names that come out of a file, made safe for a one-line error.

use std::fmt;

/// Longest name that an error repeats in full, in characters.
const LONGEST: usize = 80;

/// Displays a name from a file quoted, escaped and cut to a readable length.
///
/// A lying file can hold a key of megabytes, or one with line breaks and
/// terminal escapes; neither may reach the user's terminal.
pub(crate) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`")?;
        for (index, character) in self.0.chars().enumerate() {
            if index == LONGEST {
                return write!(f, "…` ({} bytes)", self.0.len());
            }
            match character {
                '\'' | '"' => write!(f, "{character}")?,
                other => write!(f, "{}", other.escape_debug())?,
            }
        }
        f.write_str("`")
    }
}

/// [`Quoted`] as an owned string, for error fields.
pub(crate) fn quoted(name: &str) -> String {
    Quoted(name).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_hostile_names_stay_short_and_on_one_line() {
        let hostile = format!("a\nb\u{1b}[2J{}", "x".repeat(1 << 20));
        let shown = quoted(&hostile);
        assert!(shown.len() < 200 && !shown.contains('\n') && !shown.contains('\u{1b}'));
        assert_eq!(quoted("it's \"x\""), "`it's \"x\"`");
    }
}
