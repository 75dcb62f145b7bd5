//! A model that is served: its scheduler, and what turns texts into tokens and back.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::error::ApiError;
use super::grammar::{GrammarSpec, Grammars, Mask};
use super::tool_call::ToolFormat;
use crate::chat::ChatTemplate;
use crate::scheduler::{PrefixReuse, SchedulerThread};
use crate::tokenizer::Tokenizer;

/// A model with all that a request needs.
pub struct Engine {
    /// Its name in requests and answers.
    pub name: String,
    /// What runs requests.
    pub scheduler: SchedulerThread,
    /// Text to ids and back, where the checkpoint has a tokenizer.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Messages to text, where the checkpoint has a template.
    pub template: Option<ChatTemplate>,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Tokens that end an answer.
    pub end_of_generation: Vec<u32>,
    /// Where the weights come from, if not from a checkpoint: then the answers mean nothing.
    pub made_of: Option<String>,
    /// Whether the template knows reasoning.
    pub reasoning: bool,
    grammars: Option<Grammars>,
    created: u64,
}

/// What an engine is made of.
pub struct EngineParts {
    /// Its name in requests and answers.
    pub name: String,
    /// What runs requests.
    pub scheduler: SchedulerThread,
    /// Text to ids and back.
    pub tokenizer: Option<Tokenizer>,
    /// Messages to text.
    pub template: Option<ChatTemplate>,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Tokens that end an answer.
    pub end_of_generation: Vec<u32>,
    /// Where the weights come from, if not from a checkpoint.
    pub made_of: Option<String>,
}

impl Engine {
    /// An engine.
    pub fn new(parts: EngineParts) -> Engine {
        let tokenizer = parts.tokenizer.map(Arc::new);
        let source = parts
            .template
            .as_ref()
            .map_or("", |template| template.source());
        let ends = &parts.end_of_generation;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Engine {
            reasoning: source.contains("</think>"),
            grammars: tokenizer
                .clone()
                .map(|tokenizer| Grammars::new(tokenizer, parts.vocab_size, ends.clone())),
            created: since.map_or(0, |since| since.as_secs()),
            name: parts.name,
            scheduler: parts.scheduler,
            tokenizer,
            template: parts.template,
            vocab_size: parts.vocab_size,
            made_of: parts.made_of,
            end_of_generation: parts.end_of_generation,
        }
    }

    /// Encodes a prompt that the caller wrote, control tokens and all, of at most `most` bytes.
    pub fn encode_prompt(&self, text: &str, path: &str, most: usize) -> Result<Vec<u32>, ApiError> {
        let Some(tokenizer) = &self.tokenizer else {
            let reason = "the checkpoint has no tokenizer that Butter reads; send token ids";
            return Err(ApiError::unsupported(path, reason));
        };
        check_length(text, path, most)?;
        let ids = tokenizer
            .encode_prompt(text)
            .map_err(|error| ApiError::field(path, error.to_string()))?;
        Ok(self.one_bos(ids))
    }

    /// A sequence starts once, whoever wrote its start.
    pub fn one_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let bos = self
            .tokenizer
            .as_ref()
            .and_then(|tokenizer| tokenizer.bos());
        while let (Some(bos), [first, second, ..]) = (bos, ids.as_slice()) {
            if *first != bos || *second != bos {
                break;
            }
            ids.remove(0);
        }
        ids
    }

    /// Compiles a grammar.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Mask, String> {
        let grammars = self.grammars.as_ref().ok_or("there is no tokenizer")?;
        grammars.compile(spec)
    }

    /// Whether a prompt's beginning can come from an earlier request, and where.
    pub fn prefix_reuse(&self) -> (&'static str, &'static str) {
        let recurrent = self.scheduler.capacity().recurrent;
        match (self.scheduler.options().reuse, recurrent) {
            (PrefixReuse::Off, _) => ("off", "every prompt is computed"),
            (PrefixReuse::Exact, false) => (
                "exact",
                "up to a multiple of the prefill chunk; answers have the bits of a cold start",
            ),
            (PrefixReuse::Any, false) => (
                "any",
                "up to any token; rounding may differ from a cold start",
            ),
            (PrefixReuse::Exact, true) => (
                "exact",
                "up to a multiple of the prefill chunk whose recurrent state is kept; answers have the bits of a cold start",
            ),
            (PrefixReuse::Any, true) => (
                "any",
                "up to the end of an earlier step or answer whose recurrent state is kept; rounding may differ from a cold start",
            ),
        }
    }

    /// The entry of `/v1/models`.
    pub fn description(&self, default_max_tokens: usize) -> Json {
        let options = self.scheduler.options();
        let (reuse, why) = self.prefix_reuse();
        let source = self
            .template
            .as_ref()
            .map_or("", |template| template.source());
        let mut description = json!({
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "local",
            "max_model_len": options.max_positions,
            "default_max_tokens": default_max_tokens,
            "max_running": options.max_running,
            "cache_positions": self.scheduler.capacity().positions,
            "vocab_size": self.vocab_size,
            "chat": self.template.is_some() && self.tokenizer.is_some(),
            "tools": ToolFormat::of_template(source).is_ok(),
            "reasoning": self.reasoning,
            "prefix_reuse": {"kind": reuse, "scope": why},
        });
        if let Some(made_of) = &self.made_of {
            description["weights"] = made_of.as_str().into();
        }
        description
    }
}

/// Refuses a text that is too long before anybody encodes it.
pub fn check_length(text: &str, path: &str, most: usize) -> Result<(), ApiError> {
    if text.len() <= most {
        return Ok(());
    }
    let problem = format!("has {} bytes of text, at most {most} may be", text.len());
    Err(ApiError::field(path, problem).code("context_length_exceeded"))
}
