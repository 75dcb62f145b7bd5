//! A tokenizer from a Hugging Face `tokenizer.json`.

use serde_json::{Map, Value as Json};
use tokenizers::Tokenizer as Inner;

use super::{ByteDecoding, Parts, TokenizerFault};
use crate::json::unique_object;
use crate::quote::quoted;

/// Checks what the library would panic on, then lets it read the file.
pub(super) fn parts(
    bytes: &[u8],
    bos: Option<&str>,
    eos: Option<&str>,
) -> Result<Parts, TokenizerFault> {
    let json = unique_object(bytes).map_err(TokenizerFault::Json)?;
    let model = json.get("model").and_then(Json::as_object);
    let model = model.ok_or(TokenizerFault::Missing { key: "model" })?;
    match model.get("type").and_then(Json::as_str) {
        Some("BPE") => {}
        Some(other) => return Err(unsupported("model.type", quoted(other), "BPE")),
        None => return Err(TokenizerFault::Missing { key: "model.type" }),
    }
    check_merges(model)?;
    let decoding = byte_decoding(json.get("decoder"))?;

    let library = |error: tokenizers::Error| TokenizerFault::Library(error.to_string());
    let mut inner = Inner::from_bytes(bytes).map_err(library)?;
    // Cutting and padding are for training; a server must see all of a prompt.
    inner.with_truncation(None).map_err(library)?;
    inner.with_padding(None);

    let id_of = |key: &'static str, token: Option<&str>| match token {
        None => Ok(None),
        Some(token) => inner
            .token_to_id(token)
            .map(Some)
            .ok_or_else(|| TokenizerFault::Type {
                key: key.to_owned(),
                found: quoted(token),
                expected: "a token of tokenizer.json",
            }),
    };
    let (bos, eos) = (id_of("bos_token", bos)?, id_of("eos_token", eos)?);
    let (prefix, suffix) = special_sides(&inner)?;
    let end_of_generation = eos.into_iter().collect();
    Ok(Parts {
        inner,
        decoding,
        prefix,
        suffix,
        bos,
        eos,
        end_of_generation,
    })
}

fn unsupported(key: &str, found: String, supported: &str) -> TokenizerFault {
    TokenizerFault::Unsupported {
        key: key.to_owned(),
        found,
        supported: supported.to_owned(),
    }
}

/// Each merge must join two tokens into a third; the library indexes a buffer
/// by these lengths and would panic on others.
fn check_merges(model: &Map<String, Json>) -> Result<(), TokenizerFault> {
    let vocabulary = model.get("vocab").and_then(Json::as_object);
    let vocabulary = vocabulary.ok_or(TokenizerFault::Missing { key: "model.vocab" })?;
    let merges = model.get("merges").and_then(Json::as_array);
    let merges = merges.ok_or(TokenizerFault::Missing {
        key: "model.merges",
    })?;
    // Parts after the first may carry a prefix that the joined token drops.
    let prefix = model
        .get("continuing_subword_prefix")
        .and_then(Json::as_str)
        .unwrap_or("");
    for (index, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Json::String(text) => text.split_once(' '),
            Json::Array(pair) => match pair.as_slice() {
                [Json::String(left), Json::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        let joins = pair.is_some_and(|(left, right)| {
            vocabulary.contains_key(left)
                && vocabulary.contains_key(right)
                && right
                    .strip_prefix(prefix)
                    .is_some_and(|right| vocabulary.contains_key(&format!("{left}{right}")))
        });
        if !joins {
            return Err(TokenizerFault::Merge {
                index,
                merge: quoted(&merge.to_string()),
            });
        }
    }
    Ok(())
}

/// Which bytes a token's text stands for, from the `decoder` entry.
fn byte_decoding(decoder: Option<&Json>) -> Result<ByteDecoding, TokenizerFault> {
    let steps: Vec<&Json> = match decoder {
        None | Some(Json::Null) => return Err(TokenizerFault::Missing { key: "decoder" }),
        Some(step) => match step.get("decoders").and_then(Json::as_array) {
            Some(steps) => steps.iter().collect(),
            None => vec![step],
        },
    };
    let kind = |step: &Json| {
        step.get("type")
            .and_then(Json::as_str)
            .unwrap_or("")
            .to_owned()
    };
    let kinds: Vec<String> = steps.iter().map(|step| kind(step)).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    match kinds.as_slice() {
        ["ByteLevel"] => Ok(ByteDecoding::ByteLevel),
        ["Metaspace"] => Ok(ByteDecoding::Metaspace {
            strip_first_space: steps[0].get("prepend_scheme").and_then(Json::as_str)
                != Some("never"),
        }),
        ["Replace", "ByteFallback", "Fuse"] => Ok(ByteDecoding::Metaspace {
            strip_first_space: false,
        }),
        ["Replace", "ByteFallback", "Fuse", "Strip"] => Ok(ByteDecoding::Metaspace {
            strip_first_space: true,
        }),
        other => Err(unsupported(
            "decoder",
            quoted(&other.join(" + ")),
            "ByteLevel, Metaspace, or Replace + ByteFallback + Fuse (+ Strip)",
        )),
    }
}

/// The ids that the post-processor puts before and behind any text.
fn special_sides(inner: &Inner) -> Result<(Vec<u32>, Vec<u32>), TokenizerFault> {
    let ids = |special| {
        inner
            .encode_fast("a", special)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerFault::Library(error.to_string()))
    };
    let (plain, whole) = (ids(false)?, ids(true)?);
    let start = whole
        .windows(plain.len().max(1))
        .position(|window| window == plain);
    match start {
        Some(start) => Ok((
            whole[..start].to_vec(),
            whole[start + plain.len()..].to_vec(),
        )),
        None if whole == plain => Ok((Vec::new(), Vec::new())),
        None => Err(unsupported(
            "post_processor",
            "one that changes the ids of the text".to_owned(),
            "ids before and behind the text",
        )),
    }
}
