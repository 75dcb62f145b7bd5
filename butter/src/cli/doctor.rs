//! `butter doctor`: what of this machine works, and whether a model does on it.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use iron_corpus::elementwise::axpy;
use iron_corpus::norm::rms_norm;
use iron_ir::Scalar;
use iron_runtime::{Device, Tensor, launch};

use super::limits::model_path;
use super::serve::plan;
use super::{ActivationType, Activations, Backend, CommandError, RunArguments, open_device};
use crate::checkpoint::Checkpoint;
use crate::engine::{DeviceModel, MemoryPlan};
use crate::generate::{Generator, Request};
use crate::sampler::Sampler;
use crate::serve::options::Layer;

/// Tokens that a model is asked for.
const TOKENS: usize = 12;

#[derive(Args, Debug)]
pub(super) struct DoctorArguments {
    /// A model to check, too: a GGUF file, a folder with one, a Hugging Face folder, or a model
    /// that `butter pull` has fetched.
    #[arg(long, value_parser = model_path())]
    model: Option<PathBuf>,
    /// Where the model is to run; its answer is compared with the CPU's.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Type of activations and of the key-value cache.
    #[arg(long, value_enum, default_value_t = ActivationType::F32)]
    dtype: ActivationType,
}

pub(super) fn run(arguments: &DoctorArguments) -> Result<(), CommandError> {
    iron_corpus::link();
    let mut out = std::io::stdout().lock();
    let mut failed = 0;
    for backend in [
        Backend::Cpu,
        Backend::Vulkan,
        Backend::Cuda,
        Backend::Hip,
        Backend::Metal,
    ] {
        let name = backend.name();
        match open_device(backend) {
            Err(error) => writeln!(
                out,
                "device {name}: not here ({})",
                one_line(&error.to_string())
            )?,
            Ok(device) => match kernels(&device) {
                Ok(()) => writeln!(
                    out,
                    "device {name}: ok, {}; two kernels agree with f64",
                    device.name()
                )?,
                Err(problem) => {
                    failed += 1;
                    writeln!(
                        out,
                        "device {name}: WRONG, {}: {}",
                        device.name(),
                        one_line(&problem)
                    )?;
                }
            },
        }
    }
    if let Some(path) = &arguments.model {
        let run = RunArguments {
            model: path.clone(),
            backend: arguments.backend,
            dtype: arguments.dtype,
            activations: Activations::Exact,
            kv_cache_dtype: super::CacheDtype::Auto,
        };
        failed += model(&run, &mut out)?;
    }
    match failed {
        0 => Ok(()),
        n => Err(CommandError::Option {
            option: "doctor",
            problem: format!("{n} of the checks above failed"),
        }),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A kernel of one element a thread and one with a reduction, against sums in f64.
fn kernels(device: &Arc<dyn Device>) -> Result<(), String> {
    fn text(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let (rows, columns) = (3u64, 1000u64);
    let value = |i: u64| ((i * 37 % 101) as f32 - 50.0) / 25.0;
    let x: Vec<f32> = (0..rows * columns).map(value).collect();
    let weight: Vec<f32> = (0..columns).map(|i| value(i + 7)).collect();
    let tensor = |shape: &[u64], values: &[f32]| {
        Tensor::from_f32(device, Scalar::F32, shape, values).map_err(text)
    };
    let near = |what: &str, found: &[f32], expected: Vec<f64>| {
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let bound = 1e-5 * (1.0 + expected.abs());
            if (f64::from(*found) - expected).abs() > bound || !found.is_finite() {
                return Err(format!(
                    "{what}: element {i} is {found}, expected {expected}"
                ));
            }
        }
        Ok(())
    };
    let given = tensor(&[rows * columns], &x)?;
    let mut sum = tensor(&[rows * columns], &x)?;
    let call = axpy::launch::<f32>(axpy::Args {
        x: &given,
        y: &mut sum,
        alpha: 2.5,
    });
    launch(device, call).map_err(text)?;
    let expected = x.iter().map(|&x| 3.5 * f64::from(x)).collect();
    near("axpy", &sum.to_f32().map_err(text)?, expected)?;

    let given = tensor(&[rows, columns], &x)?;
    let weights = tensor(&[columns], &weight)?;
    let mut normed = Tensor::zeros(device, Scalar::F32, &[rows, columns]).map_err(text)?;
    let call = rms_norm::launch::<f32>(rms_norm::Args {
        x: &given,
        w: &weights,
        y: &mut normed,
        eps: 1e-5,
    });
    launch(device, call).map_err(text)?;
    let expected = x.chunks(columns as usize).flat_map(|row| {
        let mean: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / columns as f64;
        let scale = (mean + 1e-5).sqrt().recip();
        row.iter()
            .zip(&weight)
            .map(move |(&x, &w)| f64::from(x) * f64::from(w) * scale)
    });
    near(
        "rms_norm",
        &normed.to_f32().map_err(text)?,
        expected.collect(),
    )
}

/// Checks a model; how many checks failed.
fn model(run: &RunArguments, out: &mut impl Write) -> Result<usize, CommandError> {
    let checkpoint = Checkpoint::open(&run.model)?;
    writeln!(
        out,
        "model: {} layers, {} tokens, context {}, {} MiB of weights; tokenizer {}, chat template {}",
        checkpoint.config.layers.len(),
        checkpoint.config.vocab_size,
        checkpoint.config.context_length,
        checkpoint.catalogue.bytes() >> 20,
        if checkpoint.tokenizer.is_some() {
            "yes"
        } else {
            "no"
        },
        if checkpoint.chat_template.is_some() {
            "yes"
        } else {
            "no"
        },
    )?;
    let defaults = Layer::default()
        .resolve()
        .map_err(|error| CommandError::Option {
            option: "doctor",
            problem: error.to_string(),
        })?;
    let (options, _) = plan(&checkpoint.config, run.backend, run.dtype, &defaults);
    let planned = MemoryPlan::new(&checkpoint.config, &options);
    writeln!(
        out,
        "memory of `butter serve` as it stands: {} MiB of state for {} requests and {} positions (keys and values {}, windows {}, recurrent {}, convolutions {} MiB)",
        planned.bytes() >> 20,
        options.max_sequences,
        options.cache_positions,
        planned.full_cache >> 20,
        planned.window_cache >> 20,
        planned.recurrent >> 20,
        planned.convolution >> 20,
    )?;
    let prompt: Vec<u32> = match &checkpoint.tokenizer {
        Some(tokenizer) => tokenizer
            .encode_prompt("The capital of France is")
            .unwrap_or_default(),
        None => vec![1, 2, 3, 4],
    };
    let here = answer(&checkpoint, run.backend, run.dtype, &prompt)?;
    let text = checkpoint
        .tokenizer
        .as_ref()
        .map(|tokenizer| tokenizer.decode(&here));
    writeln!(
        out,
        "answer on {}: {:?}",
        run.backend.name(),
        text.unwrap_or_else(|| format!("{here:?}"))
    )?;
    if run.backend == Backend::Cpu {
        return Ok(0);
    }
    let there = answer(&checkpoint, Backend::Cpu, ActivationType::F32, &prompt)?;
    let same = here.iter().zip(&there).take_while(|(a, b)| a == b).count();
    if same == TOKENS {
        writeln!(out, "the CPU answers the same {TOKENS} tokens")?;
        return Ok(0);
    }
    writeln!(
        out,
        "the CPU's answer in f32 differs from token {same} of {TOKENS} on"
    )?;
    // In 16 bits a near tie may turn; in f32 it hardly does.
    Ok(usize::from(run.dtype == ActivationType::F32 || same == 0))
}

fn answer(
    checkpoint: &Checkpoint,
    backend: Backend,
    dtype: ActivationType,
    prompt: &[u32],
) -> Result<Vec<u32>, CommandError> {
    let options = crate::engine::EngineOptions {
        cache_positions: prompt.len() + TOKENS,
        ..super::engine_options(checkpoint, backend, dtype)
    };
    let mut model = DeviceModel::load(open_device(backend)?, checkpoint, options)?;
    let request = Request {
        prompt_ids: prompt.to_vec(),
        max_tokens: TOKENS,
        sampler: Sampler::greedy(),
        stop_tokens: Vec::new(),
        stop_strings: Vec::new(),
    };
    Ok(Generator::new(&mut model)
        .run(&request, None, &mut |_| ())?
        .token_ids)
}
