//! A checkpoint on disk, opened whole: config, weights, tokenizer, template.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::catalogue::TensorCatalogue;
use crate::chat::{ChatError, ChatTemplate};
use crate::config::{ConfigError, ModelConfig};
use crate::gguf::{GgufError, GgufFile};
use crate::hub;
use crate::json::unique_object;
use crate::quote::quoted;
use crate::safetensors::{self, SafetensorsError};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{ModelWeights, TensorNames, WeightsError};

/// An opened checkpoint. Weights are mapped, so opening costs no copy of them.
#[derive(Debug)]
pub struct Checkpoint {
    /// What was opened.
    pub path: PathBuf,
    /// The model's configuration.
    pub config: ModelConfig,
    /// The weights by role.
    pub weights: ModelWeights,
    /// All tensors by name.
    pub catalogue: TensorCatalogue,
    /// The tokenizer, where the checkpoint has one that Butter reads.
    pub tokenizer: Option<Tokenizer>,
    /// Why there is none.
    pub no_tokenizer: Option<String>,
    /// Tokens that end an answer.
    pub end_of_generation: Vec<u32>,
    /// The chat template's text, where the checkpoint has one.
    pub chat_template: Option<String>,
}

/// A checkpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A GGUF file is wrong.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A safetensors file is wrong.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The configuration is wrong or not supported.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tokenizer is wrong or not supported.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tensors do not make the model.
    #[error("{}: {fault}", path.display())]
    Weights {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong.
        fault: WeightsError,
    },
    /// The chat template does not compile.
    #[error("{}: {fault}", path.display())]
    Template {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong.
        fault: ChatError,
    },
    /// The path holds no checkpoint, or an incomplete one.
    #[error("{}: {problem}", path.display())]
    Files {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Which kind of checkpoint a path holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckpointKind {
    /// One GGUF file.
    Gguf(PathBuf),
    /// A folder with `config.json` and safetensors files.
    HuggingFace(PathBuf),
}

impl CheckpointKind {
    /// Looks at a path: a file is read as GGUF; a folder is a Hugging Face
    /// checkpoint if it has a `config.json`, else it must hold one `.gguf` file.
    pub fn detect(path: &Path) -> Result<Self, LoadError> {
        let wrong = |problem: String| LoadError::Files {
            path: path.to_owned(),
            problem,
        };
        let metadata = std::fs::metadata(path).map_err(|error| {
            wrong(match hub::named(path) {
                Some(model) => format!(
                    "cannot be read: {error}; `butter pull {model}` fetches a model of that name"
                ),
                None => format!("cannot be read: {error}"),
            })
        })?;
        if metadata.is_file() {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if matches!(extension, Some("safetensors" | "json" | "jinja")) {
                return Err(wrong(
                    "is a part of a checkpoint: name its folder".to_owned(),
                ));
            }
            return Ok(Self::Gguf(path.to_owned()));
        }
        if !metadata.is_dir() {
            return Err(wrong("is neither a file nor a folder".to_owned()));
        }
        if path.join("config.json").is_file() {
            return Ok(Self::HuggingFace(path.to_owned()));
        }
        let entries =
            std::fs::read_dir(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|file| {
                file.extension()
                    .is_some_and(|extension| extension == "gguf")
            })
            .collect();
        files.sort();
        match files.as_slice() {
            [file] => Ok(Self::Gguf(file.clone())),
            [] => Err(wrong(
                "neither config.json nor a .gguf file is in this folder".to_owned(),
            )),
            files => Err(wrong(format!(
                "{} .gguf files are in this folder, name one",
                files.len()
            ))),
        }
    }
}

impl Checkpoint {
    /// Opens the checkpoint at a path.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        match CheckpointKind::detect(path)? {
            CheckpointKind::Gguf(file) => Self::open_gguf(&file),
            CheckpointKind::HuggingFace(folder) => Self::open_hugging_face(&folder),
        }
    }

    fn open_gguf(path: &Path) -> Result<Self, LoadError> {
        let file = GgufFile::open(path)?;
        let catalogue = TensorCatalogue::from_gguf(&file);
        let config = ModelConfig::from_gguf(&file, &catalogue)?;
        // A model whose tokenizer is of a kind that is not read still answers to ids.
        let (tokenizer, no_tokenizer) = match file.header().get("tokenizer.ggml.model") {
            None => (None, Some("the checkpoint has no tokenizer".to_owned())),
            Some(_) => match Tokenizer::from_gguf(&file) {
                Ok(tokenizer) => (Some(tokenizer), None),
                Err(error) if error.is_unsupported_kind() => (None, Some(error.to_string())),
                Err(error) => return Err(error.into()),
            },
        };
        let chat_template = match file.header().get("tokenizer.chat_template") {
            None => None,
            Some(value) => Some(value.as_str().map(str::to_owned).ok_or_else(|| {
                let problem = format!(
                    "tokenizer.chat_template is {}, expected a string",
                    value.describe()
                );
                LoadError::Files {
                    path: path.to_owned(),
                    problem,
                }
            })?),
        };
        let end_of_generation = tokenizer
            .as_ref()
            .map(|t| t.end_of_generation().to_vec())
            .unwrap_or_default();
        let parts = Parts {
            catalogue,
            config,
            tokenizer,
            no_tokenizer,
            chat_template,
            end_of_generation,
        };
        Self::assemble(path, TensorNames::Gguf, parts)
    }

    fn open_hugging_face(folder: &Path) -> Result<Self, LoadError> {
        let config_path = folder.join("config.json");
        let config = ModelConfig::from_config_json(&config_path)?;
        let mut catalogue = TensorCatalogue::default();
        for shard in safetensors_files(folder)? {
            safetensors::read_into(&shard, &mut catalogue)?;
        }
        check_index(folder, &catalogue)?;

        let settings = optional_json(&folder.join("tokenizer_config.json"))?;
        let special = |key: &str| {
            let token = settings.as_ref()?.get(key)?;
            token
                .as_str()
                .or_else(|| token.get("content")?.as_str())
                .map(str::to_owned)
        };
        let tokenizer_path = folder.join("tokenizer.json");
        let tokenizer = if tokenizer_path.is_file() {
            let (bos, eos) = (special("bos_token"), special("eos_token"));
            Some(Tokenizer::from_tokenizer_json(
                &tokenizer_path,
                bos.as_deref(),
                eos.as_deref(),
            )?)
        } else {
            None
        };
        let chat_template = match std::fs::read_to_string(folder.join("chat_template.jinja")) {
            Ok(template) => Some(template),
            Err(_) => settings.as_ref().and_then(template_of_settings),
        };

        // The generation settings win over the config, as in transformers.
        let mut end_of_generation = Vec::new();
        for file in ["generation_config.json", "config.json"] {
            if end_of_generation.is_empty()
                && let Some(json) = optional_json(&folder.join(file))?
            {
                let found = token_ids(json.get("eos_token_id"), config.vocab_size);
                end_of_generation = found.map_err(|problem| LoadError::Files {
                    path: folder.join(file),
                    problem: format!("eos_token_id {problem}"),
                })?;
            }
        }
        if end_of_generation.is_empty() {
            end_of_generation = tokenizer
                .as_ref()
                .map(|t| t.end_of_generation().to_vec())
                .unwrap_or_default();
        }
        let no_tokenizer = tokenizer
            .is_none()
            .then(|| "the checkpoint has no tokenizer.json".to_owned());
        let parts = Parts {
            catalogue,
            config,
            tokenizer,
            no_tokenizer,
            chat_template,
            end_of_generation,
        };
        Self::assemble(folder, TensorNames::HuggingFace, parts)
    }

    fn assemble(path: &Path, names: TensorNames, parts: Parts) -> Result<Self, LoadError> {
        let Parts {
            catalogue,
            config,
            mut tokenizer,
            no_tokenizer,
            chat_template,
            end_of_generation,
        } = parts;
        let weights = ModelWeights::resolve(&catalogue, &config, names).map_err(|fault| {
            LoadError::Weights {
                path: path.to_owned(),
                fault,
            }
        })?;
        if let Some(tokenizer) = &mut tokenizer {
            if tokenizer.vocab_size() > config.vocab_size {
                let problem = format!(
                    "the tokenizer has {} tokens, the embedding {} rows",
                    tokenizer.vocab_size(),
                    config.vocab_size
                );
                return Err(LoadError::Files {
                    path: path.to_owned(),
                    problem,
                });
            }
            if let Some(template) = &chat_template {
                tokenizer
                    .protect_template_tokens(template)
                    .map_err(|fault| TokenizerError {
                        path: path.to_owned(),
                        fault,
                    })?;
            }
        }
        Ok(Self {
            path: path.to_owned(),
            config,
            weights,
            catalogue,
            tokenizer,
            no_tokenizer,
            end_of_generation,
            chat_template,
        })
    }

    /// Compiles the chat template.
    pub fn compile_chat_template(&self) -> Result<ChatTemplate, LoadError> {
        let Some(source) = &self.chat_template else {
            return Err(LoadError::Files {
                path: self.path.clone(),
                problem: "the checkpoint has no chat template: `butter generate --prompt` continues a text without one".to_owned(),
            });
        };
        let text = |id: fn(&Tokenizer) -> Option<u32>| {
            let tokenizer = self.tokenizer.as_ref()?;
            tokenizer.token(id(tokenizer)?)
        };
        ChatTemplate::new(source, text(Tokenizer::bos), text(Tokenizer::eos)).map_err(|fault| {
            LoadError::Template {
                path: self.path.clone(),
                fault,
            }
        })
    }
}

