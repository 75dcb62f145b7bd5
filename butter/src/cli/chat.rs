//! `butter chat`: a talk, one line a turn.

use std::io::{BufRead, IsTerminal, Write};

use clap::Args;
use serde_json::{Map, Value as Json};

use super::{CommandError, ModelArguments, check_answer, stream_to};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::generate::{Generator, Request};
use crate::tokenizer::TokenizerError;

/// Positions that a talk reserves at once, if the context has them.
const TALK_POSITIONS: usize = 8192;

#[derive(Args, Debug)]
pub(super) struct ChatArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// How the model should behave.
    #[arg(long)]
    system: Option<String>,
}

pub(super) fn run(arguments: &ChatArguments) -> Result<(), CommandError> {
    let checkpoint = Checkpoint::open(&arguments.model.run.model)?;
    let sampler = arguments.model.sampler(&checkpoint)?;
    let template = checkpoint.compile_chat_template()?;
    let Some(tokenizer) = &checkpoint.tokenizer else {
        let problem = "the checkpoint has no tokenizer".to_owned();
        return Err(LoadError::Files {
            path: checkpoint.path.clone(),
            problem,
        }
        .into());
    };
    let mut model = arguments.model.run.open(&checkpoint)?;
    let mut generator = Generator::new(model.as_mut()).reserving(TALK_POSITIONS);

    let mut messages: Vec<Map<String, Json>> = Vec::new();
    if let Some(system) = &arguments.system {
        messages.push(message("system", system));
    }
    let interactive = std::io::stdin().is_terminal();
    let mut lines = std::io::stdin().lock().lines();
    let mut out = std::io::stdout().lock();
    loop {
        if interactive {
            write!(out, "> ")?;
            out.flush()?;
        }
        let Some(line) = lines.next() else {
            if interactive {
                writeln!(out)?; // the shell's prompt begins a line of its own
            }
            return Ok(());
        };
        let line = line.map_err(|error| CommandError::Option {
            option: "standard input",
            problem: error.to_string(),
        })?;
        if line.trim().is_empty() {
            continue;
        }
        messages.push(message("user", &line));
        let rendered = template
            .render(&messages, true, &tokenizer.control_texts())
            .map_err(|fault| LoadError::Template {
                path: checkpoint.path.clone(),
                fault,
            })?;
        let prompt_ids = tokenizer.encode_chat(&rendered).map_err(|fault| {
            LoadError::Tokenizer(TokenizerError {
                path: checkpoint.path.clone(),
                fault,
            })
        })?;
        let request = Request {
            prompt_ids,
            max_tokens: arguments.model.max_tokens,
            sampler: sampler.clone(),
            stop_tokens: arguments.model.stop_tokens(&checkpoint),
            stop_strings: Vec::new(),
        };
        let mut failed = None;
        let answer = generator.run(&request, Some(tokenizer), &mut |text| {
            stream_to(&mut out, &mut failed, text);
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        writeln!(out)?;
        out.flush()?;
        arguments.model.report(&answer.stats);
        check_answer(&answer)?;
        messages.push(message("assistant", &answer.text));
    }
}

fn message(role: &str, content: &str) -> Map<String, Json> {
    Map::from_iter([
        ("role".to_owned(), Json::from(role)),
        ("content".to_owned(), Json::from(content)),
    ])
}
