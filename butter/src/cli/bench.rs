//! `butter bench`: prefill, decoding and launches of a model or of random weights.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use super::limits::{POSITIONS, REPETITIONS, ROWS, SEQUENCES, count, model_path};
use super::{
    ActivationType, Backend, CacheDtype, CommandError, open_device, report_file::ReportFile,
    route_of,
};
use crate::bench::{BenchPlan, BenchReport};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::engine::{DeviceModel, EngineOptions, Route};
use crate::shapes::{self, SHAPES, Shape};
use crate::weights::ModelWeights;

/// Seed of random weights.
pub(super) const SEED: u32 = 1;

#[derive(Args, Debug)]
pub(super) struct BenchArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// What runs the kernels.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Type of activations, cache and random weights.
    #[arg(long, value_enum, default_value_t = ActivationType::Bf16)]
    dtype: ActivationType,
    /// Type of the key-value cache.
    #[arg(long, value_enum, default_value_t = CacheDtype::Auto)]
    kv_cache_dtype: CacheDtype,
    /// Which kernels steps are made of: `rows`, `unfused`, `fused` or `batched`; otherwise the
    /// device's own, or the one that `butter serve` takes if a batch has several sequences.
    #[arg(long)]
    route: Option<String>,
    /// Lengths of prompts to prefill; 0: none.
    #[arg(long, value_delimiter = ',', default_value = "512,2048", value_parser = count::<0, POSITIONS>)]
    prompts: Vec<usize>,
    /// Sequences that decode together.
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = count::<1, SEQUENCES>)]
    batches: Vec<usize>,
    /// Positions before the first token that is decoded.
    #[arg(long, value_delimiter = ',', default_value = "128", value_parser = count::<1, POSITIONS>)]
    contexts: Vec<usize>,
    /// Tokens that each sequence decodes in a repetition.
    #[arg(long, default_value_t = 64, value_parser = count::<1, POSITIONS>)]
    tokens: usize,
    /// Repetitions that count.
    #[arg(long, default_value_t = 5, value_parser = count::<1, REPETITIONS>)]
    repetitions: usize,
    /// Repetitions before them.
    #[arg(long, default_value_t = 1, value_parser = count::<0, REPETITIONS>)]
    warm_up: usize,
    /// Rows of a prompt's step.
    #[arg(long, default_value_t = 2048, value_parser = count::<1, ROWS>)]
    chunk: usize,
    /// Measure the launches of a step, kind by kind.
    #[arg(long)]
    profile: bool,
    /// Commit to name in the report.
    #[arg(long, default_value = option_env!("IRON_COMMIT").unwrap_or("unknown"))]
    commit: String,
    /// Write the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as Markdown to this file, not to standard output.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct SourceArguments {
    /// A GGUF file, a folder with one, a Hugging Face folder, or a model that `butter pull` has
    /// fetched.
    #[arg(long, value_parser = model_path())]
    model: Option<PathBuf>,
    /// Random weights of this shape, made on the device.
    #[arg(long)]
    shape: Option<String>,
}

pub(super) fn run(arguments: &BenchArguments) -> Result<(), CommandError> {
    let start = Instant::now();
    let source = Source::of(&arguments.source)?;
    let route = route_of("--route", arguments.route.as_deref())?;
    let plan = arguments.plan();
    let longest = source.config.context_length;
    if let Some(prompt) = plan.prompts.iter().find(|prompt| **prompt > longest) {
        return Err(CommandError::Option {
            option: "--prompts",
            problem: format!("a prompt of {prompt} does not fit the model's context of {longest}"),
        });
    }
    if plan.longest() > longest {
        return Err(CommandError::Option {
            option: "--contexts, --tokens",
            problem: format!(
                "a context and its tokens have {} positions, the model's context {longest}",
                plan.longest()
            ),
        });
    }
    let files = ReportFile::open_both(&arguments.json, &arguments.markdown)?;
    let device = open_device(arguments.backend)?;
    let batch = plan.batches.iter().copied().max().unwrap_or(1).max(1);
    let options = EngineOptions {
        dtype: arguments.dtype.scalar(),
        product_inputs: crate::engine::ProductInputs::Exact,
        max_sequences: batch,
        max_step_rows: arguments.chunk.max(batch),
        cache_positions: plan.cache_positions(crate::engine::BLOCK_SIZE),
        cache: arguments.kv_cache_dtype.kind(),
    };
    let mut model = DeviceModel::of_weights(device, &source.config, &source.weights, options)?;
    let own = || Route::of_company(&**model.device(), options.dtype, batch);
    let route = route.unwrap_or_else(own);
    model.set_route(route)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let (measurements, profiles) = plan.run(&mut model, &mut |what| {
        let _ = writeln!(std::io::stderr(), "butter: measuring {what}");
    })?;
    let report = BenchReport {
        model: source.name,
        weights: source.origin,
        backend: arguments.backend.name().to_owned(),
        device: model.device().name(),
        driver: model.device().driver(),
        dtype: arguments.dtype.name().to_owned(),
        kv_cache_dtype: options.cache.name(),
        route: model.route().name(),
        commit: arguments.commit.clone(),
        chunk: arguments.chunk.max(batch),
        load_seconds,
        warm_up: plan.warm_up,
        measurements,
        profiles,
    };
    let mut json = serde_json::to_string_pretty(&report).map_err(std::io::Error::other)?;
    json.push('\n');
    ReportFile::write_both(files, &json, &report.markdown())
}

impl BenchArguments {
    fn plan(&self) -> BenchPlan {
        BenchPlan {
            prompts: self
                .prompts
                .iter()
                .copied()
                .filter(|&length| length > 0)
                .collect(),
            batches: self.batches.clone(),
            contexts: self.contexts.clone(),
            tokens: self.tokens,
            repetitions: self.repetitions,
            warm_up: self.warm_up,
            profile: self.profile,
        }
    }
}

/// What is measured.
struct Source {
    name: String,
    origin: String,
    config: ModelConfig,
    weights: ModelWeights,
}

impl Source {
    fn of(arguments: &SourceArguments) -> Result<Self, CommandError> {
        if let Some(path) = &arguments.model {
            let checkpoint = Checkpoint::open(path)?;
            let name = path.file_name().unwrap_or(path.as_os_str());
            let pulled = crate::hub::repository_of(path);
            return Ok(Self {
                name: pulled.unwrap_or_else(|| name.to_string_lossy().into_owned()),
                origin: "of the checkpoint".to_owned(),
                config: checkpoint.config,
                weights: checkpoint.weights,
            });
        }
        let shape = shape_of(arguments.shape.as_deref().unwrap_or_default())?;
        Ok(Self {
            name: shape.name.to_owned(),
            origin: format!("random, seed {SEED}"),
            config: shape.config(),
            weights: shape.random_weights(SEED),
        })
    }
}

pub(super) fn shape_of(name: &str) -> Result<Shape, CommandError> {
    shapes::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
        CommandError::Option {
            option: "--shape",
            problem: format!("there is no shape {name:?}; there are {}", known.join(", ")),
        }
    })
}
