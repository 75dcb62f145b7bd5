//! `butter pull`: a model of a hub, fetched into the cache or a folder.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::CommandError;
use super::limits::some_text;
use crate::hub::{Hub, Progress, Repository, Request};

/// Time between two lines of progress.
const PAUSE: Duration = Duration::from_millis(500);

/// What `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_CACHE`, `HF_HOME` and `HF_HUB_OFFLINE` say holds, as for
/// the hub's own tools.
#[derive(Args, Debug)]
pub(super) struct PullArguments {
    /// The model: `org/name`, or `org/name@revision`.
    repository: String,
    /// A branch, a tag or a commit; `main` where none is named.
    #[arg(long, value_parser = some_text)]
    revision: Option<String>,
    /// Files to fetch, `*` for any characters; may be given several times. Without it: weights,
    /// configs, tokenizer and template of a checkpoint, or the one GGUF file.
    #[arg(long, value_name = "GLOB", value_parser = some_text)]
    include: Vec<String>,
    /// A folder for the files, instead of the cache.
    #[arg(long, value_name = "DIR", conflicts_with = "offline")]
    to: Option<PathBuf>,
    /// Use no network: say where the model lies, if it was fetched.
    #[arg(long)]
    offline: bool,
}

pub(super) fn run(arguments: &PullArguments) -> Result<(), CommandError> {
    let mut repository = Repository::parse(&arguments.repository)?;
    if let Some(revision) = &arguments.revision {
        if arguments.repository.contains('@') {
            return Err(CommandError::Usage {
                option: "--revision",
                problem: format!("{} names a revision already", arguments.repository),
            });
        }
        repository = repository.at(revision)?;
    }
    let hub = Hub::from_environment()?.offline(arguments.offline);
    let request = Request {
        repository: &repository,
        include: &arguments.include,
        to: arguments.to.as_deref(),
    };
    let mut shown = Shown::default();
    let pulled = hub.pull(&request, &mut |progress| shown.update(progress));
    shown.end();
    let pulled = pulled?;
    let mut err = std::io::stderr();
    for file in &pulled.files {
        let how = match file.fetched {
            0 => "was there".to_owned(),
            fetched => format!("{fetched} bytes fetched"),
        };
        let _ = writeln!(err, "butter: {}: {} bytes, {how}", file.name, file.bytes);
    }
    writeln!(std::io::stdout(), "{}", pulled.folder.display())?;
    Ok(())
}

/// The line of progress, on a terminal alone.
#[derive(Default)]
struct Shown {
    last: Option<Instant>,
}

impl Shown {
    fn update(&mut self, progress: Progress<'_>) {
        let recent = self.last.is_some_and(|last| last.elapsed() < PAUSE);
        if recent || !std::io::stderr().is_terminal() {
            return;
        }
        self.last = Some(Instant::now());
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let _ = write!(
            std::io::stderr(),
            "\r\x1b[K{}: {:.1} of {:.1} MiB",
            progress.name,
            mebibytes(progress.have),
            mebibytes(progress.size)
        );
    }

    fn end(&self) {
        if self.last.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
