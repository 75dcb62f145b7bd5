//! `butter serve`: a checkpoint behind OpenAI's HTTP API.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};

use super::bench::{SEED, shape_of};
use super::loading::LoadingBar;
use super::{
    ActivationType, Activations, Backend, CacheDtype, CommandError, open_device, route_of,
};
use crate::chat::ChatTemplate;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::config::ModelConfig;
use crate::engine::{
    BLOCK_SIZE, CacheType, DeviceModel, EngineOptions, MemoryPlan, ProductInputs, Route,
};
use crate::generate::GenerateError;
use crate::model::{Model, ModelError};
use crate::scheduler::{
    DraftModels, PrefixReuse, SchedulerMetrics, SchedulerOptions, SchedulerThread, Speculator,
};
use crate::serve::Server;
use crate::serve::engine::{Engine, EngineParts};
use crate::serve::loading::{LoadProgress, Loading};
use crate::serve::options::{Layer, ServeOptions, duration, unknown_variables};
use crate::shapes::Shape;
use crate::speculate::{NGram, OwnHead, Propose};
use crate::tokenizer::Tokenizer;

#[derive(Args, Debug)]
pub(super) struct ServeArguments {
    /// A TOML file with settings, each named like its flag with `_` for `-`. A flag is above a
    /// variable of the environment (`BUTTER_` and the name in capitals), that above the file.
    #[arg(long)]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Layer,
}

pub(super) fn run(arguments: &ServeArguments) -> Result<(), CommandError> {
    let options =
        ServeOptions::from_sources(arguments.settings.clone(), arguments.config.as_deref())
            .map_err(|error| wrong(error.to_string()))?;
    log_to_standard_error();
    warn_of_unknown_variables();
    let source = Source::of(&options)?;
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()?;
    // A port that is taken is known before a model is loaded for minutes.
    let listener = runtime
        .block_on(Server::bind(&options))
        .map_err(|error| cannot_listen(&options, &error))?;
    let progress = Arc::new(source.progress());
    let address = listener.local_addr()?;
    let _ = writeln!(
        std::io::stderr(),
        "butter: loading; http://{address}/health/ready says how far it is"
    );
    let loading = runtime.block_on(async { Loading::start(listener, &options, progress.clone()) });
    let bar = LoadingBar::start(progress.clone());
    let engine = load(source, &options, progress);
    drop(bar);
    let engine = engine?;
    runtime.block_on(async {
        let server = Server::start_on(loading.end().await?, engine, options)?;
        if !server.address().ip().is_loopback() && server.state().options.api_keys.is_empty() {
            tracing::warn!("other machines can reach this server, and it asks for no API key");
        }
        let _ = writeln!(
            std::io::stderr(),
            "butter: serving {} at http://{}",
            server.state().engine.name,
            server.address()
        );
        stop_signal().await;
        let _ = writeln!(
            std::io::stderr(),
            "butter: ending: running requests may finish"
        );
        server.stop().await;
        Ok(())
    })
}

fn wrong(problem: String) -> CommandError {
    CommandError::Option {
        option: "serve",
        problem,
    }
}

fn cannot_listen(options: &ServeOptions, error: &std::io::Error) -> CommandError {
    let (host, port) = (&options.host, options.port);
    wrong(format!("cannot listen on {host}:{port}: {error}"))
}

/// What is served and where it runs.
struct Source {
    weights: Weights,
    /// The smaller model that proposes.
    draft: Option<Box<Checkpoint>>,
    backend: Backend,
    dtype: ActivationType,
    activations: Activations,
    cache: CacheDtype,
    route: Option<Route>,
}

enum Weights {
    Checkpoint(PathBuf, Box<Checkpoint>),
    Random(Shape),
}

impl Source {
    /// How far the checkpoints are read.
    fn progress(&self) -> LoadProgress {
        let target = match &self.weights {
            Weights::Checkpoint(_, checkpoint) => Some(&**checkpoint),
            Weights::Random(_) => None,
        };
        let all = [target, self.draft.as_deref()].into_iter().flatten();
        LoadProgress::new(all.map(|one| one.catalogue.progress()).collect())
    }

