//! Text to token ids and back.
//!
//! A [`Tokenizer`] comes from GGUF metadata or from a `tokenizer.json`; both
//! build the same library tokenizer. Three ways in:
//!
//! | text | method | text of a control token in it |
//! |---|---|---|
//! | a raw prompt that the caller wrote | [`Tokenizer::encode_prompt`] | becomes the control id |
//! | text from somebody else | [`Tokenizer::encode_text`] | stays text |
//! | a rendered chat | [`Tokenizer::encode_chat`] | the id if the template wrote it, text if a message held it |
//!
//! And one way out, [`Tokenizer::decoder`], which holds incomplete characters
//! back, so that streamed text equals the whole.

mod from_gguf;
mod from_json;
mod pre;
mod stream;

use std::path::{Path, PathBuf};

use tokenizers::{AddedToken, Tokenizer as Inner};

pub use stream::{StreamDecoder, StreamState, Utf8Buffer};

use crate::chat::{ControlTexts, RenderedChat};
use crate::gguf::GgufFile;

const BOS_EOS_KEYS: [&str; 2] = ["tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"];

/// A tokenizer with its control tokens.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Recognises control tokens in text.
    parsing: Inner,
    /// Encodes the text of control tokens as text.
    plain: Inner,
    control: Vec<ControlToken>,
    decoding: ByteDecoding,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    end_of_generation: Vec<u32>,
}

/// What the readers of both formats hand over.
struct Parts {
    inner: Inner,
    decoding: ByteDecoding,
    /// Ids that a raw prompt starts with.
    prefix: Vec<u32>,
    /// Ids that a raw prompt ends with.
    suffix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    end_of_generation: Vec<u32>,
}

/// How a token's text becomes bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ByteDecoding {
    /// GPT-2's alphabet: each character stands for one byte.
    ByteLevel,
    /// SentencePiece: `▁` is a space and `<0x0A>` a byte.
    Metaspace {
        /// Whether the text loses the space that encoding put before it.
        strip_first_space: bool,
    },
}

#[derive(Clone, Debug)]
struct ControlToken {
    id: u32,
    text: String,
    /// Whether the token swallows white space on its sides.
    strip_left: bool,
    strip_right: bool,
    /// Whether the chat template looks for it in what the model said.
    inspected: bool,
}

/// A tokenizer could not be built or used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct TokenizerError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: TokenizerFault,
}

impl TokenizerError {
    /// Whether the tokenizer is sound as far as it was read, and of a kind that Butter does not
    /// know (a SentencePiece vocabulary): the model can still run on token ids.
    pub fn is_unsupported_kind(&self) -> bool {
        matches!(&self.fault, TokenizerFault::Unsupported { key, found, .. }
            if key == "tokenizer.ggml.model" && found == "`llama`")
    }
}

