//! `butter inspect`: what a checkpoint holds, and whether it would load.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::limits::model_path;
use super::{ActivationType, Backend, CommandError, engine_options};
use crate::catalogue::TensorCatalogue;
use crate::checkpoint::{Checkpoint, CheckpointKind, safetensors_files};
use crate::config::ignored_keys;
use crate::engine::{CacheType, EngineOptions, MemoryPlan};
use crate::gguf::{GgufFile, Value};
use crate::safetensors::read_into;

#[derive(Args, Debug)]
pub(super) struct InspectArguments {
    /// A GGUF file, a folder with one, a Hugging Face folder, or a model that `butter pull` has
    /// fetched.
    #[arg(value_parser = model_path())]
    path: PathBuf,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// Lists what is there even if the model cannot be run, and ends with an error
/// if it cannot be loaded.
pub(super) fn run(arguments: &InspectArguments) -> Result<(), CommandError> {
    let (gguf, catalogue) = match CheckpointKind::detect(&arguments.path)? {
        CheckpointKind::Gguf(path) => {
            let file = GgufFile::open(&path).map_err(crate::checkpoint::LoadError::from)?;
            let catalogue = TensorCatalogue::from_gguf(&file);
            (Some(file), catalogue)
        }
        CheckpointKind::HuggingFace(folder) => {
            let mut catalogue = TensorCatalogue::default();
            for shard in safetensors_files(&folder)? {
                read_into(&shard, &mut catalogue).map_err(crate::checkpoint::LoadError::from)?;
            }
            (None, catalogue)
        }
    };
    let loaded = Checkpoint::open(&arguments.path);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let tensors: Vec<_> = catalogue
            .iter()
            .map(|tensor| {
                json!({
                    "name": tensor.name(),
                    "type": tensor.ty().name(),
                    "shape": tensor.shape(),
                    "bytes": tensor.range().len(),
                    "offset": tensor.range().start,
                })
            })
            .collect();
        let summary = json!({
            "parameters": catalogue.elements(),
            "bytes": catalogue.bytes(),
            "config": loaded.as_ref().ok().map(config_rows).map(|rows| {
                rows.into_iter().map(|(key, value)| (key, value.into())).collect::<serde_json::Map<_, _>>()
            }),
            "tensors": tensors,
            "error": loaded.as_ref().err().map(ToString::to_string),
        });
        writeln!(out, "{summary}")?;
    } else {
        if let Some(file) = &gguf {
            write_metadata(&mut out, file)?;
        }
        if let Ok(checkpoint) = &loaded {
            writeln!(out, "config")?;
            for (key, value) in config_rows(checkpoint) {
                writeln!(out, "  {key:<24} {value}")?;
            }
        }
        writeln!(out, "tensors")?;
        let width = catalogue
            .iter()
            .map(|tensor| tensor.name().len())
            .max()
            .unwrap_or(0)
            .min(64);
        for tensor in catalogue.iter() {
            let shape = format!("{:?}", tensor.shape());
            writeln!(
                out,
                "  {:<width$} {:<8} {shape:<18} {:>12} bytes",
                tensor.name().escape_debug().to_string(),
                tensor.ty(),
                tensor.range().len()
            )?;
        }
        writeln!(
            out,
            "{} tensors, {} parameters, {} bytes",
            catalogue.len(),
            catalogue.elements(),
            catalogue.bytes()
        )?;
    }
    out.flush()?;
    loaded.map(|_| ()).map_err(CommandError::from)
}

fn write_metadata(out: &mut dyn Write, file: &GgufFile) -> std::io::Result<()> {
    let header = file.header();
    writeln!(
        out,
        "GGUF version {}, alignment {}",
        header.version, header.alignment
    )?;
    let ignored: Vec<&str> = ignored_keys(header).collect();
    for (key, value) in header.metadata() {
        let note = if ignored.contains(&key) {
            "  (not used)"
        } else {
            ""
        };
        let shown = match value {
            Value::Array(array) => format!("{} {}", array.len(), array.element_name()),
            other => other.to_string(),
        };
        writeln!(
            out,
            "  {:<44} {shown}{note}",
            key.escape_debug().to_string()
        )?;
    }
    Ok(())
}

fn config_rows(checkpoint: &Checkpoint) -> Vec<(String, String)> {
    let config = &checkpoint.config;
    let yes_no = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    let mut rows = vec![
        ("family", config.family.to_owned()),
        ("vocabulary", config.vocab_size.to_string()),
        ("context", config.context_length.to_string()),
        ("hidden", config.hidden_size.to_string()),
        ("layers", config.layers.len().to_string()),
        ("norm epsilon", config.norm_eps.to_string()),
        ("tied embeddings", yes_no(config.tied_embeddings)),
        (
            "multi-token head",
            yes_no(checkpoint.weights.multi_token_head.is_some()),
        ),
        ("tokenizer", yes_no(checkpoint.tokenizer.is_some())),
        ("chat template", yes_no(checkpoint.chat_template.is_some())),
        (
            "end of answer",
            format!("{:?}", checkpoint.end_of_generation),
        ),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect::<Vec<_>>();
    if let Some(reason) = &checkpoint.no_tokenizer {
        rows.push(("no tokenizer".to_owned(), reason.clone()));
    }
    for (first, last, text) in config.layer_runs() {
        rows.push((format!("layers {first} to {last}"), text));
    }
    // What `butter generate` reserves in f32, by kind of state.
    let options = engine_options(checkpoint, Backend::Cpu, ActivationType::F32);
    let plan = MemoryPlan::new(config, &options);
    let packed = MemoryPlan::new(
        config,
        &EngineOptions {
            cache: CacheType::F8E4M3,
            ..options
        },
    );
    let packed = match config.keeps_latents() {
        false => packed.full_cache + packed.window_cache,
        true => 0,
    };
    for (what, bytes) in [
        ("cache, all positions", plan.full_cache),
        ("cache, windows", plan.window_cache),
        ("cache of fp8 instead", packed),
        ("recurrent matrices", plan.recurrent),
        ("convolution history", plan.convolution),
    ] {
        if bytes > 0 {
            rows.push((what.to_owned(), format!("{bytes} bytes")));
        }
    }
    rows
}