struct Parts {
    catalogue: TensorCatalogue,
    config: ModelConfig,
    tokenizer: Option<Tokenizer>,
    no_tokenizer: Option<String>,
    chat_template: Option<String>,
    end_of_generation: Vec<u32>,
}

/// The file that says which shard holds which tensor.
const INDEX: &str = "model.safetensors.index.json";

/// The weight files of a folder: the shards that an index names, or the one file.
pub(crate) fn safetensors_files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let index_path = folder.join(INDEX);
    let wrong = |path: &Path, problem: String| LoadError::Files {
        path: path.to_owned(),
        problem,
    };
    let Some(index) = optional_json(&index_path)? else {
        let single = folder.join("model.safetensors");
        if single.is_file() {
            return Ok(vec![single]);
        }
        let problem = "neither model.safetensors nor model.safetensors.index.json is there";
        return Err(wrong(folder, problem.to_owned()));
    };
    let Some(map) = index.get("weight_map").and_then(Json::as_object) else {
        return Err(wrong(
            &index_path,
            "there is no object `weight_map`".to_owned(),
        ));
    };
    if map.is_empty() {
        return Err(wrong(&index_path, "`weight_map` is empty".to_owned()));
    }
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        match file.as_str() {
            Some(name)
                if !name.is_empty() && Path::new(name).file_name() == Some(name.as_ref()) =>
            {
                names.insert(name);
            }
            _ => {
                let problem = format!(
                    "weight_map gives tensor {} the file {}, which is not a file name",
                    quoted(tensor),
                    quoted(&file.to_string())
                );
                return Err(wrong(&index_path, problem));
            }
        }
    }
    let (present, missing): (Vec<&str>, Vec<&str>) = names
        .into_iter()
        .partition(|name| folder.join(name).is_file());
    if !missing.is_empty() {
        let list: Vec<String> = missing.iter().map(|name| quoted(name)).collect();
        return Err(wrong(
            folder,
            format!("missing shards: {}", list.join(", ")),
        ));
    }
    Ok(present.into_iter().map(|name| folder.join(name)).collect())
}

