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
    pub(crate) mixer_norm: Option<&'static str>,
    pub(crate) mixer_post_norm: Option<&'static str>,
    pub(crate) feed_forward_norm: Option<&'static str>,
    pub(crate) feed_forward_post_norm: Option<&'static str>,
}

impl LayerNames {
    /// What most families call them.
    pub(crate) const STANDARD: Self = Self {
        mixer_norm: Some("input_layernorm"),
        mixer_post_norm: None,
        feed_forward_norm: Some("post_attention_layernorm"),
        feed_forward_post_norm: None,
    };
}

/// What a family calls the tensors of its multi-token head.
pub(crate) struct HeadNames {
    pub(crate) embedding_norm: String,
    pub(crate) hidden_norm: String,
    pub(crate) join: String,
    /// What the names in its layer begin with.
    pub(crate) layer: String,
    pub(crate) norm: String,
    /// Copies of the model's own tensors, and what they are copies of.
    pub(crate) copies: Vec<(String, &'static str)>,
}

/// What a text model's tensors begin with inside a model that sees or hears: the first stands for
/// `model.`, the second before all names.
const TEXT_PREFIXES: [&str; 2] = ["model.language_model.", "language_model."];

/// What tensors of the other parts of such a model begin with.
const OTHER_PARTS: &[&str] = &[
    "model.visual.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.embed_vision.",
    "model.audio_tower.",
    "model.embed_audio.",
    "visual.",
    "vision_tower.",
    "multi_modal_projector.",
];

/// Whether a tensor may be there although the graph does not read it.
type Ignorable = Box<dyn Fn(&str) -> bool>;

/// Takes tensors by name. A wrong one is noted and stands empty, so that all missing tensors
/// are named at once; [`Resolver::finish`] gives the error.
pub(crate) struct Resolver<'a> {
    catalogue: &'a TensorCatalogue,
    names: TensorNames,
    /// What the text model's tensors begin with, where it is a part of another.
    text_prefix: Option<&'static str>,
    family: &'static Family,
    used: BTreeSet<String>,
    /// The first of them by name, all by number.
    missing: Vec<String>,
    n_missing: usize,
    fault: Option<WeightsError>,
    ignorable: Vec<Ignorable>,
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
        let begins = |prefix: &&str| {
            names == TensorNames::HuggingFace
                && catalogue
                    .iter()
                    .any(|tensor| tensor.name().starts_with(*prefix))
        };
        Self {
            catalogue,
            names,
            text_prefix: TEXT_PREFIXES.into_iter().find(begins),
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
    pub(crate) fn ignore(&mut self, ignorable: impl Fn(&str) -> bool + 'static) {
        self.ignorable.push(Box::new(ignorable));
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
        if config.tied_embeddings {
            self.check_tied();
        }
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
            per_layer: None,
            multi_token_head: None,
        }
    }

    /// The multi-token head, if the checkpoint has one: then all of it.
    pub(crate) fn multi_token_head(
        &mut self,
        config: &ModelConfig,
        names: &HeadNames,
    ) -> Option<Box<MultiTokenHeadWeights>> {
        let head = config.multi_token_head.as_ref()?;
        self.catalogue.get(&self.translated(&names.join))?;
        let hidden = config.hidden_size;
        for (copy, shared) in &names.copies {
            self.check_copy(copy, shared);
        }
        Some(Box::new(MultiTokenHeadWeights {
            embedding_norm: self.norm(&names.embedding_norm, hidden),
            hidden_norm: self.norm(&names.hidden_norm, hidden),
            join: self.matrix(&names.join, &[hidden, 2 * hidden]),
            layer: self.standard_layer(&names.layer, &head.layer),
            norm: self.norm(&names.norm, hidden),
        }))
    }

    /// A tensor that is stored again must be the same.
    fn check_copy(&mut self, copy: &str, shared: &str) {
        let [copy, shared] = [copy, shared].map(|name| self.translated(name));
        if let Some(false) = self.are_equal(&copy, &shared) {
            let fault = WeightsError::HeadDiffers { copy, shared };
            self.fault = self.fault.take().or(Some(fault));
        } else {
            self.used.insert(copy);
        }
    }

