//! `butter perplexity`: how well a model predicts a text, and how far from another's its
//! predictions are.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value as Json, json};

use super::limits::{POSITIONS, count, model_path};
use super::{
    ActivationType, Activations, Backend, CacheDtype, CommandError, RunArguments, load, read_file,
    report_file::ReportFile, route_of,
};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::engine::{DeviceModel, Route};
use crate::generate::GenerateError;
use crate::model::Model;
use crate::perplexity::{Comparison, compare, perplexity};
use crate::tokenizer::TokenizerError;

#[derive(Args, Debug)]
pub(super) struct PerplexityArguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    text: TextArguments,
    /// Tokens of a piece, of which all but the first are predicted; each piece begins with the last
    /// token of the one before. The context may be less.
    #[arg(long, default_value_t = 2048, value_parser = count::<2, POSITIONS>)]
    window: usize,
    /// Which kernels steps are made of: `rows`, `unfused`, `fused` or `batched`; the device's own
    /// otherwise.
    #[arg(long)]
    route: Option<String>,
    #[command(flatten)]
    comparison: ComparisonArguments,
    /// Write each compared prediction to this file, with commas: divergence, likeliest tokens,
    /// log-probabilities.
    #[arg(long, value_name = "FILE", requires = "reference")]
    predictions: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What to compare the model's predictions with, token by token: another model of the same
/// vocabulary, or the same one run in another way.
#[derive(Args, Debug)]
#[group(id = "reference", multiple = true)]
struct ComparisonArguments {
    /// The reference; the model itself if only another option below is given.
    #[arg(id = "compare", long = "compare", value_name = "MODEL", value_parser = model_path())]
    model: Option<PathBuf>,
    /// What runs the reference's kernels.
    #[arg(id = "compare_backend", long = "compare-backend", value_enum)]
    backend: Option<Backend>,
    /// Type of the reference's activations and cache.
    #[arg(id = "compare_dtype", long = "compare-dtype", value_enum)]
    dtype: Option<ActivationType>,
    /// What the reference's products with packed weights read.
    #[arg(id = "compare_activations", long = "compare-activations", value_enum)]
    activations: Option<Activations>,
    /// Type of the reference's key-value cache.
    #[arg(
        id = "compare_kv_cache_dtype",
        long = "compare-kv-cache-dtype",
        value_enum
    )]
    kv_cache_dtype: Option<CacheDtype>,
    /// Which kernels the reference's steps are made of.
    #[arg(id = "compare_route", long = "compare-route")]
    route: Option<String>,
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
    let route = route_of("--route", arguments.route.as_deref())?;
    let predictions = ReportFile::open(arguments.predictions.as_deref())?;
    let checkpoint = Checkpoint::open(&arguments.run.model)?;
    let ids = arguments.text.ids(&checkpoint)?;
    let other = arguments.comparison.reference(&arguments.run);
    let other = other.map(|run| Ok::<_, CommandError>((Checkpoint::open(&run.model)?, run)));
    let other = other.transpose()?;
    if let Some((other, _)) = &other {
        // Before the work of loading both.
        let [model, reference] = [&checkpoint, other].map(|one| one.config.vocab_size);
        if model != reference {
            return Err(GenerateError::ComparedVocabulary { model, reference }.into());
        }
    }
    let mut model = load_on_route(&arguments.run, &checkpoint, route)?;
    let context = model.context_length().min(super::MOST_CACHED_POSITIONS);
    let window = arguments.window.min(context);
    let named = |error| arguments.text.named(error);
    let mut out = std::io::stdout().lock();
    let Some((other, run)) = other else {
        let found = perplexity(&mut model, &ids, window).map_err(named)?;
        if arguments.json {
            let mut line = described(&arguments.run, &model);
            line["window"] = window.into();
            line["tokens"] = found.tokens.into();
            line["mean_nll"] = found.mean_nll.into();
            line["perplexity"] = found.perplexity.into();
            writeln!(out, "{line}")?;
        } else {
            writeln!(
                out,
                "{} tokens, mean negative log-likelihood {:.6} nats, perplexity {:.4}",
                found.tokens, found.mean_nll, found.perplexity
            )?;
        }
        return Ok(out.flush()?);
    };
    let route = route_of("--compare-route", arguments.comparison.route.as_deref())?;
    let mut reference = load_on_route(&run, &other, route)?;
    let found = compare(&mut model, &mut reference, &ids, window).map_err(named)?;
    if let Some(file) = predictions {
        file.write(&table(&found))?;
    }
    if arguments.json {
        let mut line = serde_json::to_value(&found).map_err(std::io::Error::other)?;
        line["window"] = window.into();
        line["model"]["run"] = described(&arguments.run, &model);
        line["reference"]["run"] = described(&run, &reference);
        writeln!(out, "{line}")?;
    } else {
        for (name, scored) in [("model", &found.model), ("reference", &found.reference)] {
            writeln!(
                out,
                "{name:<9} {} tokens, mean negative log-likelihood {:.6} nats, perplexity {:.4}",
                scored.tokens, scored.mean_nll, scored.perplexity
            )?;
        }
        writeln!(
            out,
            "divergence of the model from the reference, in nats: mean {:.6}, median {:.6}, 99% at most {:.6}, largest {:.6} at token {}\n\
             the same token is likeliest in {:.2}% of the predictions",
            found.mean_kl,
            found.median_kl,
            found.p99_kl,
            found.largest_kl,
            found.largest_at,
            100.0 * found.same_top
        )?;
    }
    Ok(out.flush()?)
}

