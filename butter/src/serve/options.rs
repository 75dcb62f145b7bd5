//! What an operator can set: by flag, by environment, by a TOML file, in this order.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use crate::speculate::VERIFY_ROWS;

/// A setting could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The file could not be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no TOML, or names a setting that there is not.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What and where.
        problem: String,
    },
    /// A variable of the environment holds something else.
    #[error("environment variable {name}={value:?}: {problem}")]
    Environment {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// What is wrong.
        problem: String,
    },
    /// A value that makes no sense.
    #[error("{name} is {value}, it must be {allowed}")]
    Value {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: String,
    },
}

/// Declares each setting once: as a flag, a variable `BUTTER_…`, a key of the file, and a field
/// with its default.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $(#[arg($($arg:tt)*)])? $name:ident: $ty:ty = $default:expr;)*) => {
        /// Settings as one source gives them.
        #[derive(Args, Deserialize, Clone, Default, Debug)]
        #[serde(default, deny_unknown_fields)]
        pub struct Layer {
            $($(#[doc = $doc])+ #[arg(long $(, $($arg)*)?)] pub $name: Option<$ty>,)*
            /// Keys that clients may send as `Authorization: Bearer KEY`; none: anyone is
            /// served. Only in the file, or in `BUTTER_API_KEYS` with commas between, so that
            /// they are seen in no list of processes.
            #[arg(skip)]
            pub api_keys: Option<Vec<String>>,
            /// Origins that browsers may call from; none: no other page may.
            #[arg(long, value_delimiter = ',')]
            pub cors_origins: Option<Vec<String>>,
        }

        /// The settings of a server.
        #[derive(Clone, Debug)]
        pub struct ServeOptions {
            $($(#[doc = $doc])+ pub $name: $ty,)*
            /// Keys that clients may send; empty: anyone is served.
            pub api_keys: Vec<String>,
            /// Origins that browsers may call from.
            pub cors_origins: Vec<String>,
        }

        impl Layer {
            /// The settings' names, as the file has them.
            pub const NAMES: &[&str] = &[$(stringify!($name),)* "api_keys", "cors_origins"];

            /// What the environment sets.
            pub fn from_environment(
                get: impl Fn(&str) -> Option<String>,
            ) -> Result<Layer, OptionsError> {
                let list = |name: &str| {
                    let items = get(name)?;
                    let items = items.split(',').map(str::trim);
                    let items = items.filter(|item| !item.is_empty()).map(str::to_owned);
                    // One that names nothing says nothing: it must not take away a file's.
                    Some(items.collect::<Vec<_>>()).filter(|items| !items.is_empty())
                };
                if get("BUTTER_API_KEYS").is_some() && list("BUTTER_API_KEYS").is_none() {
                    return Err(OptionsError::Environment {
                        name: "BUTTER_API_KEYS".to_owned(),
                        value: get("BUTTER_API_KEYS").unwrap_or_default(),
                        problem: "names no key; to serve anyone, unset it".to_owned(),
                    });
                }
                Ok(Layer {
                    $($name: from_variable(&get, stringify!($name))?,)*
                    api_keys: list("BUTTER_API_KEYS"),
                    cors_origins: list("BUTTER_CORS_ORIGINS"),
                })
            }

            /// These settings, and those of a lower source where these say nothing.
            pub fn over(self, lower: Layer) -> Layer {
                Layer {
                    $($name: self.$name.or(lower.$name),)*
                    api_keys: self.api_keys.or(lower.api_keys),
                    cors_origins: self.cors_origins.or(lower.cors_origins),
                }
            }

            /// With defaults for what no source sets.
            pub fn resolve(self) -> Result<ServeOptions, OptionsError> {
                let verifies = [
                    ("verify_rows", self.verify_rows),
                    ("speculate_max_running", self.speculate_max_running),
                ];
                let options = ServeOptions {
                    $($name: self.$name.unwrap_or($default),)*
                    api_keys: self.api_keys.unwrap_or_default(),
                    cors_origins: self.cors_origins.unwrap_or_default(),
                };
                options.check()?;
                options.check_proposer(verifies)?;
                Ok(options)
            }
        }
    };
}

settings! {
    /// A GGUF file, a folder with one, a Hugging Face folder, or a model that `butter pull` has
    /// fetched, by its name.
    model: PathBuf = PathBuf::new();
    /// Random weights of a named shape instead of a model, to measure the server itself.
    shape: String = String::new();
    /// What runs the kernels: cpu, vulkan, cuda, hip or metal.
    backend: String = "cpu".to_owned();
    /// Type of activations: f32, f16 or bf16.
    dtype: String = "f32".to_owned();
    /// What products with packed weights read: exact, or q8 (rounded to 8 bits, on cpu).
    activations: String = "exact".to_owned();
    /// Type of the key-value cache: auto (that of the activations), or fp8 (8-bit floats, E4M3,
    /// with a scale a position and head).
    kv_cache_dtype: String = "auto".to_owned();
    /// Which kernels steps are made of: rows, unfused, fused or batched; the device's own
    /// otherwise.
    route: String = String::new();
    /// Address to listen on; anything but loopback lets other machines in.
    host: String = "127.0.0.1".to_owned();
    /// Port to listen on; 0 takes a free one.
    port: u16 = 8080;
    /// Name of the model in answers; the checkpoint's file or folder name by default.
    served_name: String = String::new();
    /// A chat template instead of the checkpoint's.
    chat_template: PathBuf = PathBuf::new();
    /// Requests that run at once.
    max_running: usize = 16;
    /// Positions of the cache over all requests.
    cache_tokens: usize = 16_384;
    /// Longest request, prompt and answer; 0: what context and cache allow.
    max_positions: usize = 0;
    /// Rows of a prompt that enter in one step; 0: 64 on a CPU, 512 elsewhere.
    prefill_chunk: usize = 0;
    /// Rows of all prompts that enter between two steps of those that decode: on a GPU in one step,
    /// where they share a reading of the weights; 0: as many as of one prompt.
    prefill_budget: usize = 0;
    /// Which beginnings of prompts come from earlier requests: auto, off, exact or any.
    prefix_reuse: String = "auto".to_owned();
    /// Seconds after which a waiting request takes the place of a running one; 0: never.
    preempt_after: f64 = 10.0;
    /// How often one request may lose its place.
    max_preemptions: usize = 2;
    /// A smaller model with the same vocabulary that proposes tokens, which the model verifies
    /// several at a time: the answers are the same, in fewer steps.
    draft: PathBuf = PathBuf::new();
    /// The text so far proposes what followed its last tokens before, to be verified so.
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ngram: bool = false;
    /// The checkpoint's own multi-token head proposes, to be verified so (Qwen3-Next, Qwen3.5,
    /// DeepSeek-V3).
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    mtp: bool = false;
    /// Rows of a verification, 2 to 10: the proposals and one. Where somebody proposes.
    verify_rows: usize = 5;
    /// Requests that may decode at once while any speculates; where more do, none does. Where
    /// somebody proposes.
    speculate_max_running: usize = 4;
    /// Requests that may wait.
    max_queued: usize = 256;
    /// Tokens of an answer where the request names no limit.
    default_max_tokens: usize = 1024;
    /// Seconds that a request may take, waiting included.
    request_timeout: f64 = 600.0;
    /// Seconds that a request's head may take, and that an idle connection is kept.
    head_timeout: f64 = 30.0;
    /// Seconds that a request's body may take.
    body_timeout: f64 = 30.0;
    /// Seconds without any progress after which a client that does not read is dropped.
    write_timeout: f64 = 60.0;
    /// Open connections.
    max_connections: usize = 1024;
    /// Bytes of a request's body.
    max_body_bytes: usize = 8 << 20;
    /// Bytes of a prompt's text, or of a chat's after its template; longer ones are not encoded.
    max_prompt_bytes: usize = 1 << 20;
    /// Answers to one request (`n`, times the prompts).
    max_choices: usize = 16;
    /// Stop strings of a request.
    max_stops: usize = 16;
    /// Bytes of a stop string.
    max_stop_bytes: usize = 512;
    /// Bytes of a JSON schema or grammar.
    max_schema_bytes: usize = 64 << 10;
    /// Nested levels of a JSON schema.
    max_schema_depth: usize = 32;
    /// Requests a minute from one key (from all clients together where there are no keys); 0: any.
    rate_limit: u32 = 0;
    /// Seconds that running requests get when the server is told to stop.
    drain_timeout: f64 = 30.0;
    /// Write prompts and answers into the log.
    log_prompts: bool = false;
}

impl ServeOptions {
    /// Reads the sources: `flags` over the environment over a file.
    pub fn from_sources(flags: Layer, file: Option<&Path>) -> Result<ServeOptions, OptionsError> {
        let environment = Layer::from_environment(|name| std::env::var(name).ok())?;
        let file = file.map(read_file).transpose()?.unwrap_or_default();
        flags.over(environment.over(file)).resolve()
    }

    /// Settings of verifications, where they are given, have somebody who proposes.
    fn check_proposer(
        &self,
        given: [(&'static str, Option<usize>); 2],
    ) -> Result<(), OptionsError> {
        let proposes = !self.draft.as_os_str().is_empty() || self.ngram || self.mtp;
        match given
            .into_iter()
            .find(|(_, value)| value.is_some() && !proposes)
        {
            Some((name, Some(value))) => Err(OptionsError::Value {
                name,
                value: value.to_string(),
                allowed: "absent where nothing proposes tokens: give `draft`, `ngram` or `mtp`"
                    .to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), OptionsError> {
        let wrong = |name, value: String, allowed: &str| OptionsError::Value {
            name,
            value,
            allowed: allowed.to_owned(),
        };
        // The upper ends keep sums and products of settings far from a word's end.
        for (name, value, least, most) in [
            ("max_running", self.max_running, 1, 4096),
            ("cache_tokens", self.cache_tokens, 1, 1 << 31),
            ("max_positions", self.max_positions, 0, 1 << 31),
            ("prefill_chunk", self.prefill_chunk, 0, 1 << 16),
            ("prefill_budget", self.prefill_budget, 0, 1 << 16),
            ("max_preemptions", self.max_preemptions, 0, 1 << 20),
            ("max_queued", self.max_queued, 0, 1 << 20),
            ("default_max_tokens", self.default_max_tokens, 1, 1 << 31),
            ("max_connections", self.max_connections, 1, 1 << 20),
            ("max_body_bytes", self.max_body_bytes, 1, 1 << 32),
            ("max_prompt_bytes", self.max_prompt_bytes, 1, 1 << 32),
            ("max_choices", self.max_choices, 1, 1024),
            ("max_stops", self.max_stops, 0, 1024),
            ("max_stop_bytes", self.max_stop_bytes, 1, 1 << 20),
            ("max_schema_bytes", self.max_schema_bytes, 1, 1 << 26),
            ("max_schema_depth", self.max_schema_depth, 1, 128),
            (
                "verify_rows",
                self.verify_rows,
                *VERIFY_ROWS.start(),
                *VERIFY_ROWS.end(),
            ),
            ("speculate_max_running", self.speculate_max_running, 1, 4096),
        ] {
            if !(least..=most).contains(&value) {
                return Err(wrong(
                    name,
                    value.to_string(),
                    &format!("{least} to {most}"),
                ));
            }
        }
        if self.max_positions == 1 {
            let allowed = "0, or at least 2: a token of the prompt and one of the answer";
            return Err(wrong("max_positions", "1".to_owned(), allowed));
        }
        for (name, value) in [
            ("request_timeout", self.request_timeout),
            ("head_timeout", self.head_timeout),
            ("body_timeout", self.body_timeout),
            ("write_timeout", self.write_timeout),
        ] {
            if !(0.001..=1e9).contains(&value) {
                return Err(wrong(name, value.to_string(), "0.001 to 1e9 seconds"));
            }
        }
        for (name, value) in [
            ("preempt_after", self.preempt_after),
            ("drain_timeout", self.drain_timeout),
        ] {
            if !(0.0..=1e9).contains(&value) {
                return Err(wrong(name, value.to_string(), "0 to 1e9 seconds"));
            }
        }
        if !["auto", "off", "exact", "any"].contains(&self.prefix_reuse.as_str()) {
            let allowed = "auto, off, exact or any";
            return Err(wrong("prefix_reuse", self.prefix_reuse.clone(), allowed));
        }
        let has_draft = !self.draft.as_os_str().is_empty();
        for (name, is_on, others) in [
            ("ngram", self.ngram, has_draft || self.mtp),
            ("mtp", self.mtp, has_draft),
        ] {
            if is_on && others {
                let allowed = "off where another proposes: one of `draft`, `ngram` and `mtp`";
                return Err(wrong(name, "on".to_owned(), allowed));
            }
        }
        Ok(())
    }
}

/// Seconds as a duration; the range was checked.
pub fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Variables that look like settings and are none; programs and orchestrators set some of their
/// own, so that they are no error.
pub fn unknown_variables<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // The log's filter, and the key of `butter bench-serve`.
    let others = ["LOG", "API_KEY"];
    let unknown = names.filter(|name| {
        name.strip_prefix("BUTTER_").is_some_and(|rest| {
            let known = Layer::NAMES
                .iter()
                .any(|known| known.to_uppercase() == rest);
            !known && !others.contains(&rest)
        })
    });
    unknown.collect()
}

fn from_variable<T: std::str::FromStr>(
    get: &impl Fn(&str) -> Option<String>,
    setting: &str,
) -> Result<Option<T>, OptionsError>
where
    T::Err: std::fmt::Display,
{
    let name = format!("BUTTER_{}", setting.to_uppercase());
    let Some(value) = get(&name) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(parsed) => Ok(Some(parsed)),
        Err(error) => Err(OptionsError::Environment {
            problem: format!("{error}"),
            name,
            value,
        }),
    }
}

fn read_file(path: &Path) -> Result<Layer, OptionsError> {
    let text = std::fs::read_to_string(path).map_err(|source| OptionsError::Read {
        path: path.to_owned(),
        source,
    })?;
    toml::from_str(&text).map_err(|error| {
        // Neither the text, which may hold keys, nor values of a wrong type, which are quoted.
        let line = error.span().map_or(1, |span| {
            text[..span.start.min(text.len())].matches('\n').count() + 1
        });
        let message = error.message().lines().next().unwrap_or_default();
        let message = match message.split_once(": string \"") {
            Some((kind, rest)) => {
                let expected = rest
                    .rsplit_once("\", ")
                    .map_or("", |(_, expected)| expected);
                format!("{kind}: a string, {expected}")
            }
            None => message.to_owned(),
        };
        OptionsError::File {
            path: path.to_owned(),
            problem: format!("line {line}: {message}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_sets_nothing_is_found() {
        let names = [
            "BUTTER_PORT",
            "BUTTER_PROT",
            "BUTTER_LOG",
            "PORT",
            "BUTTER_API_KEYS",
            "butter_port",
        ];
        assert_eq!(unknown_variables(names.into_iter()), ["BUTTER_PROT"]);
    }

    #[test]
    fn keys_that_were_to_be_there_and_are_not_open_no_server() {
        for empty in ["", " ", ", ,"] {
            let only = |name: &str| (name == "BUTTER_API_KEYS").then(|| empty.to_owned());
            let error = Layer::from_environment(only).expect_err("no key");
            assert!(error.to_string().contains("names no key"), "{error}");
        }
    }

    #[test]
    fn an_error_in_a_file_names_its_line_and_never_quotes_a_key() {
        let path = std::env::temp_dir().join(format!("butter-{}.toml", std::process::id()));
        for text in [
            "port = 1\napi_keys = \"sk-secret\"",
            "\napi_keys = [\"sk-secret\", 1]",
        ] {
            std::fs::write(&path, text).expect("written");
            let error = read_file(&path).expect_err("a wrong type").to_string();
            assert!(
                !error.contains("secret") && !error.contains('\n'),
                "{error}"
            );
            assert!(error.contains("line 2: invalid type"), "{error}");
        }
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn a_flag_is_above_the_environment_and_that_above_the_file() {
        let file: Layer = toml::from_str(
            "port = 1\nmax_queued = 2\nmax_running = 3\napi_keys = [\"a\"]\ncors_origins = []",
        )
        .expect("a file");
        let environment = Layer::from_environment(|name| {
            let set = [
                ("BUTTER_PORT", "11"),
                ("BUTTER_MAX_QUEUED", "12"),
                ("BUTTER_API_KEYS", "b, c"),
            ];
            set.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        })
        .expect("variables");
        let flags = Layer {
            port: Some(21),
            ..Layer::default()
        };
        let options = flags.over(environment.over(file)).resolve().expect("valid");
        assert_eq!(
            (options.port, options.max_queued, options.max_running),
            (21, 12, 3)
        );
        assert_eq!(options.api_keys, ["b", "c"]);
        assert_eq!(options.host, "127.0.0.1");
    }

    #[test]
    fn wrong_settings_say_which() {
        assert!(toml::from_str::<Layer>("prot = 1").is_err());
        let wrong = Layer::from_environment(|name| (name == "BUTTER_PORT").then(|| "x".into()));
        assert!(
            wrong
                .expect_err("wrong")
                .to_string()
                .contains("BUTTER_PORT=\"x\"")
        );
        let refused = |change: fn(&mut Layer)| {
            let mut layer = Layer::default();
            change(&mut layer);
            layer.resolve().expect_err("wrong").to_string()
        };
        const FAR: Option<usize> = Some(usize::MAX);
        type Change = (&'static str, fn(&mut Layer));
        let changes: [Change; 27] = [
            ("verify_rows", |l| l.verify_rows = Some(5)),
            ("speculate_max_running", |l| {
                l.speculate_max_running = Some(4)
            }),
            ("prefill_budget", |l| l.prefill_budget = FAR),
            ("mtp", |l| (l.mtp, l.draft) = (Some(true), Some("a".into()))),
            ("verify_rows", |l| {
                (l.verify_rows, l.ngram) = (Some(1), Some(true));
            }),
            ("verify_rows", |l| {
                (l.verify_rows, l.ngram) = (Some(11), Some(true));
            }),
            ("speculate_max_running", |l| {
                (l.speculate_max_running, l.ngram) = (Some(0), Some(true));
            }),
            ("ngram", |l| {
                (l.ngram, l.draft) = (Some(true), Some("a".into()));
            }),
            ("request_timeout", |l| l.request_timeout = Some(f64::NAN)),
            ("drain_timeout", |l| l.drain_timeout = Some(-1.0)),
            ("prefix_reuse", |l| l.prefix_reuse = Some("some".into())),
            ("max_positions", |l| l.max_positions = Some(1)),
            ("max_running", |l| l.max_running = Some(0)),
            ("max_running", |l| l.max_running = FAR),
            ("cache_tokens", |l| l.cache_tokens = FAR),
            ("max_positions", |l| l.max_positions = FAR),
            ("prefill_chunk", |l| l.prefill_chunk = FAR),
            ("max_preemptions", |l| l.max_preemptions = FAR),
            ("max_queued", |l| l.max_queued = FAR),
            ("default_max_tokens", |l| l.default_max_tokens = FAR),
            ("max_connections", |l| l.max_connections = FAR),
            ("max_body_bytes", |l| l.max_body_bytes = FAR),
            ("max_prompt_bytes", |l| l.max_prompt_bytes = FAR),
            ("max_choices", |l| l.max_choices = FAR),
            ("max_stop_bytes", |l| l.max_stop_bytes = FAR),
            ("max_schema_bytes", |l| l.max_schema_bytes = FAR),
            ("max_schema_depth", |l| l.max_schema_depth = FAR),
        ];
        for (name, change) in changes {
            let message = refused(change);
            assert!(message.starts_with(&format!("{name} is ")), "{message}");
        }
    }
}
