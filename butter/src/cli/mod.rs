//! The command line: `butter generate`, `butter chat`, `butter serve`, `butter inspect`,
//! `butter logits`, `butter perplexity`, `butter bench`, `butter bench-serve`, `butter doctor`,
//! `butter pull`.
//!
//! Answers go to standard output, everything else to standard error. Exit codes:
//! 0 for success, 1 for an error (one line on standard error), 2 for a wrong
//! command line.

mod bench;
mod bench_serve;
mod chat;
mod doctor;
mod generate;
mod inspect;
mod limits;
mod loading;
mod logits;
mod perplexity;
mod pull;
mod report_file;
mod serve;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use iron_runtime::Device;

use self::loading::LoadingBar;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs, Route};
use crate::generate::{Answer, GenerateError, Stats};
use crate::hub::HubError;
use crate::model::{Model, ModelError};
use crate::sampler::{ParameterError, Sampler, SamplingParameters};

/// Runs language models on Iron's kernels.
#[derive(Parser, Debug)]
#[command(name = "butter", version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Answer one prompt.
    Generate(generate::GenerateArguments),
    /// Talk with a model, turn by turn.
    Chat(chat::ChatArguments),
    /// Answer many clients over HTTP, as OpenAI's API does.
    Serve(Box<serve::ServeArguments>),
    /// Put load on a server and time its answers.
    BenchServe(bench_serve::BenchServeArguments),
    /// Check this machine's devices, and a model on one of them.
    Doctor(doctor::DoctorArguments),
    /// Show a checkpoint's config and tensors.
    Inspect(inspect::InspectArguments),
    /// Print the logits that follow a prompt.
    Logits(logits::LogitsArguments),
    /// Measure prefill and decoding, of a model or of random weights of a named shape.
    Bench(bench::BenchArguments),
    /// Score a text: mean negative log-likelihood and perplexity.
    Perplexity(perplexity::PerplexityArguments),
    /// Fetch a model from a hub into the cache, or a folder, and check it.
    Pull(pull::PullArguments),
}

/// Which model runs where.
#[derive(Args, Clone, Debug)]
struct RunArguments {
    /// A GGUF file, a folder with one, a Hugging Face folder, or a model that `butter pull` has
    /// fetched, by its name (`org/name`, `org/name@revision`).
    #[arg(long, value_parser = limits::model_path())]
    model: PathBuf,
    /// What runs the kernels.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Type of activations, and of the key-value cache unless `--kv-cache-dtype` says otherwise.
    #[arg(long, value_enum, default_value_t = ActivationType::F32)]
    dtype: ActivationType,
    /// What products with packed weights read: the activations exactly, or rounded to 8 bits in
    /// blocks of 32, which is faster and less exact (on `cpu`, for Q4_0, Q4_1 and Q8_0).
    #[arg(long, value_enum, default_value_t = Activations::Exact)]
    activations: Activations,
    /// Type of the key-value cache: as the activations, or 8-bit floats (E4M3) with a scale a
    /// position and head, which take half of 16 bits and are less exact.
    #[arg(long, value_enum, default_value_t = CacheDtype::Auto)]
    kv_cache_dtype: CacheDtype,
}

/// Type of the key-value cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CacheDtype {
    /// That of the activations.
    Auto,
    /// 8-bit floats (E4M3) with a scale a position and head.
    #[value(alias = "fp8_e4m3")]
    Fp8,
}

impl CacheDtype {
    fn kind(self) -> CacheType {
        match self {
            Self::Auto => CacheType::Activations,
            Self::Fp8 => CacheType::F8E4M3,
        }
    }
}

/// What products with packed weights read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Activations {
    /// The activations as they are.
    Exact,
    /// The activations rounded to 8 bits in blocks of 32.
    Q8,
}

impl Activations {
    fn product_inputs(self) -> ProductInputs {
        match self {
            Self::Exact => ProductInputs::Exact,
            Self::Q8 => ProductInputs::Q8,
        }
    }
}