    fn of(options: &ServeOptions) -> Result<Source, CommandError> {
        let (model, shape) = (
            &crate::hub::locate(options.model.clone()),
            options.shape.as_str(),
        );
        let backend = named("--backend", &options.backend)?;
        let dtype = named("--dtype", &options.dtype)?;
        let activations = named("--activations", &options.activations)?;
        let cache = named("--kv-cache-dtype", &options.kv_cache_dtype)?;
        let route = Some(options.route.as_str()).filter(|route| !route.is_empty());
        let route = route_of("--route", route)?;
        let weights = match (model.as_os_str().is_empty(), shape) {
            (false, "") => {
                let checkpoint = Checkpoint::open(model)?;
                Weights::Checkpoint(model.clone(), Box::new(checkpoint))
            }
            (true, "") => {
                let problem = "what is to be served? Give --model PATH (or BUTTER_MODEL, or `model` in the file)";
                return Err(wrong(problem.to_owned()));
            }
            (true, shape) => Weights::Random(shape_of(shape)?),
            (false, _) => return Err(wrong("give --model or --shape, not both".to_owned())),
        };
        let draft = match options.draft.as_os_str().is_empty() {
            true => None,
            false => {
                let path = crate::hub::locate(options.draft.clone());
                Some(Box::new(Checkpoint::open(&path)?))
            }
        };
        Ok(Source {
            weights,
            draft,
            backend,
            dtype,
            activations,
            cache,
            route,
        })
    }
}

/// A setting that is one of a few words.
fn named<T: ValueEnum>(option: &'static str, text: &str) -> Result<T, CommandError> {
    T::from_str(text, false).map_err(|_| {
        let known = T::value_variants().iter();
        let known: Vec<String> = known
            .filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()))
            .collect();
        CommandError::Option {
            option,
            problem: format!("there is no {text:?}; there are {}", known.join(", ")),
        }
    })
}