    /// Whether two tensors hold the same; `None` where one is not there.
    fn are_equal(&self, first: &str, second: &str) -> Option<bool> {
        let (first, second) = (self.catalogue.get(first)?, self.catalogue.get(second)?);
        Some(
            first.ty() == second.ty()
                && first.shape() == second.shape()
                && first.bytes() == second.bytes(),
        )
    }

    /// A tied output projection that is stored as well, as some tools do, must be the embedding
    /// again: of two different tensors, one would be left out without a word.
    fn check_tied(&mut self) {
        let [head, embedding] =
            ["lm_head.weight", "model.embed_tokens.weight"].map(|name| self.translated(name));
        let Some(equal) = self.are_equal(&head, &embedding) else {
            return;
        };
        if equal {
            self.used.insert(head);
        } else {
            self.fault = self
                .fault
                .take()
                .or(Some(WeightsError::TiedDiffers { head, embedding }));
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
        let has_mixer = !matches!(mixer, MixerWeights::Absent);
        let has_feed_forward = !matches!(feed_forward, FeedForwardWeights::Absent);
        let mut norm = |name: &str| self.norm(&format!("{prefix}{name}.weight"), hidden);
        LayerWeights {
            mixer_norm: names.mixer_norm.filter(|_| has_mixer).map(&mut norm),
            mixer,
            mixer_post_norm: names.mixer_post_norm.map(&mut norm),
            feed_forward_norm: names
                .feed_forward_norm
                .filter(|_| has_feed_forward)
                .map(&mut norm),
            feed_forward,
            feed_forward_post_norm: names.feed_forward_post_norm.map(&mut norm),
            inputs: None,
            output_scale: None,
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
            Mixer::Latent(latent) => {
                let weights = self.latent(&format!("{prefix}self_attn."), latent);
                MixerWeights::Latent(Box::new(weights))
            }
            Mixer::ShortConvolution(convolution) => {
                let weights = self.short_convolution(&format!("{prefix}conv."), convolution);
                MixerWeights::ShortConvolution(Box::new(weights))
            }
            Mixer::Parallel(both) => MixerWeights::Parallel(Box::new((
                self.attention(&format!("{prefix}self_attn."), &both.0),
                self.mamba2(&format!("{prefix}mamba."), &both.1),
            ))),
            Mixer::Absent => MixerWeights::Absent,
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
            FeedForward::Plain {
                intermediate_size, ..
            } => FeedForwardWeights::Dense(self.plain(&prefix, *intermediate_size)),
            FeedForward::Mixture(mixture) => {
                FeedForwardWeights::Mixture(Box::new(self.mixture(&prefix, mixture)))
            }
            FeedForward::Absent => FeedForwardWeights::Absent,
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
        let own = attention.shares_cache_of.is_none();
        let mut key_or_value = |part: &str, has: bool| {
            let matrix = has.then(|| self.matrix(&name(part), &[kv, hidden]));
            matrix.unwrap_or_default()
        };
        let key = key_or_value("k_proj.weight", own);
        let value = key_or_value("v_proj.weight", own && !attention.value_is_key);
        let (query_length, key_length) = match attention.norm_over_heads {
            true => (query, kv),
            false => (dim, dim),
        };
        AttentionWeights {
            query: query_rows,
            gate,
            key,
            value,
            output: self.matrix(&name("o_proj.weight"), &[hidden, query]),
            query_norm: attention
                .query_key_norm
                .then(|| self.norm(&name("q_norm.weight"), query_length)),
            key_norm: (attention.query_key_norm && own)
                .then(|| self.norm(&name("k_norm.weight"), key_length)),
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

    /// A feed-forward without a gate under `prefix`.
    pub(crate) fn plain(&mut self, prefix: &str, intermediate_size: usize) -> GatedWeights {
        let hidden = self.hidden_size;
        GatedWeights {
            up: self.matrix(
                &format!("{prefix}up_proj.weight"),
                &[intermediate_size, hidden],
            ),
            down: self.matrix(
                &format!("{prefix}down_proj.weight"),
                &[hidden, intermediate_size],
            ),
            ..GatedWeights::default()
        }
    }

    /// An expert with or without a gate.
    fn expert(&mut self, prefix: &str, gated: bool, size: usize) -> GatedWeights {
        match gated {
            true => self.gated(prefix, size),
            false => self.plain(prefix, size),
        }
    }

    /// The experts of a mixture, one after another, each in tensors of its own or all in two.
    fn experts(&mut self, prefix: &str, mixture: &Mixture) -> GatedWeights {
        let hidden = self.hidden_size;
        let (count, size) = (mixture.expert_count, mixture.intermediate_size);
        let fused = format!("{prefix}experts.gate_up_proj");
        if mixture.gated && self.catalogue.get(&self.translated(&fused)).is_some() {
            let both = self.matrix(&fused, &[count, 2 * size, hidden]);
            let half = |first: usize| {
                both.select((0..count).map(move |expert| {
                    let start = (2 * expert + first) * size;
                    start..start + size
                }))
            };
            let down = format!("{prefix}experts.down_proj");
            return GatedWeights {
                gate: half(0),
                up: half(1),
                down: self.matrix(&down, &[count, hidden, size]),
            };
        }
        let experts = (0..count).map(|expert| {
            let prefix = format!("{prefix}experts.{expert}.");
            self.expert(&prefix, mixture.gated, size)
        });
        let experts: Vec<GatedWeights> = experts.collect();
        let all = |part: fn(&GatedWeights) -> &WeightMatrix| {
            WeightMatrix::concatenated(experts.iter().map(|expert| part(expert).clone()))
        };
        GatedWeights {
            gate: all(|expert| &expert.gate),
            up: all(|expert| &expert.up),
            down: all(|expert| &expert.down),
        }
    }

    /// A mixture of experts under `prefix`.
    pub(crate) fn mixture(&mut self, prefix: &str, mixture: &Mixture) -> MixtureWeights {
        let hidden = self.hidden_size;
        let experts = self.experts(prefix, mixture);
        let shared = mixture.shared.as_ref();
        MixtureWeights {
            router: self.matrix(
                &format!("{prefix}gate.weight"),
                &[mixture.expert_count, hidden],
            ),
            gate: experts.gate,
            up: experts.up,
            down: experts.down,
            shared: shared.map(|shared| {
                let prefix = format!("{prefix}shared_expert.");
                self.expert(&prefix, mixture.gated, shared.intermediate_size)
            }),
            shared_gate: shared
                .filter(|shared| shared.gated)
                .map(|_| self.matrix(&format!("{prefix}shared_expert_gate.weight"), &[1, hidden])),
            router_bias: mixture
                .router_bias
                .then(|| self.vector(&format!("{prefix}gate.bias"), mixture.expert_count)),
            score_bias: mixture.score_bias.then(|| {
                let name = format!("{prefix}gate.e_score_correction_bias");
                self.vector(&name, mixture.expert_count)
            }),
            biases: None,
        }
    }

    /// Attention over latents under `prefix`.
    fn latent(&mut self, prefix: &str, latent: &LatentAttention) -> LatentWeights {
        let hidden = self.hidden_size;
        let (heads, keys, rotated) = (latent.head_count, latent.key_dim, latent.rotary_dim);
        let name = |part: &str| format!("{prefix}{part}");
        // Head after head, the first part of each and then the second.
        let halves = |both: &WeightMatrix, first: usize, second: usize| {
            let part = |start: usize, length: usize| {
                both.select((0..heads).map(|head| {
                    let start = head * (first + second) + start;
                    start..start + length
                }))
            };
            (part(0, first), part(first, second))
        };
        let (query_down, query) = match latent.query_rank {
            Some(rank) => (
                Some((
                    self.matrix(&name("q_a_proj.weight"), &[rank, hidden]),
                    self.norm(&name("q_a_layernorm.weight"), rank),
                )),
                self.matrix(&name("q_b_proj.weight"), &[heads * (keys + rotated), rank]),
            ),
            None => (
                None,
                self.matrix(&name("q_proj.weight"), &[heads * (keys + rotated), hidden]),
            ),
        };
        let (query, query_rotated) = halves(&query, keys, rotated);
        let size = latent.latent_size;
        let down = self.matrix(
            &name("kv_a_proj_with_mqa.weight"),
            &[size + rotated, hidden],
        );
        let up = [heads * (keys + latent.value_dim), size];
        let up = self.matrix(&name("kv_b_proj.weight"), &up);
        let (key, value) = halves(&up, keys, latent.value_dim);
        LatentWeights {
            query_down,
            query,
            query_rotated,
            latent: down.select(std::iter::once(0..size)),
            latent_norm: self.norm(&name("kv_a_layernorm.weight"), size),
            key_rotated: down.select(std::iter::once(size..size + rotated)),
            key,
            value,
            output: self.matrix(&name("o_proj.weight"), &[hidden, heads * latent.value_dim]),
        }
    }

    /// A gated convolution under `prefix`.
    fn short_convolution(
        &mut self,
        prefix: &str,
        convolution: &ShortConvolution,
    ) -> ShortConvolutionWeights {
        let (hidden, channels) = (self.hidden_size, convolution.channels);
        let name = |part: &str| format!("{prefix}{part}.weight");
        let all = self.matrix(&name("in_proj"), &[3 * channels, hidden]);
        let part =
            |index: usize| all.select(std::iter::once(index * channels..(index + 1) * channels));
        ShortConvolutionWeights {
            before: part(0),
            after: part(1),
            input: part(2),
            conv: self.matrix(&name("conv"), &[channels, 1, convolution.width]),
            output: self.matrix(&name("out_proj"), &[hidden, channels]),
        }
    }

    /// The experts `[experts, rows, columns]` of four bits under `name`, in two tensors.
    pub(crate) fn mxfp4(&mut self, name: &str, shape: [usize; 3]) -> WeightMatrix {
        let [experts, rows, columns] = shape;
        let groups = columns / 32;
        let mut bytes = |part: &str, shape: &[usize]| {
            let name = format!("{name}_{part}");
            self.take_of(&name, shape, |ty| ty == crate::gguf::TensorType::U8)
        };
        let blocks = bytes("blocks", &[experts, rows, groups, 16]);
        let scales = bytes("scales", &[experts, rows, groups]);
        match (blocks, scales) {
            (Some(blocks), Some(scales)) if columns.is_multiple_of(32) => {
                WeightMatrix::whole(Tensor::mxfp4(&blocks, &scales, &shape))
            }
            _ => WeightMatrix::default(),
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
            norm: mamba
                .norm_groups
                .map(|_| self.vector(&name("norm.weight"), inner)),
            output: self.matrix(&name("out_proj.weight"), &[self.hidden_size, inner]),
        }
    }

    /// A matrix of the shape given; empty, and noted, where the tensor is not there or wrong.
    pub(crate) fn matrix(&mut self, name: &str, shape: &[usize]) -> WeightMatrix {
        self.take(name, shape)
            .map(WeightMatrix::whole)
            .unwrap_or_default()
    }

    /// A tensor of plain elements as a matrix with one in each row.
    pub(crate) fn elements(&mut self, name: &str, shape: [usize; 2]) -> WeightMatrix {
        let plain = |ty: crate::gguf::TensorType| ty.is_supported() && !ty.is_quantised();
        let tensor = self.take_of(name, &shape, plain);
        tensor
            .map(|tensor| WeightMatrix::whole(tensor.by_elements()))
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
        self.take_of(name, expected, crate::gguf::TensorType::is_supported)
    }

    /// A tensor of a type that `accepts`.
    fn take_of(
        &mut self,
        name: &str,
        expected: &[usize],
        accepts: impl Fn(crate::gguf::TensorType) -> bool,
    ) -> Option<Tensor> {
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
        } else if !accepts(tensor.ty()) {
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
            let renames = self.family.hugging_face_names.iter();
            let name = renames.fold(name.to_owned(), |name, (usual, own)| {
                name.replace(usual, own)
            });
            return match (self.text_prefix, name.strip_prefix("model.")) {
                (Some("language_model."), _) => format!("language_model.{name}"),
                (Some(prefix), Some(rest)) => format!("{prefix}{rest}"),
                _ => name,
            };
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
                (self.text_prefix.is_some()
                    && OTHER_PARTS.iter().any(|part| name.starts_with(part)))
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
