//! A tokenizer from GGUF metadata.

use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as Inner};

use super::{BOS_EOS_KEYS, ByteDecoding, Parts, TokenizerFault, pre};
use crate::gguf::{Array, GgufHeader, Value};
use crate::quote::quoted;

/// Keys below `tokenizer.` that do not change the ids of byte-level BPE.
const IRRELEVANT: &[&str] = &[
    // Byte-level BPE ranks by merges; scores belong to unigram models.
    "tokenizer.ggml.scores",
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.cls_token_id",
    "tokenizer.ggml.mask_token_id",
    // A copy of `tokenizer.json`, which llama.cpp does not read either.
    "tokenizer.huggingface.json",
    // Fill-in-the-middle ids, for editors.
    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
    "tokenizer.ggml.prefix_token_id",
    "tokenizer.ggml.suffix_token_id",
    "tokenizer.ggml.middle_token_id",
];

/// Kinds of tokens in `tokenizer.ggml.token_type`.
mod kind {
    pub(super) const NORMAL: i64 = 1;
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
    pub(super) const UNUSED: i64 = 5;
    pub(super) const BYTE: i64 = 6;
}

/// Builds the tokenizer's parts from the `tokenizer.*` keys.
pub(super) fn parts(header: &GgufHeader) -> Result<Parts, TokenizerFault> {
    let metadata = Metadata { header };
    let model = metadata.string("tokenizer.ggml.model")?;
    if model != "gpt2" {
        return Err(TokenizerFault::Unsupported {
            key: "tokenizer.ggml.model".to_owned(),
            found: quoted(model),
            supported: "gpt2 (byte-level BPE)".to_owned(),
        });
    }
    let pre = pre::by_name(metadata.string("tokenizer.ggml.pre")?)?;
    if metadata.bool("tokenizer.ggml.add_space_prefix")? == Some(true) {
        return Err(TokenizerFault::Unsupported {
            key: "tokenizer.ggml.add_space_prefix".to_owned(),
            found: "true".to_owned(),
            supported: "false for byte-level BPE".to_owned(),
        });
    }
    let tokens = metadata.strings("tokenizer.ggml.tokens")?;
    let kinds = metadata.kinds(tokens.len())?;
    let merges = metadata.strings("tokenizer.ggml.merges")?;

    let mut vocabulary = Vocab::default();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = vocabulary.insert(token.to_string(), id as u32) {
            return Err(TokenizerFault::DuplicateToken {
                token: quoted(token),
                first,
                second: id as u32,
            });
        }
    }
    let merges = merges
        .iter()
        .enumerate()
        .map(|(index, merge)| checked_merge(index, merge, &vocabulary))
        .collect::<Result<Vec<_>, _>>()?;
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|error| TokenizerFault::Library(error.to_string()))?;

    let mut inner = Inner::new(model);
    let library = |error: tokenizers::Error| TokenizerFault::Library(error.to_string());
    inner.with_normalizer(pre.normalizer).map_err(library)?;
    inner.with_pre_tokenizer(Some(pre.pre_tokenizer));
    inner.with_decoder(Some(ByteLevel::new(false, true, true)));
    let added = tokens
        .iter()
        .zip(&kinds)
        .filter_map(|(token, &kind)| match kind {
            kind::CONTROL | kind::UNKNOWN => Some(AddedToken::from(token.to_string(), true)),
            kind::USER_DEFINED => {
                Some(AddedToken::from(token.to_string(), false).normalized(false))
            }
            _ => None,
        });
    inner
        .add_tokens(added.filter(|token| !token.content.is_empty()))
        .map_err(library)?;

    let bos = metadata.token_id("tokenizer.ggml.bos_token_id", tokens.len())?;
    let mut end_of_generation = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        end_of_generation
            .extend(metadata.token_id(&format!("tokenizer.ggml.{key}"), tokens.len())?);
    }
    let eos = metadata.token_id("tokenizer.ggml.eos_token_id", tokens.len())?;
    let side = |key, default, id: Option<u32>, id_key| match metadata.bool(key)?.unwrap_or(default)
    {
        true => id
            .map(|id| vec![id])
            .ok_or(TokenizerFault::Missing { key: id_key }),
        false => Ok(Vec::new()),
    };
    let prefix = side(
        "tokenizer.ggml.add_bos_token",
        pre.adds_bos,
        bos,
        BOS_EOS_KEYS[0],
    )?;
    let suffix = side("tokenizer.ggml.add_eos_token", false, eos, BOS_EOS_KEYS[1])?;
    metadata.refuse_unknown_keys()?;
    Ok(Parts {
        inner,
        decoding: ByteDecoding::ByteLevel,
        prefix,
        suffix,
        bos,
        eos,
        end_of_generation,
    })
}