impl RunArguments {
    /// The model of an opened checkpoint.
    fn open(&self, checkpoint: &Checkpoint) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(load(checkpoint, self)?))
    }
}

/// What both `generate` and `chat` need to run a model.
#[derive(Args, Clone, Debug)]
struct ModelArguments {
    #[command(flatten)]
    run: RunArguments,
    /// Most tokens of an answer; the context may end it earlier.
    #[arg(long, default_value_t = 256, value_parser = limits::count::<0, { limits::POSITIONS }>)]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// Go on where the model would end its answer.
    #[arg(long)]
    ignore_eos: bool,
    /// Print counts and clocks to standard error, prefill and decode apart.
    #[arg(long)]
    stats: bool,
}

/// How tokens are chosen; the doc of [`crate::sampler`] gives the order.
#[derive(Args, Clone, Debug)]
struct SamplingArguments {
    /// 0 always takes the likeliest token; higher values vary more.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f64,
    /// Choose among so many of the likeliest tokens; 0 for all.
    #[arg(long, default_value_t = 0, value_parser = limits::count::<0, { limits::POSITIONS }>)]
    top_k: usize,
    /// Choose among the likeliest tokens that reach this probability together.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f64,
    /// Choose among tokens at least so many times as likely as the likeliest.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f64,
    /// Choose among the most typical tokens that reach this probability together.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    typical_p: f64,
    /// Divide the logits of tokens of prompt and answer (multiply those below 0).
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f64,
    /// Subtract from the logits of tokens of the answer.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f64,
    /// Subtract as often as a token occurs in the answer.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f64,
    /// Add to the logit of a token; may be given several times.
    #[arg(long, value_name = "ID=VALUE", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the choice at a temperature above 0.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let expected = || format!("`{text}` is not ID=VALUE, a token's id and a number");
    let (token, value) = text.split_once('=').ok_or_else(expected)?;
    let token = token.trim().parse().map_err(|_| expected())?;
    let value = value.trim().parse().map_err(|_| expected())?;
    Ok((token, value))
}

/// An execution of the kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Backend {
    /// Machine code made in the process.
    Cpu,
    /// SPIR-V through the system's Vulkan driver.
    Vulkan,
    /// CUDA C++ through NVRTC.
    Cuda,
    /// HIP C++ through hipRTC.
    Hip,
    /// MSL through the Metal framework.
    Metal,
}

impl Backend {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Vulkan => "vulkan",
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Metal => "metal",
        }
    }

    fn device(self) -> iron_runtime::Backend {
        match self {
            Self::Cpu => iron_runtime::Backend::Cpu,
            Self::Vulkan => iron_runtime::Backend::Vulkan,
            Self::Cuda => iron_runtime::Backend::Cuda,
            Self::Hip => iron_runtime::Backend::Hip,
            Self::Metal => iron_runtime::Backend::Metal,
        }
    }
}

/// Type of activations and of the key-value cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ActivationType {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
}

impl ActivationType {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    fn scalar(self) -> iron_ir::Scalar {
        match self {
            Self::F32 => iron_ir::Scalar::F32,
            Self::F16 => iron_ir::Scalar::F16,
            Self::Bf16 => iron_ir::Scalar::BF16,
        }
    }
}

/// Makes a model of an opened checkpoint that runs on a backend.
pub fn open_model(
    checkpoint: &Checkpoint,
    backend: Backend,
    dtype: ActivationType,
    activations: Activations,
) -> Result<Box<dyn Model>, ModelError> {
    let run = RunArguments {
        model: checkpoint.path.clone(),
        backend,
        dtype,
        activations,
        kv_cache_dtype: CacheDtype::Auto,
    };
    run.open(checkpoint)
}

/// The same with its multi-token head.
fn open_with_head(
    checkpoint: &Checkpoint,
    run: &RunArguments,
) -> Result<Box<dyn Model>, ModelError> {
    if checkpoint.weights.multi_token_head.is_none() {
        return Err(ModelError::NoHead);
    }
    let mut model = load(checkpoint, run)?;
    model.load_head(&checkpoint.config, &checkpoint.weights)?;
    Ok(Box::new(model))
}

