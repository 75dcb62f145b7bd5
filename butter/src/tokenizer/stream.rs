//! Ids to text, one at a time, without ever cutting a character.

use super::{ByteDecoding, Tokenizer};

/// Decodes one stream of ids.
///
/// The pieces that [`push`](Self::push) returns and the tail that
/// [`finish`](Self::finish) returns, joined, are the text of all ids whatever
/// the split (E01).
#[derive(Clone, Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    state: StreamState,
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self {
            tokenizer,
            state: StreamState::default(),
        }
    }

    /// Takes the next id and returns the text that is complete by now.
    pub fn push(&mut self, id: u32) -> String {
        self.state.push(self.tokenizer, id)
    }

    /// Ends the stream: an incomplete character becomes one U+FFFD.
    pub fn finish(self) -> String {
        self.state.finish()
    }
}

/// A [`StreamDecoder`] that does not hold its tokenizer.
#[derive(Clone, Debug)]
pub struct StreamState {
    buffer: Utf8Buffer,
    at_start: bool,
}

impl Default for StreamState {
    fn default() -> Self {
        Self {
            buffer: Utf8Buffer::default(),
            at_start: true,
        }
    }
}

impl StreamState {
    /// Takes the next id of a tokenizer, the same one each time.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        let mut bytes = tokenizer.token_bytes(id);
        if bytes.is_empty() {
            return String::new();
        }
        let strips = ByteDecoding::Metaspace {
            strip_first_space: true,
        };
        if std::mem::take(&mut self.at_start)
            && tokenizer.decoding == strips
            && bytes.first() == Some(&b' ')
        {
            bytes.remove(0);
        }
        self.buffer.push(&bytes)
    }

    /// Ends the stream: an incomplete character becomes one U+FFFD.
    pub fn finish(self) -> String {
        self.buffer.finish()
    }
}

/// Bytes on their way to text: complete characters pass, an incomplete one is
/// held back, and what can never become one turns into U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct Utf8Buffer {
    pending: Vec<u8>,
}

impl Utf8Buffer {
    /// Takes bytes and returns the text that is complete by now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text += valid;
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, invalid) = rest.split_at(error.valid_up_to());
                    text += &String::from_utf8_lossy(valid);
                    let Some(length) = error.error_len() else {
                        rest = invalid;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &invalid[length..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Ends the stream: an incomplete character becomes one U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// The byte that a character of GPT-2's alphabet stands for: printable Latin-1
/// stands for itself, the other 68 bytes follow from U+0100 in their order.
pub(super) fn byte_of_character(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The byte of a SentencePiece fallback token such as `<0x0A>`.
pub(super) fn byte_of_fallback_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn the_alphabet_is_the_librarys_and_covers_each_byte_once() {
        let mut bytes: Vec<u8> = ByteLevel::alphabet()
            .into_iter()
            .map(|character| byte_of_character(character).expect("in the alphabet"))
            .collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(
            (byte_of_character('Ġ'), byte_of_character('Ċ')),
            (Some(b' '), Some(b'\n'))
        );
    }

    // E01
    #[test]
    fn an_emoji_in_four_bytes_comes_out_whole_and_a_cut_one_as_one_replacement() {
        let mut buffer = Utf8Buffer::default();
        let pieces: Vec<String> = "🦊".bytes().map(|byte| buffer.push(&[byte])).collect();
        assert_eq!(pieces, ["", "", "", "🦊"]);
        let mut buffer = Utf8Buffer::default();
        assert_eq!(buffer.push(&"a🦊".as_bytes()[..4]), "a");
        assert_eq!(buffer.finish(), "\u{fffd}");
    }

    proptest! {
        // E01
        #[test]
        fn any_split_of_any_bytes_gives_the_text_of_the_whole(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0xf5], 0..40),
            cuts in prop::collection::vec(0usize..40, 0..10),
        ) {
            let mut buffer = Utf8Buffer::default();
            let mut text = String::new();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut start = 0;
            for cut in cuts {
                text += &buffer.push(&bytes[start..cut]);
                start = cut;
            }
            text += &buffer.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
