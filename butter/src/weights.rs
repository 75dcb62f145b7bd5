//! The tensors of a Llama by role, whatever the checkpoint calls them.
//!
//! [`LlamaWeights::resolve`] consumes every tensor of a catalogue or lists it as
//! ignorable; leftovers, missing tensors and wrong shapes are load errors, the
//! missing ones all named at once.

use std::collections::BTreeSet;

use crate::catalogue::{Tensor, TensorCatalogue};
use crate::config::LlamaConfig;
use crate::quote::quoted;

/// Which names a checkpoint uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorNames {
    /// `token_embd.weight`, `blk.0.attn_q.weight`, …
    Gguf,
    /// `model.embed_tokens.weight`, `model.layers.0.self_attn.q_proj.weight`, …
    HuggingFace,
}

/// All weights of a Llama. Shapes are `[outputs, inputs]`, as stored.
#[derive(Clone, Debug)]
pub struct LlamaWeights {
    /// `[vocab_size, hidden_size]`.
    pub embedding: Tensor,
    /// The blocks in order.
    pub layers: Vec<LlamaLayer>,
    /// `[hidden_size]`.
    pub final_norm: Tensor,
    /// `[vocab_size, hidden_size]`; the embedding itself where it is tied.
    pub output: Tensor,
}

/// The weights of one block.
#[derive(Clone, Debug)]
pub struct LlamaLayer {
    /// `[hidden_size]`, before attention.
    pub attention_norm: Tensor,
    /// `[head_count * head_dim, hidden_size]`. Its rows follow the config's
    /// [`RopeLayout`](crate::rope::RopeLayout).
    pub query: Tensor,
    /// `[kv_head_count * head_dim, hidden_size]`, rows as those of `query`.
    pub key: Tensor,
    /// `[kv_head_count * head_dim, hidden_size]`.
    pub value: Tensor,
    /// `[hidden_size, head_count * head_dim]`.
    pub attention_output: Tensor,
    /// `[hidden_size]`, before the feed-forward.
    pub feed_forward_norm: Tensor,
    /// `[intermediate_size, hidden_size]`.
    pub gate: Tensor,
    /// `[intermediate_size, hidden_size]`.
    pub up: Tensor,
    /// `[hidden_size, intermediate_size]`.
    pub down: Tensor,
}

/// The tensors of a checkpoint do not make the model that its config describes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WeightsError {
    /// Tensors that the graph needs and the checkpoint lacks.
    #[error("{} of {needed} tensors are missing: {}", missing.len(), first(missing))]
    Missing {
        /// All missing names.
        missing: Vec<String>,
        /// How many the graph needs.
        needed: usize,
    },
    /// Tensors that the graph does not use and that are not known to be ignorable.
    #[error("{} tensors are not part of a Llama of this config: {}", extra.len(), first(extra))]
    Unused {
        /// All their names, quoted.
        extra: Vec<String>,
    },
    /// A shape that is not the config's.
    #[error("tensor {name} has shape {found:?}, the config asks for {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that follows from the config.
        expected: Vec<usize>,
    },
    /// A storage type that is not decoded.
    #[error("tensor {name} is stored as {ty}, which is not supported yet")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        ty: &'static str,
    },
}

/// The first few names, and how many more there are.
fn first(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let mut text = names
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

impl LlamaWeights {
    /// Finds each weight in the catalogue and checks shape and type.
    pub fn resolve(
        catalogue: &TensorCatalogue,
        config: &LlamaConfig,
        names: TensorNames,
    ) -> Result<Self, WeightsError> {
        let mut resolver = Resolver {
            catalogue,
            used: BTreeSet::new(),
            missing: Vec::new(),
        };
        let (hidden, feed_forward) = (config.hidden_size, config.intermediate_size);
        let (query, kv) = (config.query_size(), config.kv_size());
        let global = global_names(names);

        let embedding = resolver.take(global.embedding, &[config.vocab_size, hidden])?;
        let final_norm = resolver.take(global.final_norm, &[hidden])?;
        let output = if config.tied_embeddings {
            embedding.clone()
        } else {
            resolver.take(global.output, &[config.vocab_size, hidden])?
        };
        let mut layers = Vec::new();
        for index in 0..config.layer_count {
            let name = |role: LayerRole| layer_name(names, index, role);
            let layer = (
                resolver.take(&name(LayerRole::AttentionNorm), &[hidden])?,
                resolver.take(&name(LayerRole::Query), &[query, hidden])?,
                resolver.take(&name(LayerRole::Key), &[kv, hidden])?,
                resolver.take(&name(LayerRole::Value), &[kv, hidden])?,
                resolver.take(&name(LayerRole::AttentionOutput), &[hidden, query])?,
                resolver.take(&name(LayerRole::FeedForwardNorm), &[hidden])?,
                resolver.take(&name(LayerRole::Gate), &[feed_forward, hidden])?,
                resolver.take(&name(LayerRole::Up), &[feed_forward, hidden])?,
                resolver.take(&name(LayerRole::Down), &[hidden, feed_forward])?,
            );
            if let (
                Some(attention_norm),
                Some(query),
                Some(key),
                Some(value),
                Some(attention_output),
                Some(feed_forward_norm),
                Some(gate),
                Some(up),
                Some(down),
            ) = layer
            {
                layers.push(LlamaLayer {
                    attention_norm,
                    query,
                    key,
                    value,
                    attention_output,
                    feed_forward_norm,
                    gate,
                    up,
                    down,
                });
            }
        }

        match (embedding, final_norm, output) {
            (Some(embedding), Some(final_norm), Some(output)) if resolver.missing.is_empty() => {
                resolver.finish(names, config)?;
                Ok(Self {
                    embedding,
                    layers,
                    final_norm,
                    output,
                })
            }
            _ => Err(WeightsError::Missing {
                needed: resolver.used.len() + resolver.missing.len(),
                missing: resolver.missing,
            }),
        }
    }
}

struct Resolver<'a> {
    catalogue: &'a TensorCatalogue,
    used: BTreeSet<String>,
    missing: Vec<String>,
}

