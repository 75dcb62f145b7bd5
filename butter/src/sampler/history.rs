//! The tokens so far, as penalties count them.

use std::collections::HashMap;

/// The tokens of a prompt and of the answer so far.
#[derive(Clone, Default, Debug)]
pub struct TokenHistory {
    answer: Vec<u32>,
    seen: HashMap<u32, Seen>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    in_prompt: bool,
    in_answer: u32,
}

impl TokenHistory {
    /// The history of an answer that has not begun.
    pub fn new(prompt_ids: &[u32]) -> Self {
        let mut history = Self::default();
        for &token in prompt_ids {
            history.seen.entry(token).or_default().in_prompt = true;
        }
        history
    }

    /// A token joins the answer.
    pub fn push(&mut self, token: u32) {
        self.answer.push(token);
        self.seen.entry(token).or_default().in_answer += 1;
    }

    /// Takes the answer's last token back.
    pub fn pop(&mut self) -> Option<u32> {
        let token = self.answer.pop()?;
        if let Some(seen) = self.seen.get_mut(&token) {
            seen.in_answer -= 1;
            if seen.in_answer == 0 && !seen.in_prompt {
                self.seen.remove(&token);
            }
        }
        Some(token)
    }

    /// The answer's tokens.
    pub fn answer(&self) -> &[u32] {
        &self.answer
    }

    /// Number of the answer's tokens.
    pub fn answer_length(&self) -> usize {
        self.answer.len()
    }

    /// Each distinct token of prompt and answer, and how often the answer has it.
    pub fn counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.seen
            .iter()
            .map(|(&token, seen)| (token, seen.in_answer))
    }
}
