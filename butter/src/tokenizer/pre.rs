//! How text is cut into words before byte-pair merging, by the name that a GGUF
//! file gives (`tokenizer.ggml.pre`).

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::TokenizerFault;
use crate::quote::quoted;

/// What a `tokenizer.ggml.pre` name stands for.
pub(super) struct PreTokenizer {
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: PreTokenizerWrapper,
    /// Whether a whole word that is a token is taken without merging.
    pub(super) ignore_merges: bool,
    /// Whether a sequence starts with the start token where the file does not say.
    pub(super) adds_bos: bool,
}

const SUPPORTED: &str = "default, gpt-2, phi-2, olmo, smollm, starcoder, refact, command-r, \
                         codeshell, llama-bpe, llama3, llama-v3, qwen2, deepseek-r1-qwen";

/// Words of Llama 3: a letter run with one leading character, up to three
/// digits, punctuation with trailing line breaks, white space.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words of Qwen 2: as Llama 3, with single digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Resolves a name; one that is not known is an error, because any guess would
/// give wrong tokens in silence.
pub(super) fn by_name(name: &str) -> Result<PreTokenizer, TokenizerFault> {
    // The recipes are those of the published `tokenizer.json` files, which the
    // converter recognised by their output when it wrote the name.
    let gpt2_words = || PreTokenizerWrapper::from(ByteLevel::new(false, true, true));
    let bytes_only = || PreTokenizerWrapper::from(ByteLevel::new(false, true, false));
    let plain = |steps: Vec<PreTokenizerWrapper>| PreTokenizer {
        normalizer: None,
        pre_tokenizer: Sequence::new(steps).into(),
        ignore_merges: false,
        adds_bos: false,
    };
    Ok(match name {
        "gpt-2" | "phi-2" | "olmo" => plain(vec![gpt2_words()]),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
            plain(vec![Digits::new(true).into(), gpt2_words()])
        }
        "llama-bpe" | "llama3" | "llama-v3" => PreTokenizer {
            ignore_merges: true,
            // Files of the first weeks lack the key; llama.cpp supplies it as well.
            adds_bos: true,
            ..plain(vec![split(LLAMA3)?, bytes_only()])
        },
        "qwen2" | "deepseek-r1-qwen" => PreTokenizer {
            normalizer: Some(NFC.into()),
            ..plain(vec![split(QWEN2)?, bytes_only()])
        },
        // llama.cpp's own `default`: punctuation apart, GPT-2 words, digits in
        // groups of three from the left.
        "default" => plain(vec![
            split(r"[\p{P}\$\+<=>\^~\|]+")?,
            split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)")?,
            split(r"\p{N}+")?,
            split(r"[0-9][0-9][0-9]")?,
            bytes_only(),
        ]),
        other => {
            return Err(TokenizerFault::Unsupported {
                key: "tokenizer.ggml.pre".to_owned(),
                found: quoted(other),
                supported: SUPPORTED.to_owned(),
            });
        }
    })
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper, TokenizerFault> {
    Split::new(
        SplitPattern::Regex(pattern.to_owned()),
        SplitDelimiterBehavior::Isolated,
        false,
    )
    .map(Into::into)
    .map_err(|error| TokenizerFault::Library(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    #[test]
    fn each_name_cuts_words_as_its_regular_expressions_say() {
        let text = "It's 12345  ok!\n\n go";
        for (name, words) in [
            ("gpt-2", "It 's Ġ12345 Ġ Ġok ! ĊĊ Ġgo"),
            ("smollm", "It 's Ġ 1 2 3 4 5 Ġ Ġok ! ĊĊ Ġgo"),
            ("llama-bpe", "It 's Ġ 123 45 Ġ Ġok !ĊĊ Ġgo"),
            ("qwen2", "It 's Ġ 1 2 3 4 5 Ġ Ġok !ĊĊ Ġgo"),
            ("default", "It ' s Ġ 123 45 Ġ Ġok ! ĊĊ Ġgo"),
        ] {
            let pre = by_name(name).expect("a known name");
            let mut cut = PreTokenizedString::from(text);
            pre.pre_tokenizer.pre_tokenize(&mut cut).expect("cuts");
            let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let found: Vec<&str> = splits.iter().map(|(word, _, _)| *word).collect();
            assert_eq!(found.join(" "), words, "{name}");
        }
        assert!(by_name("").is_err() && by_name("gpt2").is_err());
    }
}