impl Resolver<'_> {
    /// The tensor, or `None` with its name noted as missing.
    fn take(&mut self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightsError> {
        let Some(tensor) = self.catalogue.get(name) else {
            self.missing.push(name.to_owned());
            return Ok(None);
        };
        self.used.insert(name.to_owned());
        if tensor.shape() != expected {
            return Err(WeightsError::Shape {
                name: name.to_owned(),
                found: tensor.shape().to_vec(),
                expected: expected.to_vec(),
            });
        }
        if !tensor.ty().is_supported() {
            return Err(WeightsError::Type {
                name: name.to_owned(),
                ty: tensor.ty().name(),
            });
        }
        Ok(Some(tensor.clone()))
    }

    fn finish(self, names: TensorNames, config: &LlamaConfig) -> Result<(), WeightsError> {
        let extra: Vec<String> = self
            .catalogue
            .iter()
            .map(Tensor::name)
            .filter(|name| !self.used.contains(*name) && !is_ignorable(names, config, name))
            .map(quoted)
            .collect();
        if extra.is_empty() {
            Ok(())
        } else {
            Err(WeightsError::Unused { extra })
        }
    }
}

/// Tensors that a Llama may carry and that the graph does not read.
fn is_ignorable(names: TensorNames, config: &LlamaConfig, name: &str) -> bool {
    match names {
        // Read with the config, where it becomes the RoPE recipe.
        TensorNames::Gguf => name == crate::config::ROPE_FACTORS,
        TensorNames::HuggingFace => {
            // A copy of the embedding that some tools write although it is tied.
            (config.tied_embeddings && name == global_names(names).output)
                // Old files store the plain frequencies, which follow from the config.
                || (name.starts_with("model.layers.")
                    && name.ends_with(".self_attn.rotary_emb.inv_freq"))
        }
    }
}

struct GlobalNames {
    embedding: &'static str,
    final_norm: &'static str,
    output: &'static str,
}

fn global_names(names: TensorNames) -> GlobalNames {
    match names {
        TensorNames::Gguf => GlobalNames {
            embedding: "token_embd.weight",
            final_norm: "output_norm.weight",
            output: crate::config::OUTPUT,
        },
        TensorNames::HuggingFace => GlobalNames {
            embedding: "model.embed_tokens.weight",
            final_norm: "model.norm.weight",
            output: "lm_head.weight",
        },
    }
}

#[derive(Clone, Copy)]
enum LayerRole {
    AttentionNorm,
    Query,
    Key,
    Value,
    AttentionOutput,
    FeedForwardNorm,
    Gate,
    Up,
    Down,
}

fn layer_name(names: TensorNames, index: usize, role: LayerRole) -> String {
    use LayerRole::*;
    match names {
        TensorNames::Gguf => {
            let part = match role {
                AttentionNorm => "attn_norm",
                Query => "attn_q",
                Key => "attn_k",
                Value => "attn_v",
                AttentionOutput => "attn_output",
                FeedForwardNorm => "ffn_norm",
                Gate => "ffn_gate",
                Up => "ffn_up",
                Down => "ffn_down",
            };
            format!("blk.{index}.{part}.weight")
        }
        TensorNames::HuggingFace => {
            let part = match role {
                AttentionNorm => "input_layernorm",
                Query => "self_attn.q_proj",
                Key => "self_attn.k_proj",
                Value => "self_attn.v_proj",
                AttentionOutput => "self_attn.o_proj",
                FeedForwardNorm => "post_attention_layernorm",
                Gate => "mlp.gate_proj",
                Up => "mlp.up_proj",
                Down => "mlp.down_proj",
            };
            format!("model.layers.{index}.{part}.weight")
        }
    }
}
