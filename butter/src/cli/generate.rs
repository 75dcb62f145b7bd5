//! `butter generate`: one prompt, one answer.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::{CommandError, ModelArguments, check_answer, read_file, stream_to};
use crate::chat::parse_messages;
use crate::checkpoint::Checkpoint;
use crate::generate::{Generator, Request};
use crate::tokenizer::{Tokenizer, TokenizerError};

#[derive(Args, Debug)]
pub(super) struct GenerateArguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    prompt: PromptArguments,
    /// Print one JSON object as the last line of standard output, with
    /// `prompt_ids`, `token_ids`, `text`, `finish_reason` and `stats`.
    #[arg(long)]
    json: bool,
    /// Text that ends the answer; may be given several times.
    #[arg(long = "stop", value_name = "TEXT")]
    stop_strings: Vec<String>,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct PromptArguments {
    /// A raw prompt, without a chat template.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A JSON file with messages, rendered by the checkpoint's chat template.
    #[arg(long, value_name = "FILE.json")]
    chat: Option<PathBuf>,
    /// Token ids, as they are.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    prompt_ids: Option<Vec<u32>>,
}

pub(super) fn run(arguments: &GenerateArguments) -> Result<(), CommandError> {
    let checkpoint = Checkpoint::open(&arguments.model.run.model)?;
    let sampler = arguments.model.sampler(&checkpoint)?;
    let request = Request {
        prompt_ids: arguments.prompt.ids(&checkpoint)?,
        max_tokens: arguments.model.max_tokens,
        sampler,
        stop_tokens: arguments.model.stop_tokens(&checkpoint),
        stop_strings: arguments.stop_strings.clone(),
    };
    if !request.stop_strings.is_empty() && checkpoint.tokenizer.is_none() {
        return Err(CommandError::Option {
            option: "--stop",
            problem: "the checkpoint has no tokenizer, so that answers have no text".to_owned(),
        });
    }
    let mut model = arguments.model.run.open(&checkpoint)?;

    let mut out = std::io::stdout().lock();
    let mut failed = None;
    let answer = Generator::new(model.as_mut()).run(
        &request,
        checkpoint.tokenizer.as_ref(),
        &mut |text| {
            if !arguments.json {
                stream_to(&mut out, &mut failed, text);
            }
        },
    )?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if arguments.json {
        let line = serde_json::to_string(&answer).map_err(std::io::Error::other)?;
        writeln!(out, "{line}")?;
    } else if checkpoint.tokenizer.is_none() {
        let ids: Vec<String> = answer.token_ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(","))?;
    } else {
        writeln!(out)?;
    }
    out.flush()?;
    arguments.model.report(&answer.stats);
    check_answer(&answer)
}

impl PromptArguments {
    /// The prompt's ids, whichever way it was given.
    fn ids(&self, checkpoint: &Checkpoint) -> Result<Vec<u32>, CommandError> {
        if let Some(ids) = &self.prompt_ids {
            return Ok(ids.clone());
        }
        let tokenizer = |option| {
            checkpoint
                .tokenizer
                .as_ref()
                .ok_or_else(|| CommandError::Option {
                    option,
                    problem: format!(
                        "{}; give --prompt-ids",
                        checkpoint.no_tokenizer.as_deref().unwrap_or_default()
                    ),
                })
        };
        let wrong = |fault| {
            CommandError::Load(
                TokenizerError {
                    path: checkpoint.path.clone(),
                    fault,
                }
                .into(),
            )
        };
        if let Some(path) = &self.chat {
            let tokenizer = tokenizer("--chat")?;
            let file = |problem: String| CommandError::File {
                path: path.clone(),
                problem,
            };
            let messages =
                parse_messages(&read_file(path)?).map_err(|error| file(error.to_string()))?;
            let rendered = checkpoint
                .compile_chat_template()?
                .render(&messages, true, &tokenizer.control_texts())
                .map_err(|error| file(error.to_string()))?;
            return tokenizer.encode_chat(&rendered).map_err(wrong);
        }
        let text = self.prompt.as_deref().unwrap_or_default();
        let tokenizer: &Tokenizer = tokenizer("--prompt")?;
        tokenizer.encode_prompt(text).map_err(wrong)
    }
}
