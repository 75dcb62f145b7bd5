//! Stop strings: text passes until one of them is complete.

/// Looks for stop strings in streamed text.
///
/// The answer ends where the first stop string *ends*; of several that end
/// there the longest counts. It is not part of the answer. Text that may still
/// become a stop string is held back and, on a miss, passed on exactly once, so
/// the result does not depend on how the text was split (E03).
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher; empty strings are dropped, because they would stop at once.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self {
            stops,
            ..Self::default()
        }
    }

    /// Takes text and returns what is certain not to belong to a stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        for character in text.chars() {
            self.held.push(character);
            let longest = self
                .stops
                .iter()
                .filter(|stop| self.held.ends_with(*stop))
                .map(String::len)
                .max();
            if let Some(length) = longest {
                self.stopped = true;
                self.held.truncate(self.held.len() - length);
                return std::mem::take(&mut self.held);
            }
        }
        let kept = self.held.len() - self.longest_open_prefix();
        self.held.drain(..kept).collect()
    }

    /// Whether a stop string was found.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Ends the text: what was held back was no stop string.
    pub fn finish(self) -> String {
        self.held
    }

    /// Length of the longest end of the held text that starts a stop string.
    fn longest_open_prefix(&self) -> usize {
        self.held
            .char_indices()
            .map(|(start, _)| &self.held[start..])
            .find(|tail| self.stops.iter().any(|stop| stop.starts_with(*tail)))
            .map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&stop| stop.to_owned()));
        let streamed = pieces.iter().map(|piece| matcher.push(piece)).collect();
        let stopped = matcher.is_stopped();
        (streamed, matcher.finish(), stopped)
    }

    // E03
    #[test]
    fn a_possible_stop_is_held_back_and_a_miss_is_passed_on_once() {
        let (streamed, tail, stopped) = run(&["###end"], &["a#", "##e", "nd tail"]);
        assert_eq!(
            (streamed, tail.as_str(), stopped),
            (vec!["a".into(), "".into(), "".into()], "", true)
        );
        let (streamed, tail, stopped) = run(&["###end"], &["a##", "#x#"]);
        assert_eq!(
            (streamed, tail.as_str(), stopped),
            (vec!["a".into(), "###x".into()], "#", false)
        );
        let (streamed, _, stopped) = run(&["<b>", "a<b>"], &["xa<b", ">y"]);
        assert_eq!((streamed, stopped), (vec!["x".into(), "".into()], true));
    }

    proptest! {
        // E03
        #[test]
        fn any_split_gives_the_text_of_the_whole(
            text in "[ab🦊]{0,24}",
            stops in prop::collection::vec("[ab🦊]{1,4}", 0..4),
            cuts in prop::collection::vec(0usize..25, 0..8),
        ) {
            let characters: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(characters.len())).collect();
            cuts.extend([0, characters.len()]);
            cuts.sort_unstable();
            let join = |pieces: Vec<String>| {
                let mut matcher = StopMatcher::new(stops.clone());
                let mut out: String = pieces.iter().map(|piece| matcher.push(piece)).collect();
                let stopped = matcher.is_stopped();
                out += &matcher.finish();
                (out, stopped)
            };
            let split = cuts.windows(2).map(|pair| characters[pair[0]..pair[1]].iter().collect()).collect();
            prop_assert_eq!(join(split), join(vec![text.clone()]));
        }
    }
}