fn load(checkpoint: &Checkpoint, run: &RunArguments) -> Result<DeviceModel, ModelError> {
    let device = open_device(run.backend)?;
    let options = EngineOptions {
        product_inputs: run.activations.product_inputs(),
        cache: run.kv_cache_dtype.kind(),
        ..engine_options(checkpoint, run.backend, run.dtype)
    };
    let _bar = LoadingBar::of(checkpoint);
    DeviceModel::load(device, checkpoint, options)
}

/// The route that an option names.
fn route_of(option: &'static str, name: Option<&str>) -> Result<Option<Route>, CommandError> {
    let Some(name) = name else {
        return Ok(None);
    };
    match Route::from_name(name) {
        Some(route) => Ok(Some(route)),
        None => Err(CommandError::Option {
            option,
            problem: format!(
                "there is no route {name:?}; there are {}",
                Route::ALL.map(Route::name).join(", ")
            ),
        }),
    }
}

/// Opens the device of a backend.
fn open_device(backend: Backend) -> Result<Arc<dyn Device>, ModelError> {
    iron_runtime::open(backend.device()).map_err(|error| ModelError::BackendUnavailable {
        backend: backend.name().to_owned(),
        reason: error.to_string(),
    })
}

/// How the command line sets a model up: one sequence, and steps as long as the backend likes.
fn engine_options(
    checkpoint: &Checkpoint,
    backend: Backend,
    dtype: ActivationType,
) -> EngineOptions {
    EngineOptions {
        dtype: dtype.scalar(),
        product_inputs: ProductInputs::Exact,
        max_sequences: 1,
        max_step_rows: match backend {
            Backend::Cuda => 2048,
            _ => 64,
        },
        cache_positions: checkpoint.config.context_length.min(MOST_CACHED_POSITIONS),
        cache: CacheType::Activations,
    }
}

/// Positions of the cache that the command line reserves at most: a long context at full length
/// would take more memory than the weights.
const MOST_CACHED_POSITIONS: usize = 8192;

/// Why a command failed; shown as one line.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("--{flag}: {0}", flag = .0.field.replace('_', "-"))]
    Sampling(#[from] ParameterError),
    #[error("{option}: {problem}")]
    Option {
        option: &'static str,
        problem: String,
    },
    /// A wrong command line.
    #[error("{option}: {problem}")]
    Usage {
        option: &'static str,
        problem: String,
    },
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error("the answer ended early: {0}")]
    Answer(String),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] std::io::Error),
}