/// One thing wrong with a tokenizer. Names from files are already quoted.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerFault {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Io(std::io::Error),
    /// The file is not JSON.
    #[error("is not a JSON object: {0}")]
    Json(serde_json::Error),
    /// A required key is absent.
    #[error("required key {key} is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A key holds another type of value.
    #[error("{key} is {found}, expected {expected}")]
    Type {
        /// The key.
        key: String,
        /// What it holds.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A kind of tokenizer that is not built.
    #[error("{key} is {found}, supported: {supported}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What is supported.
        supported: String,
    },
    /// Keys that Butter does not know, so that ignoring them may change ids.
    #[error("unknown tokenizer keys: {}", keys.join(", "))]
    UnknownKeys {
        /// The keys, quoted.
        keys: Vec<String>,
    },
    /// A token text that two ids have.
    #[error("token {token} stands twice, as id {first} and id {second}")]
    DuplicateToken {
        /// The token.
        token: String,
        /// One id.
        first: u32,
        /// The other.
        second: u32,
    },
    /// An id past the last token.
    #[error("{key} is {id}, there are {count} tokens")]
    TokenId {
        /// The key.
        key: String,
        /// The id.
        id: u64,
        /// Number of tokens.
        count: usize,
    },
    /// A list that does not have an entry a token.
    #[error("{key} has {found} entries for {tokens} tokens")]
    Lengths {
        /// The key.
        key: &'static str,
        /// Its entries.
        found: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// A merge that does not join two tokens into a third.
    #[error("merge {index} is {merge}, which does not join two tokens into a third")]
    Merge {
        /// Its place in the list.
        index: usize,
        /// Its text.
        merge: String,
    },
    /// The tokenizer library refused.
    #[error("{0}")]
    Library(String),
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, TokenizerError> {
        from_gguf::parts(file.header())
            .and_then(Self::from_parts)
            .map_err(|fault| TokenizerError {
                path: file.path().to_owned(),
                fault,
            })
    }

    /// Builds the tokenizer of a `tokenizer.json`. `bos` and `eos` are the texts
    /// that `tokenizer_config.json` names, where it exists.
    pub fn from_tokenizer_json(
        path: &Path,
        bos: Option<&str>,
        eos: Option<&str>,
    ) -> Result<Self, TokenizerError> {
        std::fs::read(path)
            .map_err(TokenizerFault::Io)
            .and_then(|bytes| from_json::parts(&bytes, bos, eos))
            .and_then(Self::from_parts)
            .map_err(|fault| TokenizerError {
                path: path.to_owned(),
                fault,
            })
    }

    fn from_parts(parts: Parts) -> Result<Self, TokenizerFault> {
        let mut plain = parts.inner.clone();
        plain.set_encode_special_tokens(true);
        let mut tokenizer = Self {
            parsing: parts.inner,
            plain,
            control: Vec::new(),
            decoding: parts.decoding,
            prefix: parts.prefix,
            suffix: parts.suffix,
            bos: parts.bos,
            eos: parts.eos,
            end_of_generation: parts.end_of_generation,
        };
        tokenizer.mark_control(|token| token.special)?;
        Ok(tokenizer)
    }

    /// Treats the added tokens that a chat template writes as control tokens,
    /// even if the tokenizer does not flag them as special (DeepSeek's role
    /// markers and Qwen's `<think>` are such).
    pub fn protect_template_tokens(&mut self, template: &str) -> Result<(), TokenizerFault> {
        self.mark_control(|token| {
            token.content.chars().count() >= 3
                && token.content.chars().any(char::is_alphanumeric)
                && template.contains(&token.content)
        })?;
        for control in &mut self.control {
            control.inspected = ["'", "\""].iter().any(|quote| {
                let literal = format!("{quote}{}{quote}", control.text);
                template.contains(&format!("{literal} in "))
                    || template.contains(&format!("split({literal})"))
            });
        }
        Ok(())
    }

    fn mark_control(
        &mut self,
        is_control: impl Fn(&AddedToken) -> bool,
    ) -> Result<(), TokenizerFault> {
        let mut newly_special = Vec::new();
        for (id, token) in self.parsing.get_added_tokens_decoder() {
            if !is_control(&token) || self.control.iter().any(|control| control.id == id) {
                continue;
            }
            self.control.push(ControlToken {
                id,
                text: token.content.clone(),
                strip_left: token.lstrip,
                strip_right: token.rstrip,
                inspected: false,
            });
            if !token.special {
                newly_special.push(token.special(true));
            }
        }
        self.control.sort_by_key(|control| control.id);
        self.plain
            .add_tokens(newly_special)
            .map(|_| ())
            .map_err(|error| TokenizerFault::Library(error.to_string()))
    }

    /// Number of ids, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.parsing.get_vocab_size(true)
    }

    /// Id of the text that starts a sequence, where the tokenizer names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Id of the text that ends a sequence, where the tokenizer names one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Ids that end an answer, as far as the tokenizer knows.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// The text of a token as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.parsing.id_to_token(id)
    }

    /// The id of a token as the vocabulary spells it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.parsing.token_to_id(token)
    }

    /// Texts that only a template or a caller may turn into control ids.
    pub fn control_texts(&self) -> ControlTexts<'_> {
        let texts = |inspected: bool| {
            self.control
                .iter()
                .filter(move |control| control.inspected == inspected)
                .map(|control| control.text.as_str())
                .collect()
        };
        ControlTexts {
            always: texts(false),
            unless_assistant: texts(true),
        }
    }

    /// Encodes a prompt that the caller wrote: control tokens in it are
    /// recognised, and the ids that every sequence starts with are added.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerFault> {
        let mut ids = self.prefix.clone();
        ids.extend(encode(&self.parsing, text)?);
        ids.extend(&self.suffix);
        Ok(ids)
    }

    /// Encodes text in which nothing is a control token.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, TokenizerFault> {
        encode(&self.plain, text)
    }

    /// Encodes a rendered chat (E24): a control token's text becomes its id
    /// where the template wrote it and stays text where a message held it.
    /// Nothing is added; templates write their own start of sequence.
    pub fn encode_chat(&self, chat: &RenderedChat) -> Result<Vec<u32>, TokenizerFault> {
        match chat.sentinel() {
            None => encode(&self.parsing, chat.text()),
            Some(sentinel) => self.encode_marked(chat.marked(), sentinel),
        }
    }

    /// Splits at the control tokens that no sentinel interrupts and encodes what
    /// lies between them as text.
    fn encode_marked(&self, marked: &str, sentinel: char) -> Result<Vec<u32>, TokenizerFault> {
        let mut ids = Vec::new();
        let mut rest = marked;
        while let Some((start, control)) = self.first_control(rest) {
            let (mut before, mut after) = (&rest[..start], &rest[start + control.text.len()..]);
            if control.strip_left {
                before = before.trim_end();
            }
            if control.strip_right {
                after = after.trim_start();
            }
            ids.extend(encode(&self.plain, &before.replace(sentinel, ""))?);
            ids.push(control.id);
            rest = after;
        }
        ids.extend(encode(&self.plain, &rest.replace(sentinel, ""))?);
        Ok(ids)
    }

    /// The leftmost control token, the longest of those that start there.
    fn first_control(&self, text: &str) -> Option<(usize, &ControlToken)> {
        self.control
            .iter()
            .filter_map(|control| text.find(&control.text).map(|start| (start, control)))
            .min_by_key(|(start, control)| (*start, usize::MAX - control.text.len()))
    }

    /// A decoder for one stream of ids.
    pub fn decoder(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }

    /// The text of all ids; control tokens give none.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = self.decoder();
        let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
        text += &decoder.finish();
        text
    }

    /// The text of all ids, control tokens as they are written.
    pub fn decode_all(&self, ids: &[u32]) -> String {
        let runs = ids.chunk_by(|&a, &b| self.is_control(a) == self.is_control(b));
        let text = |run: &[u32]| match self.is_control(run[0]) {
            false => self.decode(run),
            true => {
                let written = run.iter().filter_map(|&id| self.parsing.id_to_token(id));
                written.collect()
            }
        };
        runs.map(text).collect()
    }

    /// Whether an id is a control token, which gives no text.
    pub fn is_control(&self, id: u32) -> bool {
        let added = self.parsing.get_added_vocabulary();
        self.parsing
            .id_to_token(id)
            .is_some_and(|token| added.is_special_token(&token))
    }

    /// The bytes that an id stands for; none for control tokens and unknown ids.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let Some(token) = self.parsing.id_to_token(id) else {
            return Vec::new();
        };
        let added = self.parsing.get_added_vocabulary();
        if added.is_special_token(&token) {
            return Vec::new();
        }
        if added.get_added_tokens_decoder().contains_key(&id) {
            return token.into_bytes();
        }
        match self.decoding {
            ByteDecoding::ByteLevel => token
                .chars()
                .map(stream::byte_of_character)
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.into_bytes()),
            ByteDecoding::Metaspace { .. } => stream::byte_of_fallback_token(&token).map_or_else(
                || token.replace('\u{2581}', " ").into_bytes(),
                |byte| vec![byte],
            ),
        }
    }
}

fn encode(inner: &Inner, text: &str) -> Result<Vec<u32>, TokenizerFault> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    inner
        .encode_fast(text, false)
        .map(|encoding| encoding.get_ids().to_vec())
        .map_err(|error| TokenizerFault::Library(error.to_string()))
}
