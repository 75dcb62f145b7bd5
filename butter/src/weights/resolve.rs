//! Taking the tensors of a catalogue: the blocks that families share, under Hugging Face names,
//! which are translated for GGUF files.

use std::collections::BTreeSet;

use super::*;
use crate::families::Family;

/// Missing tensors that are kept by name; a lying config can ask for millions.
const MOST_NAMED: usize = 1000;

/// GGUF names of what stands below `model.layers.N.`, without the trailing `.weight`.
const GGUF_LAYER_NAMES: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// GGUF names of the tensors outside layers.
const GGUF_GLOBAL_NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", crate::config::OUTPUT),
];

/// What a family calls the norms of a layer.
pub(crate) struct LayerNames {
    pub(crate) mixer_post_norm: Option<&'static str>,
    pub(crate) feed_forward_norm: &'static str,
    pub(crate) feed_forward_post_norm: Option<&'static str>,
}

impl LayerNames {
    /// What most families call them.
    pub(crate) const STANDARD: Self = Self {
        mixer_post_norm: None,
        feed_forward_norm: "post_attention_layernorm",
        feed_forward_post_norm: None,
    };
}

/// Takes tensors by name. A wrong one is noted and stands empty, so that all missing tensors
/// are named at once; [`Resolver::finish`] gives the error.
pub(crate) struct Resolver<'a> {
    catalogue: &'a TensorCatalogue,
    names: TensorNames,
    family: &'static Family,
    used: BTreeSet<String>,
    /// The first of them by name, all by number.
    missing: Vec<String>,
    n_missing: usize,
    fault: Option<WeightsError>,
    ignorable: Vec<fn(&str) -> bool>,
    /// Added to the weights of norms over the residual stream and over heads.
    norm_plus: f32,
    hidden_size: usize,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(
        catalogue: &'a TensorCatalogue,
        names: TensorNames,
        family: &'static Family,
    ) -> Self {
        Self {
            catalogue,
            names,
            family,
            used: BTreeSet::new(),
            missing: Vec::new(),
            n_missing: 0,
            fault: None,
            ignorable: Vec::new(),
            norm_plus: 0.0,
            hidden_size: 0,
        }
    }

    /// Which names the checkpoint uses.
    pub(crate) fn names(&self) -> TensorNames {
        self.names
    }

    /// Width of the residual stream.
    pub(crate) fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Norms over the residual stream and over heads are stored less 1.
    pub(crate) fn norms_are_stored_less_one(&mut self) {
        self.norm_plus = 1.0;
    }

    /// Tensors that the graph does not read although they may be there.
    pub(crate) fn ignore(&mut self, ignorable: fn(&str) -> bool) {
        self.ignorable.push(ignorable);
    }

    /// The whole model, its layers by `layer`.
    pub(crate) fn model(
        &mut self,
        config: &ModelConfig,
        mut layer: impl FnMut(&mut Self, &str, &LayerConfig) -> LayerWeights,
    ) -> ModelWeights {
        self.hidden_size = config.hidden_size;
        let vocabulary = [config.vocab_size, config.hidden_size];
        let embedding = self.matrix("model.embed_tokens.weight", &vocabulary);
        let final_norm = self.norm("model.norm.weight", config.hidden_size);
        let output = (!config.tied_embeddings).then(|| self.matrix("lm_head.weight", &vocabulary));
        let layers = config.layers.iter().enumerate();
        let layers = layers
            .map(|(index, config)| layer(self, &format!("model.layers.{index}."), config))
            .collect();
        ModelWeights {
            embedding,
            layers,
            final_norm,
            output,
        }
    }

    /// A layer under the names that most families use.
    pub(crate) fn standard_layer(&mut self, prefix: &str, layer: &LayerConfig) -> LayerWeights {
        self.named_layer(prefix, layer, &LayerNames::STANDARD)
    }

    /// A layer whose norms have the names given.
    pub(crate) fn named_layer(
        &mut self,
        prefix: &str,
        layer: &LayerConfig,
        names: &LayerNames,
    ) -> LayerWeights {
        let mixer = self.mixer(prefix, &layer.mixer);
        let feed_forward = self.feed_forward(prefix, &layer.feed_forward);
        self.layer_of(prefix, names, mixer, feed_forward)
    }

    /// A layer of blocks that the family took, with its norms.
    pub(crate) fn layer_of(
        &mut self,
        prefix: &str,
        names: &LayerNames,
        mixer: MixerWeights,
        feed_forward: FeedForwardWeights,
    ) -> LayerWeights {
        let hidden = self.hidden_size;
        let mut norm = |name: &str| self.norm(&format!("{prefix}{name}.weight"), hidden);
        LayerWeights {
            mixer_norm: norm("input_layernorm"),
            mixer,
            mixer_post_norm: names.mixer_post_norm.map(&mut norm),
            feed_forward_norm: norm(names.feed_forward_norm),
            feed_forward,
            feed_forward_post_norm: names.feed_forward_post_norm.map(&mut norm),
        }
    }

    /// A mixer under the names that most families use.
    pub(crate) fn mixer(&mut self, prefix: &str, mixer: &Mixer) -> MixerWeights {
        match mixer {
            Mixer::Attention(attention) => {
                let weights = self.attention(&format!("{prefix}self_attn."), attention);
                MixerWeights::Attention(Box::new(weights))
            }
            Mixer::GatedDelta(delta) => {
                let weights = self.gated_delta(&format!("{prefix}linear_attn."), delta);
                MixerWeights::GatedDelta(Box::new(weights))
            }
            Mixer::Mamba2(mamba) => {
                let weights = self.mamba2(&format!("{prefix}mamba."), mamba);
                MixerWeights::Mamba2(Box::new(weights))
            }
        }
    }

    /// A feed-forward under the names that most families use.
    pub(crate) fn feed_forward(
        &mut self,
        prefix: &str,
        feed_forward: &FeedForward,
    ) -> FeedForwardWeights {
        let prefix = format!("{prefix}mlp.");
        match feed_forward {
            FeedForward::Dense {
                intermediate_size, ..
            } => FeedForwardWeights::Dense(self.gated(&prefix, *intermediate_size)),
            FeedForward::Mixture(mixture) => {
                FeedForwardWeights::Mixture(Box::new(self.mixture(&prefix, mixture)))
            }
        }
    }

    /// Attention under `prefix`.
    pub(crate) fn attention(&mut self, prefix: &str, attention: &Attention) -> AttentionWeights {
        let hidden = self.hidden_size;
        let (query, kv, dim) = (
            attention.query_size(),
            attention.kv_size(),
            attention.head_dim,
        );
        let name = |part: &str| format!("{prefix}{part}");
        let (query_rows, gate) = if attention.output_gate {
            // Head after head, each a query and then its gate.
            let both = self.matrix(&name("q_proj.weight"), &[2 * query, hidden]);
            let half = |first: usize| {
                both.select((0..attention.head_count).map(|head| {
                    let start = (2 * head + first) * dim;
                    start..start + dim
                }))
            };
            (half(0), Some(half(1)))
        } else {
            (self.matrix(&name("q_proj.weight"), &[query, hidden]), None)
        };
        AttentionWeights {
            query: query_rows,
            gate,
            key: self.matrix(&name("k_proj.weight"), &[kv, hidden]),
            value: self.matrix(&name("v_proj.weight"), &[kv, hidden]),
            output: self.matrix(&name("o_proj.weight"), &[hidden, query]),
            query_norm: attention
                .query_key_norm
                .then(|| self.norm(&name("q_norm.weight"), dim)),
            key_norm: attention
                .query_key_norm
                .then(|| self.norm(&name("k_norm.weight"), dim)),
            biases: attention.bias.then(|| {
                [
                    ("q_proj.bias", query),
                    ("k_proj.bias", kv),
                    ("v_proj.bias", kv),
                ]
                .map(|(part, length)| self.vector(&name(part), length))
            }),
            output_bias: attention
                .output_bias
                .then(|| self.vector(&name("o_proj.bias"), hidden)),
            sinks: attention
                .sinks
                .then(|| self.vector(&name("sinks"), attention.head_count)),
        }
    }

    /// A gated feed-forward under `prefix`.
    pub(crate) fn gated(&mut self, prefix: &str, intermediate_size: usize) -> GatedWeights {
        let hidden = self.hidden_size;
        let mut take = |part: &str, shape: [usize; 2]| {
            self.matrix(&format!("{prefix}{part}_proj.weight"), &shape)
        };
        GatedWeights {
            gate: take("gate", [intermediate_size, hidden]),
            up: take("up", [intermediate_size, hidden]),
            down: take("down", [hidden, intermediate_size]),
        }
    }

    /// A mixture of experts under `prefix`, each expert in tensors of its own.
    pub(crate) fn mixture(&mut self, prefix: &str, mixture: &Mixture) -> MixtureWeights {
        let hidden = self.hidden_size;
        let experts: Vec<GatedWeights> = (0..mixture.expert_count)
            .map(|expert| {
                let prefix = format!("{prefix}experts.{expert}.");
                self.gated(&prefix, mixture.intermediate_size)
            })
            .collect();
        let all = |part: fn(&GatedWeights) -> &WeightMatrix| {
            WeightMatrix::concatenated(experts.iter().map(|expert| part(expert).clone()))
        };
        let shared = mixture.shared.as_ref();
        MixtureWeights {
            router: self.matrix(
                &format!("{prefix}gate.weight"),
                &[mixture.expert_count, hidden],
            ),
            gate: all(|expert| &expert.gate),
            up: all(|expert| &expert.up),
            down: all(|expert| &expert.down),
            shared: shared.map(|shared| {
                self.gated(&format!("{prefix}shared_expert."), shared.intermediate_size)
            }),
            shared_gate: shared
                .filter(|shared| shared.gated)
                .map(|_| self.matrix(&format!("{prefix}shared_expert_gate.weight"), &[1, hidden])),
        }
    }

    /// A gated delta net under `prefix`, its projections in tensors of their own.
    pub(crate) fn gated_delta(&mut self, prefix: &str, delta: &GatedDelta) -> GatedDeltaWeights {
        let hidden = self.hidden_size;
        let (channels, heads) = (delta.conv_channels(), delta.value_head_count);
        let name = |part: &str| format!("{prefix}{part}");
        GatedDeltaWeights {
            query_key_value: self.matrix(&name("in_proj_qkv.weight"), &[channels, hidden]),
            gate: self.matrix(&name("in_proj_z.weight"), &[delta.value_size(), hidden]),
            beta: self.matrix(&name("in_proj_b.weight"), &[heads, hidden]),
            alpha: self.matrix(&name("in_proj_a.weight"), &[heads, hidden]),
            ..self.gated_delta_rest(prefix, delta)
        }
    }

    /// What a gated delta net has beside its input projections.
    pub(crate) fn gated_delta_rest(
        &mut self,
        prefix: &str,
        delta: &GatedDelta,
    ) -> GatedDeltaWeights {
        let name = |part: &str| format!("{prefix}{part}");
        let (channels, heads) = (delta.conv_channels(), delta.value_head_count);
        let value_size = delta.value_size();
        GatedDeltaWeights {
            conv: self.matrix(&name("conv1d.weight"), &[channels, 1, delta.conv_width]),
            decay_log: self.vector(&name("A_log"), heads),
            step_bias: self.vector(&name("dt_bias"), heads),
            norm: self.vector(&name("norm.weight"), delta.value_head_dim),
            output: self.matrix(&name("out_proj.weight"), &[self.hidden_size, value_size]),
            ..GatedDeltaWeights::default()
        }
    }

    /// A Mamba-2 block under `prefix`.
    pub(crate) fn mamba2(&mut self, prefix: &str, mamba: &Mamba2) -> Mamba2Weights {
        let name = |part: &str| format!("{prefix}{part}");
        let (inner, channels, heads) =
            (mamba.inner_size(), mamba.conv_channels(), mamba.head_count);
        let all = self.matrix(
            &name("in_proj.weight"),
            &[inner + channels + heads, self.hidden_size],
        );
        let part = |start: usize, length: usize| {
            let range = start..start + length;
            all.select(std::iter::once(range))
        };
        Mamba2Weights {
            gate: part(0, inner),
            input: part(inner, channels),
            step: part(inner + channels, heads),
            conv: self.matrix(&name("conv1d.weight"), &[channels, 1, mamba.conv_width]),
            conv_bias: mamba
                .conv_bias
                .then(|| self.vector(&name("conv1d.bias"), channels)),
            decay_log: self.vector(&name("A_log"), heads),
            skip: self.vector(&name("D"), heads),
            step_bias: self.vector(&name("dt_bias"), heads),
            norm: self.vector(&name("norm.weight"), inner),
            output: self.matrix(&name("out_proj.weight"), &[self.hidden_size, inner]),
        }
    }

    /// A matrix of the shape given; empty, and noted, where the tensor is not there or wrong.
    pub(crate) fn matrix(&mut self, name: &str, shape: &[usize]) -> WeightMatrix {
        self.take(name, shape)
            .map(WeightMatrix::whole)
            .unwrap_or_default()
    }

    /// A norm's weight.
    pub(crate) fn norm(&mut self, name: &str, length: usize) -> WeightVector {
        WeightVector {
            tensor: self.take(name, &[length]),
            plus: self.norm_plus,
            length: 0,
        }
    }

    /// A vector as it is stored.
    pub(crate) fn vector(&mut self, name: &str, length: usize) -> WeightVector {
        WeightVector {
            tensor: self.take(name, &[length]),
            plus: 0.0,
            length: 0,
        }
    }

    fn take(&mut self, name: &str, expected: &[usize]) -> Option<Tensor> {
        let name = self.translated(name);
        let Some(tensor) = self.catalogue.get(&name) else {
            self.n_missing += 1;
            if self.missing.len() < MOST_NAMED {
                self.missing.push(name);
            }
            return None;
        };
        let wrong = if tensor.shape() != expected {
            Some(WeightsError::Shape {
                name: name.clone(),
                found: tensor.shape().to_vec(),
                expected: expected.to_vec(),
            })
        } else if !tensor.ty().is_supported() {
            Some(WeightsError::Type {
                name: name.clone(),
                ty: tensor.ty().name(),
            })
        } else {
            None
        };
        self.used.insert(name);
        if wrong.is_some() {
            self.fault = self.fault.take().or(wrong);
            return None;
        }
        Some(tensor.clone())
    }

    /// The name that the checkpoint uses.
    fn translated(&self, name: &str) -> String {
        if self.names == TensorNames::HuggingFace {
            return name.to_owned();
        }
        if let Some((_, gguf)) = GGUF_GLOBAL_NAMES.iter().find(|(hf, _)| *hf == name) {
            return (*gguf).to_owned();
        }
        let layer = name.strip_prefix("model.layers.");
        let translated = layer.and_then(|rest| {
            let (index, rest) = rest.split_once('.')?;
            let (part, kind) = rest.rsplit_once('.')?;
            let tables = [self.family.gguf_names, GGUF_LAYER_NAMES];
            let mut entries = tables.into_iter().flatten();
            let (_, gguf) = entries.find(|(hf, _)| *hf == part)?;
            Some(format!("blk.{index}.{gguf}.{kind}"))
        });
        translated.unwrap_or_else(|| name.to_owned())
    }

    /// The first thing that was wrong: a shape or a type, missing tensors, leftovers.
    pub(super) fn finish(self, config: &ModelConfig) -> Result<(), WeightsError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.n_missing > 0 {
            return Err(WeightsError::Missing {
                needed: self.used.len() + self.n_missing,
                count: self.n_missing,
                missing: self.missing,
            });
        }
        let ignorable = |name: &str| match self.names {
            // Read with the config, where it becomes the RoPE recipe.
            TensorNames::Gguf => name == crate::config::ROPE_FACTORS,
            TensorNames::HuggingFace => {
                // A copy of the embedding that some tools write although it is tied.
                (config.tied_embeddings && name == "lm_head.weight")
                    || self.ignorable.iter().any(|ignorable| ignorable(name))
            }
        };
        let extra: Vec<String> = self
            .catalogue
            .iter()
            .map(Tensor::name)
            .filter(|name| !self.used.contains(*name) && !ignorable(name))
            .map(quoted)
            .collect();
        if extra.is_empty() {
            Ok(())
        } else {
            Err(WeightsError::Unused {
                family: config.family,
                extra,
            })
        }
    }
}