/// Parses the command line, runs it, and gives the exit code.
pub fn main() -> ExitCode {
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(error) => return wrong_command_line(&error),
    };
    let result = match &command_line.command {
        Command::Generate(arguments) => generate::run(arguments),
        Command::Chat(arguments) => chat::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::BenchServe(arguments) => bench_serve::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Logits(arguments) => logits::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Perplexity(arguments) => perplexity::run(arguments),
        Command::Pull(arguments) => pull::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has seen enough, as `head` does.
        Err(CommandError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&error.to_string());
            match error {
                CommandError::Usage { .. } => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// One line, whatever a path or a library put into the message.
fn complain(message: &str) {
    let message = message.replace(['\n', '\r'], " ");
    let _ = writeln!(std::io::stderr(), "butter: error: {message}");
}

/// Help, or what is wrong: a wrong value in one line as all errors, a wrong composition with the
/// usage behind it.
fn wrong_command_line(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            let mut message = first.trim_start_matches("error: ").to_owned();
            // The values that there are stand on a line of their own.
            let others = text.lines().map(str::trim);
            for line in others.filter(|line| line.starts_with('[')) {
                message.push(' ');
                message.push_str(line);
            }
            complain(&message);
            ExitCode::from(2)
        }
        _ => {
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

impl ModelArguments {
    fn sampler(&self, checkpoint: &Checkpoint) -> Result<Sampler, CommandError> {
        let arguments = &self.sampling;
        let mut biased = BTreeSet::new();
        for (token, _) in &arguments.logit_bias {
            if !biased.insert(*token) {
                return Err(CommandError::Usage {
                    option: "--logit-bias",
                    problem: format!("token {token} stands twice"),
                });
            }
        }
        let parameters = SamplingParameters {
            temperature: arguments.temperature,
            top_k: arguments.top_k as u32,
            top_p: arguments.top_p,
            min_p: arguments.min_p,
            typical_p: arguments.typical_p,
            repetition_penalty: arguments.repetition_penalty,
            presence_penalty: arguments.presence_penalty,
            frequency_penalty: arguments.frequency_penalty,
            logit_bias: arguments.logit_bias.iter().copied().collect(),
            seed: arguments.seed,
        };
        Ok(Sampler::new(parameters, checkpoint.config.vocab_size)?)
    }

    fn stop_tokens(&self, checkpoint: &Checkpoint) -> Vec<u32> {
        if self.ignore_eos {
            Vec::new()
        } else {
            checkpoint.end_of_generation.clone()
        }
    }

    fn report(&self, stats: &Stats) {
        if self.stats {
            let _ = writeln!(
                std::io::stderr(),
                "[{} {}] prefill: {} tokens ({} reused) in {:.3} s, {:.1} tokens/s; decode: {} tokens in {:.3} s, {:.1} tokens/s",
                self.run.backend.name(),
                self.run.dtype.name(),
                stats.prompt_tokens,
                stats.reused_tokens,
                stats.prefill_seconds,
                stats.prefill_tokens_per_second,
                stats.generated_tokens,
                stats.decode_seconds,
                stats.decode_tokens_per_second,
            );
        }
    }
}

/// Writes a piece of an answer at once; the first failure is kept.
fn stream_to(out: &mut dyn Write, failed: &mut Option<std::io::Error>, text: &str) {
    if failed.is_none()
        && let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
    {
        *failed = Some(error);
    }
}

/// An answer that ended because of an error is one, after it was shown.
fn check_answer(answer: &Answer) -> Result<(), CommandError> {
    match &answer.error {
        Some(error) => Err(CommandError::Answer(error.clone())),
        None => Ok(()),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, CommandError> {
    std::fs::read(path).map_err(|error| CommandError::File {
        path: path.to_owned(),
        problem: format!("cannot be read: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use clap::CommandFactory;

    use super::*;

    /// A seed may be any number, and the server's settings, which come from a file and from the
    /// environment as well, are checked in `serve::options`.
    fn has_its_own_check(command: &str, argument: &str) -> bool {
        argument == "seed" || command == "serve"
    }

    #[test]
    fn every_count_refuses_a_number_that_arithmetic_would_overflow_with() {
        let counts = [
            TypeId::of::<usize>(),
            TypeId::of::<u64>(),
            TypeId::of::<(usize, usize)>(),
        ];
        let mut found = 0;
        for command in CommandLine::command().get_subcommands() {
            for argument in command.get_arguments() {
                let is_count = counts
                    .iter()
                    .any(|ty| argument.get_value_parser().type_id() == *ty);
                let (command, id) = (command.get_name(), argument.get_id().as_str());
                let Some(flag) = argument.get_long().filter(|_| is_count) else {
                    continue;
                };
                if has_its_own_check(command, id) {
                    continue;
                }
                found += 1;
                for wrong in ["18446744073709551615", "-1", "1.5", "x"] {
                    let value = format!("--{flag}={wrong}");
                    let error = CommandLine::try_parse_from(["butter", command, &value])
                        .expect_err("a wrong count");
                    assert_eq!(
                        error.kind(),
                        ErrorKind::ValueValidation,
                        "{command} {value}: {error}"
                    );
                    let text = error.to_string();
                    assert!(
                        text.contains(flag) && text.contains("whole number from"),
                        "{text}"
                    );
                }
            }
        }
        assert!(found >= 15, "{found}");
    }
}
