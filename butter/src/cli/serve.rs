//! `butter serve`: a checkpoint behind OpenAI's HTTP API.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Backend, CommandError, RunArguments, open_device};
use crate::chat::ChatTemplate;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::engine::{DeviceModel, EngineOptions, MemoryPlan, Route};
use crate::model::Model;
use crate::scheduler::{PrefixReuse, SchedulerOptions, SchedulerThread};
use crate::serve::Server;
use crate::serve::engine::{Engine, EngineParts};
use crate::serve::options::{Layer, ServeOptions, duration};

#[derive(Args, Debug)]
pub(super) struct ServeArguments {
    #[command(flatten)]
    run: RunArguments,
    /// A TOML file with settings, each named like its flag with `_` for `-`. A flag is above a
    /// variable of the environment (`BUTTER_` and the name in capitals), that above the file.
    #[arg(long)]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Layer,
}

pub(super) fn run(arguments: &ServeArguments) -> Result<(), CommandError> {
    let wrong = |problem: String| CommandError::Option {
        option: "serve",
        problem,
    };
    let options =
        ServeOptions::from_sources(arguments.settings.clone(), arguments.config.as_deref())
            .map_err(|error| wrong(error.to_string()))?;
    log_to_standard_error();
    let engine = load(&arguments.run, &options)?;
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (host, port) = (options.host.clone(), options.port);
        let server = Server::start(engine, options)
            .await
            .map_err(|error| wrong(format!("cannot listen on {host}:{port}: {error}")))?;
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

/// Opens a checkpoint for many requests.
fn load(run: &RunArguments, options: &ServeOptions) -> Result<Engine, CommandError> {
    let checkpoint = Checkpoint::open(&run.model)?;
    let name = match options.served_name.as_str() {
        "" => default_name(&run.model),
        name => name.to_owned(),
    };
    let template = template(&checkpoint, options)?;
    let (tokenizer, ends) = (
        checkpoint.tokenizer.clone(),
        checkpoint.end_of_generation.clone(),
    );
    let vocab_size = checkpoint.config.vocab_size;
    let (engine_options, scheduler_options) = plan(&checkpoint, run, options);
    let planned = MemoryPlan::new(&checkpoint.config, &engine_options).bytes();
    tracing::info!(
        state_mebibytes = planned >> 20,
        sequences = engine_options.max_sequences,
        positions = engine_options.cache_positions,
        "loading"
    );
    let backend = run.backend;
    let make = move || {
        let device = open_device(backend)?;
        let route = Route::of_many(&*device, engine_options.dtype);
        let mut model = DeviceModel::load(device, &checkpoint, engine_options)?;
        model.set_route(route)?;
        Ok(Box::new(model) as Box<dyn Model>)
    };
    let scheduler = SchedulerThread::start(make, scheduler_options, options.max_queued)?;
    let engine = Engine::new(EngineParts {
        name,
        scheduler,
        tokenizer,
        template,
        vocab_size,
        end_of_generation: ends,
    });
    let (reuse, why) = engine.prefix_reuse();
    tracing::info!(reuse, why, "prefixes of earlier requests");
    Ok(engine)
}

/// How the engine and the scheduler are set up for a model.
pub(super) fn plan(
    checkpoint: &Checkpoint,
    run: &RunArguments,
    options: &ServeOptions,
) -> (EngineOptions, SchedulerOptions) {
    let chunk = match (options.prefill_chunk, run.backend) {
        (0, Backend::Cpu) => 64,
        (0, _) => 512,
        (chunk, _) => chunk,
    };
    let context = checkpoint.config.context_length;
    let longest = match options.max_positions {
        0 => context,
        positions => positions.min(context),
    };
    let reuse = match options.prefix_reuse.as_str() {
        "off" => PrefixReuse::Off,
        "any" => PrefixReuse::Any,
        "auto" if checkpoint.config.is_recurrent() => PrefixReuse::Any,
        _ => PrefixReuse::Exact,
    };
    let engine = EngineOptions {
        dtype: run.dtype.scalar(),
        product_inputs: run.activations.product_inputs(),
        max_sequences: options.max_running,
        max_step_rows: chunk.max(options.max_running),
        cache_positions: options.cache_tokens,
    };
    let scheduler = SchedulerOptions {
        max_running: options.max_running,
        chunk,
        prefill_budget: chunk,
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
