//! `butter perplexity`: how well a model predicts a text.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{CommandError, RunArguments, read_file};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::perplexity::perplexity;
use crate::tokenizer::TokenizerError;

#[derive(Args, Debug)]
pub(super) struct PerplexityArguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    text: TextArguments,
    /// Tokens that are predicted in one piece; each piece begins with the last token of the one
    /// before. The context may be less.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(2..))]
    window: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct TextArguments {
    /// A text file, tokenised as a prompt is.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// A file of token ids: numbers between commas, spaces, lines or in a JSON list.
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
}

pub(super) fn run(arguments: &PerplexityArguments) -> Result<(), CommandError> {
    let checkpoint = Checkpoint::open(&arguments.run.model)?;
    let ids = arguments.text.ids(&checkpoint)?;
    let mut model = arguments.run.open(&checkpoint)?;
    let window = (arguments.window as usize).min(super::MOST_CACHED_POSITIONS);
    let found = perplexity(model.as_mut(), &ids, window)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let line = json!({
            "backend": arguments.run.backend.name(),
            "dtype": arguments.run.dtype.name(),
            "window": window,
            "tokens": found.tokens,
            "mean_nll": found.mean_nll,
            "perplexity": found.perplexity,
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(
            out,
            "{} tokens, mean negative log-likelihood {:.6} nats, perplexity {:.4}",
            found.tokens, found.mean_nll, found.perplexity
        )?;
    }
    out.flush()?;
    Ok(())
}

impl TextArguments {
    fn ids(&self, checkpoint: &Checkpoint) -> Result<Vec<u32>, CommandError> {
        let (path, is_text) = match (&self.text, &self.ids) {
            (Some(path), _) => (path, true),
            (None, Some(path)) => (path, false),
            (None, None) => return Ok(Vec::new()),
        };
        let wrong = |problem: String| CommandError::File {
            path: path.clone(),
            problem,
        };
        let text = String::from_utf8(read_file(path)?)
            .map_err(|error| wrong(format!("is no UTF-8 text: {error}")))?;
        if is_text {
            let Some(tokenizer) = &checkpoint.tokenizer else {
                return Err(CommandError::Option {
                    option: "--text",
                    problem: "the checkpoint has no tokenizer; give --ids".to_owned(),
                });
            };
            return tokenizer.encode_prompt(&text).map_err(|fault| {
                LoadError::Tokenizer(TokenizerError {
                    path: checkpoint.path.clone(),
                    fault,
                })
                .into()
            });
        }
        let separator = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']');
        text.split(separator)
            .filter(|part| !part.is_empty())
            .map(|part| {
                part.parse::<u32>().map_err(|_| {
                    let shown: String = part.chars().take(20).collect();
                    wrong(format!("`{}` is not a token id", shown.escape_debug()))
                })
            })
            .collect()
    }
}