/// Opens what is served for many requests.
fn load(
    source: Source,
    options: &ServeOptions,
    progress: Arc<LoadProgress>,
) -> Result<Engine, CommandError> {
    let (backend, dtype) = (source.backend, source.dtype);
    let route = source.route;
    let mut parts = Parts::default();
    let (default_name, config, weights) = match source.weights {
        Weights::Checkpoint(path, checkpoint) => {
            let checkpoint = *checkpoint;
            parts.template = template(&checkpoint, options)?;
            parts.ends = checkpoint.end_of_generation;
            parts.tokenizer = checkpoint.tokenizer;
            (default_name(&path), checkpoint.config, checkpoint.weights)
        }
        Weights::Random(shape) => {
            if !options.chat_template.as_os_str().is_empty() {
                let problem = "a chat template makes text, and a shape has no tokenizer for it";
                return Err(wrong(problem.to_owned()));
            }
            let made_of = format!("random, seed {SEED}");
            tracing::warn!("serving {made_of}: the answers mean nothing");
            parts.made_of = Some(made_of);
            let name = format!("{}-random", shape.name);
            (name, shape.config(), shape.random_weights(SEED))
        }
    };
    let name = match options.served_name.as_str() {
        "" => default_name,
        name => name.to_owned(),
    };
    let vocab_size = config.vocab_size;
    check_sizes(options, config.context_length)?;
    let (engine_options, scheduler_options) = plan(&config, backend, dtype, options);
    let engine_options = EngineOptions {
        product_inputs: source.activations.product_inputs(),
        cache: source.cache.kind(),
        ..engine_options
    };
    let draft = source.draft;
    if let Some(draft) = &draft
        && draft.config.vocab_size != vocab_size
    {
        let (draft, target) = (draft.config.vocab_size, vocab_size);
        return Err(GenerateError::DraftVocabulary { draft, target }.into());
    }
    let draft = draft.map(|draft| (draft.config, draft.weights));
    let has_head = options.mtp;
    if has_head && (config.multi_token_head.is_none() || weights.multi_token_head.is_none()) {
        return Err(ModelError::NoHead.into());
    }
    let is_speculating = draft.is_some() || options.ngram || has_head;
    let (verify_rows, max_running) = (options.verify_rows, options.speculate_max_running);
    if is_speculating {
        tracing::info!(verify_rows, max_running, "requests speculate");
    }
    let planned = MemoryPlan::new(&config, &engine_options).bytes();
    tracing::info!(
        state_mebibytes = planned >> 20,
        sequences = engine_options.max_sequences,
        positions = engine_options.cache_positions,
        "loading"
    );
    let make = move |metrics: &SchedulerMetrics| {
        let device = open_device(backend)?;
        let (dtype, sequences) = (engine_options.dtype, engine_options.max_sequences);
        let route = route.unwrap_or_else(|| Route::of_company(&*device, dtype, sequences));
        let mut model = DeviceModel::of_weights(device, &config, &weights, engine_options)?;
        model.set_route(route)?;
        if has_head {
            model.load_head(&config, &weights)?;
        }
        let proposer: Box<dyn Propose> = match draft {
            // It holds as many sequences as the model, of the same lengths.
            Some((config, weights)) => {
                let device = open_device(backend)?;
                let draft = DeviceModel::of_weights(device, &config, &weights, engine_options)?;
                let (chunk, leases) = (scheduler_options.chunk, metrics.draft_leases.clone());
                Box::new(DraftModels::new(Box::new(draft), chunk, leases))
            }
            None if has_head => Box::new(OwnHead::default()),
            None => Box::new(NGram::default()),
        };
        progress.weights_are_there();
        let speculator = is_speculating.then_some(Speculator {
            proposer,
            verify_rows,
            max_running,
        });
        Ok((Box::new(model) as Box<dyn Model>, speculator))
    };
    let queued = options.max_queued;
    let scheduler = SchedulerThread::start_speculating(make, scheduler_options, queued)?;
    let engine = Engine::new(EngineParts {
        name,
        scheduler,
        tokenizer: parts.tokenizer,
        template: parts.template,
        vocab_size,
        end_of_generation: parts.ends,
        made_of: parts.made_of,
    });
    let (reuse, why) = engine.prefix_reuse();
    tracing::info!(reuse, why, "prefixes of earlier requests");
    Ok(engine)
}

/// Sizes that a model does not have, or that leave requests no room, are refused before it is
/// loaded.
fn check_sizes(options: &ServeOptions, context: usize) -> Result<(), CommandError> {
    let (positions, tokens, running) = (
        options.max_positions,
        options.cache_tokens,
        options.max_running,
    );
    if positions > context {
        return Err(wrong(format!(
            "max_positions is {positions}, and the model's context has {context}: give at most that, \
             or 0 for all of it"
        )));
    }
    let blocks = tokens.div_ceil(BLOCK_SIZE);
    if positions > blocks * BLOCK_SIZE {
        return Err(wrong(format!(
            "max_positions is {positions}, and cache_tokens, {tokens}, holds no request of that \
             length: give fewer of the one or more of the other"
        )));
    }
    if blocks < running {
        return Err(wrong(format!(
            "cache_tokens is {tokens}, and each of max_running, {running}, requests needs a block of \
             {BLOCK_SIZE}: give at least {} of the one or at most {blocks} of the other",
            running * BLOCK_SIZE
        )));
    }
    Ok(())
}

/// What a checkpoint has beside config and weights, and random weights have not.
#[derive(Default)]
struct Parts {
    template: Option<ChatTemplate>,
    tokenizer: Option<Tokenizer>,
    ends: Vec<u32>,
    made_of: Option<String>,
}

