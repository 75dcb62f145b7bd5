//! `butter logits`: the logits that follow a prompt, for comparison with another implementation.

use std::io::Write;

use clap::Args;
use serde_json::json;

use super::limits::{LINES, count};
use super::{CommandError, RunArguments};
use crate::checkpoint::Checkpoint;
use crate::generate::{GenerateError, prompt_logits};

#[derive(Args, Debug)]
pub(super) struct LogitsArguments {
    #[command(flatten)]
    run: RunArguments,
    /// Token ids of the prompt, as they are.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', required = true)]
    prompt_ids: Vec<u32>,
    /// How many of the largest to list, without `--json`.
    #[arg(long, default_value_t = 20, value_parser = count::<1, LINES>)]
    top: usize,
    /// Print one JSON object with all logits of the last position.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &LogitsArguments) -> Result<(), CommandError> {
    let checkpoint = Checkpoint::open(&arguments.run.model)?;
    let mut model = arguments.run.open(&checkpoint)?;
    let logits =
        prompt_logits(model.as_mut(), &arguments.prompt_ids).map_err(|error| match error {
            GenerateError::EmptyPrompt => CommandError::Option {
                option: "--prompt-ids",
                problem: "there are none".to_owned(),
            },
            other => other.into(),
        })?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let line = json!({
            "prompt_ids": arguments.prompt_ids,
            "backend": arguments.run.backend.name(),
            "dtype": arguments.run.dtype.name(),
            "logits": logits,
        });
        writeln!(out, "{line}")?;
    } else {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        for token in order.into_iter().take(arguments.top) {
            writeln!(out, "{token:>8} {:>12.6}", logits[token])?;
        }
    }
    out.flush()?;
    Ok(())
}
