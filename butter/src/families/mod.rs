//! The model families: what each reads from a config, and which tensors make its weights.
//!
//! One file a family. A family decides which blocks a layer has and with which numbers; the
//! blocks themselves stand once, in [`crate::config`] as data, in [`crate::weights`] as tensors
//! and in [`crate::engine`] as launches.

mod deepseek_v3;
mod falcon_h1;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod granite_hybrid;
mod lfm2;
mod llama;
mod mistral;
mod mixtral;
mod nemotron_h;
mod olmo3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;

use crate::catalogue::TensorCatalogue;
use crate::config::gguf::GgufConfig;
use crate::config::keys::Keys;
use crate::config::{ConfigFault, ModelConfig};
use crate::weights::{ModelWeights, Resolver};

/// How one family is read.
pub(crate) struct Family {
    /// Name in configs and listings.
    pub(crate) name: &'static str,
    /// `model_type` of its `config.json`.
    pub(crate) model_types: &'static [&'static str],
    /// The one entry of `architectures` that it computes.
    pub(crate) architecture: &'static str,
    /// Reads a `config.json`.
    pub(crate) from_json: fn(&Keys<'_>) -> Result<ModelConfig, ConfigFault>,
    /// `general.architecture` of its GGUF files, and what reads their keys.
    pub(crate) gguf: Option<GgufReader>,
    /// Takes its tensors.
    pub(crate) weights: fn(&mut Resolver<'_>, &ModelConfig) -> ModelWeights,
    /// What its GGUF files call tensors where that is not what the others call them:
    /// `(Hugging Face, GGUF)`, within a layer.
    pub(crate) gguf_names: &'static [(&'static str, &'static str)],
    /// What its Hugging Face checkpoints call tensors, or parts of their names, where that is not
    /// what most call them: `(usual, own)`, replaced one after another.
    pub(crate) hugging_face_names: &'static [(&'static str, &'static str)],
}

impl Family {
    /// A family without GGUF files, with the usual names of tensors, called as the first of its
    /// `model_types`.
    const fn new(
        model_types: &'static [&'static str],
        architecture: &'static str,
        from_json: fn(&Keys<'_>) -> Result<ModelConfig, ConfigFault>,
        weights: fn(&mut Resolver<'_>, &ModelConfig) -> ModelWeights,
    ) -> Self {
        Self {
            name: model_types[0],
            model_types,
            architecture,
            from_json,
            gguf: None,
            weights,
            gguf_names: &[],
            hugging_face_names: &[],
        }
    }
}

/// The tensors of a model whose layers are the usual ones.
fn standard_weights(resolver: &mut Resolver<'_>, config: &ModelConfig) -> ModelWeights {
    resolver.model(config, |resolver, prefix, layer| {
        resolver.standard_layer(prefix, layer)
    })
}

/// How a family's GGUF files are read.
pub(crate) struct GgufReader {
    /// `general.architecture`.
    pub(crate) architecture: &'static str,
    /// Reads the keys.
    pub(crate) read: fn(&GgufConfig<'_>, &TensorCatalogue) -> Result<ModelConfig, ConfigFault>,
}

/// Every family.
pub(crate) const ALL: &[&Family] = &[
    &llama::FAMILY,
    &mistral::FAMILY,
    &mixtral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &qwen3_next::FAMILY,
    &qwen3_next::QWEN3_5,
    &qwen3_next::QWEN3_5_MOE,
    &gemma3::FAMILY,
    &gemma4::FAMILY,
    &olmo3::FAMILY,
    &gpt_oss::FAMILY,
    &deepseek_v3::FAMILY,
    &granite_hybrid::FAMILY,
    &falcon_h1::FAMILY,
    &nemotron_h::FAMILY,
    &lfm2::FAMILY,
];

/// The family of a `model_type`.
pub(crate) fn by_model_type(model_type: &str) -> Option<&'static Family> {
    ALL.iter()
        .find(|family| family.model_types.contains(&model_type))
        .copied()
}

/// The family of a GGUF architecture.
pub(crate) fn by_gguf_architecture(
    architecture: &str,
) -> Option<(&'static Family, &'static GgufReader)> {
    ALL.iter().find_map(|family| {
        let reader = family.gguf.as_ref()?;
        (reader.architecture == architecture).then_some((*family, reader))
    })
}

/// The family of a config.
pub(crate) fn by_name(name: &str) -> Option<&'static Family> {
    ALL.iter().find(|family| family.name == name).copied()
}

/// For messages: every `model_type`.
pub(crate) fn supported_model_types() -> String {
    let types = ALL.iter().flat_map(|family| family.model_types);
    let quoted: Vec<String> = types.map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}

/// For messages: every GGUF architecture.
pub(crate) fn supported_gguf_architectures() -> String {
    let readers = ALL.iter().filter_map(|family| family.gguf.as_ref());
    let quoted: Vec<String> = readers
        .map(|reader| format!("{:?}", reader.architecture))
        .collect();
    quoted.join(", ")
}
