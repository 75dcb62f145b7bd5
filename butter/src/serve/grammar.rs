//! Grammars that an answer must follow: which tokens may come next, by llguidance.
//!
//! Everything fails closed: what cannot be compiled, or allows no first token, is refused before
//! the request runs, and a row whose mask allows nothing ends its request with an error (E33).

use std::sync::{Arc, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value as Json, json};

use crate::tokenizer::Tokenizer;

/// What an answer must look like.
#[derive(Clone, PartialEq, Debug)]
pub enum GrammarSpec {
    /// A value of a JSON schema.
    JsonSchema(Json),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// A text of a grammar in llguidance's variant of Lark.
    Lark(String),
}

impl GrammarSpec {
    /// Any JSON object.
    pub fn json_object() -> GrammarSpec {
        GrammarSpec::JsonSchema(json!({"type": "object"}))
    }

    fn grammar(&self) -> TopLevelGrammar {
        match self {
            GrammarSpec::JsonSchema(schema) => {
                let mut schema = schema.clone();
                if let Json::Object(map) = &mut schema
                    && !map.contains_key("x-guidance")
                {
                    // Where any white space is allowed, small models write nothing else.
                    let compact = json!({"whitespace_flexible": false});
                    map.insert("x-guidance".to_owned(), compact);
                }
                TopLevelGrammar::from_json_schema(schema)
            }
            GrammarSpec::Regex(regex) => TopLevelGrammar::from_regex(regex),
            GrammarSpec::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        }
    }
}

/// Compiles grammars for one vocabulary, whose tables are made when the first is asked for.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    ends: Vec<u32>,
    factory: OnceLock<Result<ParserFactory, String>>,
}

impl Grammars {
    /// Grammars over a tokenizer's vocabulary; `ends` are the tokens that end an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize, ends: Vec<u32>) -> Grammars {
        Grammars {
            tokenizer,
            vocab_size,
            ends,
            factory: OnceLock::new(),
        }
    }

    /// Compiles a grammar. Takes milliseconds to seconds of a core.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Mask, String> {
        let factory = self.factory.get_or_init(|| self.factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let one_line = |error: &dyn std::fmt::Display| {
            let text = error.to_string();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let parser = factory
            .create_parser(spec.grammar())
            .map_err(|error| one_line(&error))?;
        let mut matcher = Matcher::new(Ok(parser));
        // A grammar that leads nowhere compiles: its first mask, which changes nothing, shows it.
        let first = matcher.compute_mask_or_eos();
        let nothing = || "it allows no first token: nothing matches it".to_owned();
        let first = first.map_err(|error| match one_line(&error) {
            // The parser's name for it.
            text if text.contains("NoExtensionBias") => nothing(),
            text => text,
        })?;
        if first.is_zero() {
            return Err(nothing());
        }
        Ok(Mask { matcher })
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let Some(&end) = self.ends.first() else {
            return Err("the model has no token that ends an answer".to_owned());
        };
        // Control tokens other than the ends are in no answer, so they have no bytes here.
        let words: Vec<Vec<u8>> = (0..self.vocab_size as u32)
            .map(|id| self.tokenizer.token_bytes(id))
            .collect();
        let info = TokRxInfo::new(self.vocab_size as u32, end);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&self.ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let capabilities = InferenceCapabilities::default();
        let mut factory = ParserFactory::new(&environment, capabilities, &[])
            .map_err(|error| error.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(factory)
    }
}

/// A compiled grammar and how far an answer has come in it.
pub struct Mask {
    matcher: Matcher,
}

impl Mask {
    /// Makes every token that may not come next impossible.
    pub fn apply(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let allowed = self
            .matcher
            .compute_mask_or_eos()
            .map_err(|error| error.to_string())?;
        if allowed.is_zero() {
            return Err("it allows no next token".to_owned());
        }
        for (token, logit) in logits.iter_mut().enumerate() {
            if token >= allowed.len() || !allowed.get(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Takes the token that was chosen; whether the answer is complete with it.
    pub fn take(&mut self, token: u32) -> Result<bool, String> {
        self.matcher
            .consume_token(token)
            .map_err(|error| error.to_string())?;
        Ok(self.matcher.is_stopped())
    }
}
