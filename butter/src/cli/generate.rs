//! `butter generate`: one prompt, one answer.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::limits::{LEAST_VERIFY_ROWS, MOST_VERIFY_ROWS, count, model_path, some_text};
use super::{CommandError, ModelArguments, check_answer, open_with_head, read_file, stream_to};
use crate::chat::parse_messages;
use crate::checkpoint::Checkpoint;
use crate::generate::{Generator, Request};
use crate::speculate::{DraftModel, NGram, OwnHead, Proposer, answer};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Rows of a verification where the command line does not say.
const VERIFIED_ROWS: usize = 5;

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
    #[arg(long = "stop", value_name = "TEXT", value_parser = some_text)]
    stop_strings: Vec<String>,
    #[command(flatten)]
    speculation: SpeculationArguments,
}

/// Who proposes tokens that the model then verifies in one step. The answer keeps its
/// distribution; a greedy one keeps its tokens.
#[derive(Args, Debug)]
struct SpeculationArguments {
    /// A smaller model with the same vocabulary proposes.
    #[arg(long, value_name = "MODEL", group = "proposer", value_parser = model_path())]
    draft: Option<PathBuf>,
    /// The text so far proposes what followed its last tokens before.
    #[arg(long, group = "proposer")]
    ngram: bool,
    /// The checkpoint's own multi-token head proposes (Qwen3-Next, Qwen3.5, DeepSeek-V3).
    #[arg(long, group = "proposer")]
    mtp: bool,
    /// Rows of a verification, 2 to 10: the proposals and one; 5 where it is not given.
    #[arg(
        long,
        requires = "proposer",
        value_parser = count::<LEAST_VERIFY_ROWS, MOST_VERIFY_ROWS>
    )]
    verify_rows: Option<usize>,
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
    let mut model = match arguments.speculation.mtp {
        true => open_with_head(&checkpoint, &arguments.model.run)?,
        false => arguments.model.run.open(&checkpoint)?,
    };

    let mut out = std::io::stdout().lock();
    let mut failed = None;
    let tokenizer = checkpoint.tokenizer.as_ref();
    let on_text = &mut |text: &str| {
        if !arguments.json {
            stream_to(&mut out, &mut failed, text);
        }
    };
    let speculation = &arguments.speculation;
    let rows = speculation.verify_rows.unwrap_or(VERIFIED_ROWS);
    let mut speculated = |proposer: &mut dyn Proposer| {
        let model = model.as_mut();
        answer(model, proposer, &request, rows, tokenizer, on_text)
    };
    let (answer, found) = if let Some(path) = &speculation.draft {
        let mut draft = arguments.model.run.open(&Checkpoint::open(path)?)?;
        let (answer, found) = speculated(&mut DraftModel::new(draft.as_mut()))?;
        (answer, Some(found))
    } else if speculation.ngram {
        let (answer, found) = speculated(&mut NGram::default())?;
        (answer, Some(found))
    } else if speculation.mtp {
        let (answer, found) = speculated(&mut OwnHead::default())?;
        (answer, Some(found))
    } else {
        let answer = Generator::new(model.as_mut()).run(&request, tokenizer, on_text)?;
        (answer, None)
    };
    if let Some(error) = failed {
        return Err(error.into());
    }
    if arguments.json {
        let mut line = serde_json::to_value(&answer).map_err(std::io::Error::other)?;
        if let Some(found) = &found {
            let (proposed, accepted) = found.counts();
            line["speculation"] = json!({
                "verify_rows": rows,
                "verifications": found.verifications.len(),
                "proposed": proposed,
                "accepted": accepted,
            });
        }
        writeln!(out, "{line}")?;
    } else if checkpoint.tokenizer.is_none() {
        let ids: Vec<String> = answer.token_ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(","))?;
    } else {
        writeln!(out)?;
    }
    out.flush()?;
    arguments.model.report(&answer.stats);
    if let Some(found) = found.filter(|_| arguments.model.stats) {
        let (proposed, accepted) = found.counts();
        let verifications = found.verifications.len();
        let share = 100.0 * accepted as f64 / proposed.max(1) as f64;
        let rate = found.token_ids.len() as f64 / verifications.max(1) as f64;
        let _ = writeln!(
            std::io::stderr(),
            "speculation: {accepted} of {proposed} proposals accepted ({share:.1}%), \
             {verifications} verifications, {rate:.2} tokens each"
        );
    }
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