fn load_on_route(
    run: &RunArguments,
    checkpoint: &Checkpoint,
    route: Option<Route>,
) -> Result<DeviceModel, CommandError> {
    let mut model = load(checkpoint, run)?;
    if let Some(route) = route {
        model.set_route(route)?;
    }
    Ok(model)
}

/// How a model runs, for people who compare.
fn described(run: &RunArguments, model: &DeviceModel) -> Json {
    json!({
        "backend": run.backend.name(),
        "dtype": run.dtype.name(),
        "kv_cache_dtype": run.kv_cache_dtype.kind().name(),
        "route": model.route().name(),
    })
}

/// One line a prediction, with commas.
fn table(found: &Comparison) -> String {
    let mut text = "place,token,kl,top,reference_top,logprob,reference_logprob\n".to_owned();
    for p in &found.predictions {
        let _ = writeln!(
            text,
            "{},{},{:e},{},{},{:.9},{:.9}",
            p.place, p.token, p.kl, p.top, p.reference_top, p.logprob, p.reference_logprob
        );
    }
    text
}

impl ComparisonArguments {
    /// The model to compare with: as the other, but for what is said.
    fn reference(&self, run: &RunArguments) -> Option<RunArguments> {
        let asked = self.model.is_some()
            || self.dtype.is_some()
            || self.backend.is_some()
            || self.activations.is_some()
            || self.kv_cache_dtype.is_some()
            || self.route.is_some();
        asked.then(|| RunArguments {
            model: self.model.clone().unwrap_or_else(|| run.model.clone()),
            backend: self.backend.unwrap_or(run.backend),
            dtype: self.dtype.unwrap_or(run.dtype),
            activations: self.activations.unwrap_or(run.activations),
            kv_cache_dtype: self.kv_cache_dtype.unwrap_or(run.kv_cache_dtype),
        })
    }
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
        token_ids(&text).map_err(wrong)
    }

    /// The error, with the file where it is the text's fault.
    fn named(&self, error: GenerateError) -> CommandError {
        let path = self.text.as_ref().or(self.ids.as_ref());
        match (&error, path) {
            (GenerateError::NothingToScore { .. } | GenerateError::Token { .. }, Some(path)) => {
                CommandError::File {
                    path: path.clone(),
                    problem: error.to_string(),
                }
            }
            _ => error.into(),
        }
    }
}

/// A JSON list of ids, or ids between commas, spaces and lines.
fn token_ids(text: &str) -> Result<Vec<u32>, String> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text)
            .map_err(|error| format!("is no JSON list of token ids: {error}"));
    }
    let mut ids = Vec::new();
    for (place, part) in text.split(',').enumerate() {
        let before = ids.len();
        for word in part.split_whitespace() {
            ids.push(word.parse::<u32>().map_err(|_| {
                let shown: String = word.chars().take(20).collect();
                format!("`{}` is not a token id", shown.escape_debug())
            })?);
        }
        if ids.len() == before && text.contains(',') {
            return Err(format!(
                "there is no token id before or after comma {}",
                place.max(1)
            ));
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_a_json_list_or_words_between_commas_and_spaces() {
        for text in ["[1, 2,3]", "1,2 ,3", "1 2\n3\n", " 1, 2\n3"] {
            assert_eq!(token_ids(text), Ok(vec![1, 2, 3]), "{text}");
        }
        assert_eq!(token_ids(" \n"), Ok(vec![]));
        for wrong in [
            "[[1,[2]],,3",
            "[1,2",
            "1,,2",
            ",1",
            "1,",
            "1 2]",
            "-1",
            "4294967296",
            "[1, 4294967296]",
        ] {
            assert!(token_ids(wrong).is_err(), "{wrong}");
        }
    }
}