/// An index that names a tensor which no shard has belongs to other shards.
fn check_index(folder: &Path, catalogue: &TensorCatalogue) -> Result<(), LoadError> {
    let path = folder.join(INDEX);
    let index = optional_json(&path)?;
    let map = index
        .as_ref()
        .and_then(|index| index.get("weight_map")?.as_object());
    let absent = |name: &&String| catalogue.get(name).is_none();
    match map.and_then(|map| map.keys().find(absent)) {
        Some(name) => Err(LoadError::Files {
            path,
            problem: format!("weight_map names tensor {}, no shard has it", quoted(name)),
        }),
        None => Ok(()),
    }
}

/// A JSON object that may be absent; one that is there and wrong is an error.
fn optional_json(path: &Path) -> Result<Option<serde_json::Map<String, Json>>, LoadError> {
    let wrong = |problem: String| LoadError::Files {
        path: path.to_owned(),
        problem,
    };
    match std::fs::read(path) {
        Ok(bytes) => unique_object(&bytes)
            .map(Some)
            .map_err(|error| wrong(format!("is not a JSON object: {error}"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(wrong(format!("cannot be read: {error}"))),
    }
}

/// `chat_template` of `tokenizer_config.json`: a string, or a list of named ones.
fn template_of_settings(settings: &serde_json::Map<String, Json>) -> Option<String> {
    match settings.get("chat_template")? {
        Json::String(template) => Some(template.clone()),
        Json::Array(templates) => templates
            .iter()
            .find(|template| template.get("name").and_then(Json::as_str) == Some("default"))
            .and_then(|template| template.get("template")?.as_str())
            .map(str::to_owned),
        _ => None,
    }
}

/// A token's id, a list of such, or nothing.
fn token_ids(json: Option<&Json>, vocab_size: usize) -> Result<Vec<u32>, String> {
    let id = |json: &Json| {
        let id = json.as_u64().filter(|&id| id < vocab_size as u64);
        id.and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
            format!(
                "is {}, expected ids below {vocab_size}",
                quoted(&json.to_string())
            )
        })
    };
    match json {
        Some(Json::Array(ids)) => ids.iter().map(id).collect(),
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(single) => Ok(vec![id(single)?]),
    }
}