/// A merge whose two parts and whose result are tokens. The library indexes a
/// buffer by these lengths and would panic on others.
fn checked_merge(
    index: usize,
    merge: &str,
    vocabulary: &Vocab,
) -> Result<(String, String), TokenizerFault> {
    let fault = || TokenizerFault::Merge {
        index,
        merge: quoted(merge),
    };
    let (left, right) = merge.split_once(' ').ok_or_else(fault)?;
    let known = [left, right]
        .iter()
        .all(|part| vocabulary.contains_key(*part));
    if !known || !vocabulary.contains_key(&format!("{left}{right}")) {
        return Err(fault());
    }
    Ok((left.to_owned(), right.to_owned()))
}

struct Metadata<'a> {
    header: &'a GgufHeader,
}

impl<'a> Metadata<'a> {
    fn required(&self, key: &'static str) -> Result<&'a Value, TokenizerFault> {
        self.header.get(key).ok_or(TokenizerFault::Missing { key })
    }

    fn wrong_type(key: &str, found: &Value, expected: &'static str) -> TokenizerFault {
        TokenizerFault::Type {
            key: key.to_owned(),
            found: found.describe(),
            expected,
        }
    }

    fn string(&self, key: &'static str) -> Result<&'a str, TokenizerFault> {
        let value = self.required(key)?;
        value
            .as_str()
            .ok_or_else(|| Self::wrong_type(key, value, "a string"))
    }

    fn strings(&self, key: &'static str) -> Result<&'a [Box<str>], TokenizerFault> {
        let value = self.required(key)?;
        value
            .as_strings()
            .ok_or_else(|| Self::wrong_type(key, value, "an array of strings"))
    }

    fn bool(&self, key: &'static str) -> Result<Option<bool>, TokenizerFault> {
        let Some(value) = self.header.get(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| Self::wrong_type(key, value, "a boolean"))
    }

    fn token_id(&self, key: &str, count: usize) -> Result<Option<u32>, TokenizerFault> {
        let Some(value) = self.header.get(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(id) if id < count as u64 => Ok(Some(id as u32)),
            Some(id) => Err(TokenizerFault::TokenId {
                key: key.to_owned(),
                id,
                count,
            }),
            None => Err(Self::wrong_type(key, value, "a token id")),
        }
    }

    fn kinds(&self, count: usize) -> Result<Vec<i64>, TokenizerFault> {
        let key = "tokenizer.ggml.token_type";
        let Some(value) = self.header.get(key) else {
            return Ok(vec![kind::NORMAL; count]);
        };
        let kinds: Vec<i64> = match value {
            Value::Array(Array::I32(kinds)) => kinds.iter().map(|&kind| kind.into()).collect(),
            Value::Array(Array::U32(kinds)) => kinds.iter().map(|&kind| kind.into()).collect(),
            other => return Err(Self::wrong_type(key, other, "an array of i32")),
        };
        if kinds.len() != count {
            return Err(TokenizerFault::Lengths {
                key,
                found: kinds.len(),
                tokens: count,
            });
        }
        match kinds
            .iter()
            .find(|kind| !(kind::NORMAL..=kind::BYTE).contains(*kind))
        {
            Some(found) => Err(TokenizerFault::Unsupported {
                key: key.to_owned(),
                found: found.to_string(),
                supported: format!(
                    "{} to {}, {} is unused",
                    kind::NORMAL,
                    kind::BYTE,
                    kind::UNUSED
                ),
            }),
            None => Ok(kinds),
        }
    }

    fn refuse_unknown_keys(&self) -> Result<(), TokenizerFault> {
        const USED: &[&str] = &[
            "tokenizer.ggml.model",
            "tokenizer.ggml.pre",
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.token_type",
            "tokenizer.ggml.merges",
            "tokenizer.ggml.add_space_prefix",
            "tokenizer.ggml.add_bos_token",
            "tokenizer.ggml.add_eos_token",
            "tokenizer.ggml.bos_token_id",
            "tokenizer.ggml.eos_token_id",
            "tokenizer.ggml.eot_token_id",
            "tokenizer.ggml.eom_token_id",
        ];
        let keys: Vec<String> = self
            .header
            .metadata()
            .map(|(key, _)| key)
            .filter(|key| key.starts_with("tokenizer."))
            .filter(|key| !key.starts_with("tokenizer.chat_template"))
            .filter(|key| !USED.contains(key) && !IRRELEVANT.contains(key))
            .map(quoted)
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        if keys.is_empty() {
            Ok(())
        } else {
            Err(TokenizerFault::UnknownKeys { keys })
        }
    }
}