/// How the engine and the scheduler are set up for a model.
pub(super) fn plan(
    config: &ModelConfig,
    backend: Backend,
    dtype: ActivationType,
    options: &ServeOptions,
) -> (EngineOptions, SchedulerOptions) {
    let chunk = match (options.prefill_chunk, backend) {
        (0, Backend::Cpu) => 64,
        (0, _) => 512,
        (chunk, _) => chunk,
    };
    let context = config.context_length;
    let longest = match options.max_positions {
        0 => context,
        positions => positions.min(context),
    };
    let reuse = match options.prefix_reuse.as_str() {
        "off" => PrefixReuse::Off,
        "any" => PrefixReuse::Any,
        "auto" if config.is_recurrent() => PrefixReuse::Any,
        _ => PrefixReuse::Exact,
    };
    let prefill_budget = options.prefill_budget.max(chunk);
    let prompt_rows = match backend {
        // Prompts have steps of their own there.
        Backend::Cpu => chunk,
        _ => prefill_budget,
    };
    let engine = EngineOptions {
        dtype: dtype.scalar(),
        product_inputs: ProductInputs::Exact,
        max_sequences: options.max_running,
        max_step_rows: prompt_rows.max(options.max_running),
        cache_positions: options.cache_tokens,
        cache: CacheType::Activations,
    };
    let scheduler = SchedulerOptions {
        max_running: options.max_running,
        chunk,
        prefill_budget,
        max_positions: longest,
        reuse,
        preempt_after: (options.preempt_after > 0.0).then(|| duration(options.preempt_after)),
        max_preemptions: options.max_preemptions,
    };
    (engine, scheduler)
}

fn template(
    checkpoint: &Checkpoint,
    options: &ServeOptions,
) -> Result<Option<ChatTemplate>, CommandError> {
    let failed = |path: &Path, fault| LoadError::Template {
        path: path.to_owned(),
        fault,
    };
    if options.chat_template.as_os_str().is_empty() {
        return match &checkpoint.chat_template {
            None => Ok(None),
            Some(_) => Ok(Some(checkpoint.compile_chat_template()?)),
        };
    }
    let path = &options.chat_template;
    let source = std::fs::read_to_string(path).map_err(|error| CommandError::File {
        path: path.clone(),
        problem: format!("cannot be read: {error}"),
    })?;
    let token = |id: Option<u32>| {
        let tokenizer = checkpoint.tokenizer.as_ref()?;
        tokenizer.token(id?)
    };
    let tokenizer = checkpoint.tokenizer.as_ref();
    let bos = token(tokenizer.and_then(|tokenizer| tokenizer.bos()));
    let eos = token(tokenizer.and_then(|tokenizer| tokenizer.eos()));
    let template = ChatTemplate::new(&source, bos, eos).map_err(|fault| failed(path, fault))?;
    Ok(Some(template))
}

/// The name of the folder or file, without the ending of a file.
fn default_name(path: &Path) -> String {
    if let Some(name) = crate::hub::repository_of(path) {
        return name;
    }
    let named = if path.is_file() {
        path.file_stem()
    } else {
        path.file_name()
    };
    let named = named.map(|name| name.to_string_lossy().into_owned());
    named.unwrap_or_else(|| "model".to_owned())
}

fn log_to_standard_error() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("BUTTER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}

/// A misspelled setting would be ignored without a word.
fn warn_of_unknown_variables() {
    let names: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .collect();
    for name in unknown_variables(names.iter().map(String::as_str)) {
        tracing::warn!("{name} sets nothing; `butter serve --help` lists the settings");
    }
}

/// Waits for Ctrl-C or a request to end.
async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_without_room_are_refused_by_name() {
        let check = |positions, tokens, running| {
            let layer = Layer {
                max_positions: Some(positions),
                cache_tokens: Some(tokens),
                max_running: Some(running),
                ..Layer::default()
            };
            check_sizes(&layer.resolve().expect("valid"), 1024)
        };
        for (positions, tokens, running) in [(0, 2048, 16), (1024, 1921, 16), (0, 1, 1)] {
            assert!(check(positions, tokens, running).is_ok(), "{tokens}");
        }
        for (wrong, names) in [
            ((1025, 2048, 16), "max_positions is 1025"),
            ((512, 384, 1), "cache_tokens, 384"),
            ((0, 1920, 16), "at least 2048 of the one or at most 15"),
        ] {
            let error = check(wrong.0, wrong.1, wrong.2).expect_err("no room");
            assert!(error.to_string().contains(names), "{error}");
        }
    }
}
