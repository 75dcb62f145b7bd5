//! Multi-token heads on tiny checkpoints that are made here: the head's logits are those of a
//! model of one layer, which goldens hold, over inputs joined in f64; what it proposes changes no
//! answer; and a head that is incomplete or of another model is refused.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use butter::checkpoint::Checkpoint;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs};
use butter::generate::{Generator, Request};
use butter::model::{HeadRow, HiddenFrom, Model, ModelError, RowOutput, RowResult, StepRow};
use butter::sampler::{Sampler, SamplingParameters};
use butter::scheduler::{
    Event, Job, PrefixReuse, Scheduler, SchedulerMetrics, SchedulerOptions, Speculator,
};
use butter::serve::chooser::Chooser;
use butter::speculate::{OwnHead, SpeculationRequest, speculate};
use iron_runtime::Backend;
use serde_json::{Value as Json, json};
use support::data;
use tempfile::TempDir;
use tokio::sync::mpsc::unbounded_channel;

const HIDDEN: usize = 64;
const VOCABULARY: usize = 512;

/// A tensor as a file stores it.
#[derive(Clone)]
struct Stored {
    dtype: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    fn floats(shape: &[usize], values: &[f64]) -> Stored {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        let bytes = values.iter().flat_map(|&v| (v as f32).to_le_bytes());
        Stored {
            dtype: "F32".to_owned(),
            shape: shape.to_vec(),
            bytes: bytes.collect(),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self.dtype.as_str() {
            "BF16" => {
                let pairs = self.bytes.as_chunks::<2>().0.iter();
                let float = |&pair: &[u8; 2]| half::bf16::from_le_bytes(pair).to_f64();
                pairs.map(float).collect()
            }
            "F32" => {
                let words = self.bytes.as_chunks::<4>().0.iter();
                words
                    .map(|&word| f64::from(f32::from_le_bytes(word)))
                    .collect()
            }
            other => panic!("no {other} here"),
        }
    }
}

/// A checkpoint in the making.
#[derive(Clone)]
struct Draft {
    config: Json,
    tensors: BTreeMap<String, Stored>,
}

impl Draft {
    fn of(family: &str) -> Draft {
        let folder = data(&format!("models/{family}/bf16"));
        let file = std::fs::read(folder.join("model.safetensors")).expect("the tensors");
        let length = u64::from_le_bytes(*file.first_chunk().expect("8 bytes")) as usize;
        let header: Json = serde_json::from_slice(&file[8..8 + length]).expect("a header");
        let tensor = |(name, tensor): (&String, &Json)| {
            let place = |i: usize| tensor["data_offsets"][i].as_u64().expect("a place") as usize;
            let shape = tensor["shape"].as_array().expect("a shape").iter();
            let stored = Stored {
                dtype: tensor["dtype"].as_str().expect("a type").to_owned(),
                shape: shape
                    .map(|n| n.as_u64().expect("an extent") as usize)
                    .collect(),
                bytes: file[8 + length + place(0)..8 + length + place(1)].to_vec(),
            };
            (name.clone(), stored)
        };
        let tensors = header.as_object().expect("tensors").iter();
        let tensors = tensors
            .filter(|(name, _)| *name != "__metadata__")
            .map(tensor);
        Draft {
            config: support::json(&folder.join("config.json")),
            tensors: tensors.collect(),
        }
    }

    fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let mut header = serde_json::Map::new();
        let mut bytes: Vec<u8> = Vec::new();
        for (name, tensor) in &self.tensors {
            let end = bytes.len() + tensor.bytes.len();
            let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape,
                "data_offsets": [bytes.len(), end]});
            header.insert(name.clone(), entry);
            bytes.extend(&tensor.bytes);
        }
        let header = Json::Object(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(bytes);
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        };
        write("model.safetensors", &file);
        write("config.json", self.config.to_string().as_bytes());
        folder
    }

    fn values(&self, name: &str) -> Vec<f64> {
        self.tensors[name].values()
    }

    /// The tensors below `from` once more below `to`.
    fn copy(&mut self, from: &str, to: &str) {
        let copies: Vec<(String, Stored)> = self
            .tensors
            .iter()
            .filter_map(|(name, tensor)| {
                let rest = name.strip_prefix(from)?;
                Some((format!("{to}{rest}"), tensor.clone()))
            })
            .collect();
        assert!(!copies.is_empty(), "{from}");
        self.tensors.extend(copies);
    }

    /// Sets all elements of the tensors whose names end so to zero.
    fn silence(&mut self, ends: &[&str]) {
        for (name, tensor) in &mut self.tensors {
            if ends.iter().any(|end| name.ends_with(end)) {
                tensor.bytes.fill(0);
            }
        }
    }
}

/// How a family writes its head.
struct Kind {
    family: &'static str,
    /// The layer whose tensors the head takes.
    layer: usize,
    head_layer: &'static str,
    join: &'static str,
    embedding_norm: &'static str,
    hidden_norm: &'static str,
    norm: &'static str,
    /// What norms are stored less.
    plus: f64,
    feeds_normed: bool,
}

const QWEN: Kind = Kind {
    family: "qwen3_next",
    layer: 7,
    head_layer: "mtp.layers.0.",
    join: "mtp.fc.weight",
    embedding_norm: "mtp.pre_fc_norm_embedding.weight",
    hidden_norm: "mtp.pre_fc_norm_hidden.weight",
    norm: "mtp.norm.weight",
    plus: 1.0,
    feeds_normed: true,
};

const DEEPSEEK: Kind = Kind {
    family: "deepseek_v3",
    layer: 2,
    head_layer: "model.layers.3.",
    join: "model.layers.3.eh_proj.weight",
    embedding_norm: "model.layers.3.enorm.weight",
    hidden_norm: "model.layers.3.hnorm.weight",
    norm: "model.layers.3.shared_head.norm.weight",
    plus: 0.0,
    feeds_normed: false,
};

/// Numbers in `-1..1`.
fn random(seed: u64, count: usize) -> Vec<f64> {
    let value = |i| 2.0 * butter::sampler::uniform(seed, i as u64) - 1.0;
    (0..count).map(value).collect()
}

impl Kind {
    /// The family's tiny checkpoint with a head of random joints.
    fn with_head(&self) -> Draft {
        let mut draft = Draft::of(self.family);
        draft.copy(&format!("model.layers.{}.", self.layer), self.head_layer);
        if self.family == "deepseek_v3" {
            draft.config["num_nextn_predict_layers"] = json!(1);
            draft.copy("model.embed_tokens.", "model.layers.3.embed_tokens.");
            draft.copy("lm_head.", "model.layers.3.shared_head.head.");
        }
        let join: Vec<f64> = random(1, HIDDEN * 2 * HIDDEN)
            .iter()
            .map(|v| v * 0.15)
            .collect();
        let join = Stored::floats(&[HIDDEN, 2 * HIDDEN], &join);
        draft.tensors.insert(self.join.to_owned(), join);
        for (seed, name) in [
            (2, self.embedding_norm),
            (3, self.hidden_norm),
            (4, self.norm),
        ] {
            let weights = random(seed, HIDDEN).into_iter();
            let weights: Vec<f64> = weights.map(|v| 1.0 - self.plus + 0.3 * v).collect();
            draft
                .tensors
                .insert(name.to_owned(), Stored::floats(&[HIDDEN], &weights));
        }
        draft
    }

    /// A model of the head's layer alone, whose token `i` is embedded as `inputs[i]`.
    fn reference(&self, head: &Draft, inputs: &[Vec<f64>]) -> Draft {
        let mut draft = Draft {
            config: head.config.clone(),
            tensors: BTreeMap::new(),
        };
        let config = &mut draft.config;
        config["num_hidden_layers"] = json!(1);
        match self.family {
            "deepseek_v3" => {
                config["first_k_dense_replace"] = json!(0);
                config["num_nextn_predict_layers"] = json!(0);
            }
            _ => config["layer_types"] = json!(["full_attention"]),
        }
        let mut table: Vec<f64> = inputs.concat();
        table.resize(VOCABULARY * HIDDEN, 0.0);
        let table = Stored::floats(&[VOCABULARY, HIDDEN], &table);
        let layer = head.tensors.iter().filter_map(|(name, tensor)| {
            let rest = name.strip_prefix(self.head_layer)?;
            Some((format!("model.layers.0.{rest}"), tensor.clone()))
        });
        draft.tensors.extend(layer);
        for part in ["eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head"] {
            let prefix = format!("model.layers.0.{part}.");
            draft.tensors.retain(|name, _| !name.starts_with(&prefix));
        }
        let named = [
            ("model.embed_tokens.weight", table),
            ("model.norm.weight", head.tensors[self.norm].clone()),
            ("lm_head.weight", head.tensors["lm_head.weight"].clone()),
        ];
        draft
            .tensors
            .extend(named.map(|(name, tensor)| (name.to_owned(), tensor)));
        draft
    }

    fn normed(&self, head: &Draft, norm: &str, row: &[f64]) -> Vec<f64> {
        let square = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (square + 1e-6).sqrt();
        let weights = head.values(norm);
        let pairs = row.iter().zip(weights);
        pairs.map(|(v, w)| v * scale * (w + self.plus)).collect()
    }

    /// `join [norm(embedding(token)); norm(hidden)]`.
    fn joined(&self, head: &Draft, token: u32, hidden: &[f64]) -> Vec<f64> {
        let table = head.values("model.embed_tokens.weight");
        let first = token as usize * HIDDEN;
        let mut both = self.normed(head, self.embedding_norm, &table[first..first + HIDDEN]);
        both.extend(self.normed(head, self.hidden_norm, hidden));
        product(&head.values(self.join), &both)
    }
}

fn product(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    let rows = matrix.chunks(x.len());
    rows.map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum())
        .collect()
}

fn load(path: &Path, with_head: bool) -> DeviceModel {
    let checkpoint = Checkpoint::open(path).expect("the checkpoint loads");
    let options = EngineOptions {
        dtype: iron_ir::Scalar::F32,
        product_inputs: ProductInputs::Exact,
        max_sequences: 3,
        max_step_rows: 32,
        cache_positions: 384,
        cache: CacheType::Activations,
    };
    let device = iron_runtime::open(Backend::Cpu).expect("the processor is there");
    let mut model = DeviceModel::load(device, &checkpoint, options).expect("the model loads");
    if with_head {
        let loaded = model.load_head(&checkpoint.config, &checkpoint.weights);
        loaded.expect("the head loads");
    }
    model
}

fn logits(results: Vec<RowResult>) -> Vec<Vec<f32>> {
    let of = |result| match result {
        RowResult::Logits(logits) => logits,
        other => panic!("{other:?}"),
    };
    results.into_iter().map(of).collect()
}

fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs
        .map(|(f, e)| (f64::from(*f) - e).abs())
        .fold(0.0, f64::max)
}

/// Logits of every row of a fresh sequence of these tokens.
fn plain_logits(model: &mut DeviceModel, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let sequence = model.open_sequence(tokens.len()).expect("room");
    let mut found = Vec::new();
    let places: Vec<usize> = (0..tokens.len()).collect();
    for chunk in places.chunks(chunk) {
        let row = |&i: &usize| StepRow {
            sequence,
            token: tokens[i],
            position: i as u32,
            output: RowOutput::Logits,
        };
        let rows: Vec<StepRow> = chunk.iter().map(row).collect();
        found.extend(logits(model.step(&rows).expect("runs")));
    }
    model.close_sequence(sequence);
    found
}

#[test]
fn a_head_gives_the_logits_of_its_layer_over_what_it_joins() {
    for kind in [QWEN, DEEPSEEK] {
        let draft = kind.with_head();
        let folder = draft.write();
        let mut model = load(folder.path(), true);
        let tokens: Vec<u32> = (0..28u32).map(|i| (i * i * 31 + i * 7 + 5) % 512).collect();
        let count = tokens.len() - 2;
        for chunk in [count, 7] {
            let sequence = model.open_sequence(64).expect("room");
            let mut inputs = Vec::new();
            let mut found = Vec::new();
            let places: Vec<usize> = (0..count).collect();
            for chunk in places.chunks(chunk) {
                let row = |&i: &usize| StepRow {
                    sequence,
                    token: tokens[i],
                    position: i as u32,
                    output: RowOutput::Logits,
                };
                let rows: Vec<StepRow> = chunk.iter().map(row).collect();
                let own = logits(model.step(&rows).expect("runs"));
                // What is kept is what the model's own output projection reads.
                let kept = model.hidden_rows(HiddenFrom::Model).expect("a head");
                assert_eq!(kept.len(), rows.len());
                for (((at, hidden), own), &i) in kept.iter().zip(&own).zip(chunk) {
                    assert_eq!((at.sequence, at.position), (sequence, i as u32));
                    let hidden: Vec<f64> = hidden.iter().map(|&v| f64::from(v)).collect();
                    let expected = product(&draft.values("lm_head.weight"), &hidden);
                    assert!(distance(own, &expected) < 1e-4, "{}", kind.family);
                    inputs.push(kind.joined(&draft, tokens[i + 1], &hidden));
                }
                let row = |&i: &usize| HeadRow {
                    sequence,
                    token: tokens[i + 1],
                    position: i as u32,
                    from: HiddenFrom::Model,
                    output: RowOutput::Logits,
                };
                let rows: Vec<HeadRow> = chunk.iter().map(row).collect();
                found.extend(logits(model.head_step(&rows).expect("runs")));
            }
            // One token further, from what the head gave itself.
            let kept = model.hidden_rows(HiddenFrom::Head).expect("a head");
            let (at, hidden) = kept.last().expect("rows");
            assert_eq!(at.position as usize, count - 1);
            let hidden: Vec<f64> = hidden.iter().map(|&v| f64::from(v)).collect();
            let read = match kind.feeds_normed {
                true => hidden.clone(),
                false => kind.normed(&draft, kind.norm, &hidden),
            };
            let expected = product(&draft.values("lm_head.weight"), &read);
            let last = found.last().expect("rows");
            assert!(distance(last, &expected) < 1e-4, "{}", kind.family);
            inputs.push(kind.joined(&draft, 77, &hidden));
            let behind = HeadRow {
                sequence,
                token: 77,
                position: count as u32,
                from: HiddenFrom::Head,
                output: RowOutput::Logits,
            };
            found.extend(logits(model.head_step(&[behind]).expect("runs")));
            // Nothing is left of the row before that.
            assert!(model.head_step(&[behind]).is_err());
            model.close_sequence(sequence);

            let reference = kind.reference(&draft, &inputs).write();
            let mut reference = load(reference.path(), false);
            let rows: Vec<u32> = (0..inputs.len() as u32).collect();
            let expected = plain_logits(&mut reference, &rows, 32);
            let mut worst = 0.0f64;
            for (found, expected) in found.iter().zip(&expected) {
                let expected: Vec<f64> = expected.iter().map(|&v| f64::from(v)).collect();
                worst = worst.max(distance(found, &expected));
            }
            println!("{}, {chunk} rows a step: {worst:.2e}", kind.family);
            assert!(worst < 1e-3, "{}: {worst}", kind.family);
        }
    }
}

/// A checkpoint whose next token depends on the last alone, and a head that knows it; with
/// `noise`, that knows it only sometimes.
fn knowing(kind: &Kind, noise: f64) -> Draft {
    let mut draft = kind.with_head();
    draft.silence(&["o_proj.weight", "out_proj.weight", "down_proj.weight"]);
    let mut join = vec![0.0; HIDDEN * 2 * HIDDEN];
    for (i, value) in random(9, join.len()).into_iter().enumerate() {
        let is_own = i / (2 * HIDDEN) == i % (2 * HIDDEN);
        join[i] = f64::from(u8::from(is_own)) + noise * value;
    }
    let join = Stored::floats(&[HIDDEN, 2 * HIDDEN], &join);
    draft.tensors.insert(kind.join.to_owned(), join);
    let neutral = Stored::floats(&[HIDDEN], &[1.0 - kind.plus; HIDDEN]);
    draft
        .tensors
        .insert(kind.embedding_norm.to_owned(), neutral);
    let norm = draft.tensors["model.norm.weight"].clone();
    draft.tensors.insert(kind.norm.to_owned(), norm);
    draft
}

#[test]
fn what_a_head_proposes_changes_no_answer() {
    for kind in [QWEN, DEEPSEEK] {
        let prompt: Vec<u32> = (0..21u32).map(|i| (i * 97 + 3) % 512).collect();
        let sampled = SamplingParameters {
            temperature: 0.8,
            seed: 11,
            ..SamplingParameters::default()
        };
        let sampled = Sampler::new(sampled, VOCABULARY).expect("in range");
        let drafts = [
            ("random", kind.with_head()),
            ("knowing", knowing(&kind, 0.0)),
            ("half knowing", knowing(&kind, 0.08)),
        ];
        for (name, draft) in drafts {
            let folder = draft.write();
            let mut model = load(folder.path(), true);
            let mut plain = load(folder.path(), false);
            let request = |sampler: &Sampler| Request {
                prompt_ids: prompt.clone(),
                max_tokens: 40,
                sampler: sampler.clone(),
                stop_tokens: Vec::new(),
                stop_strings: Vec::new(),
            };
            let mut expected = Vec::new();
            for sampler in [&Sampler::greedy(), &sampled] {
                let answer = Generator::new(&mut plain).run(&request(sampler), None, &mut |_| {});
                expected.push(answer.expect("runs").token_ids);
            }
            for verify_rows in [2, 5] {
                let request = SpeculationRequest {
                    prompt_ids: &prompt,
                    max_tokens: 40,
                    sampler: &Sampler::greedy(),
                    verify_rows,
                };
                let mut head = OwnHead::default();
                let found = speculate(&mut model, &mut head, request, &mut |_| true);
                let found = found.expect("runs");
                let which = format!("{}, {name}, {verify_rows}", kind.family);
                assert_eq!(found.token_ids, expected[0], "{which}");
                let (proposed, accepted) = found.counts();
                println!("{which}: {accepted} of {proposed}");
                match name {
                    "knowing" => assert_eq!(accepted, proposed, "{which}"),
                    "half knowing" => assert!(0 < accepted && accepted < proposed, "{which}"),
                    _ => assert!(proposed > 0, "{which}"),
                }
            }
            // Under the scheduler, beside others.
            let metrics = Arc::new(SchedulerMetrics::default());
            let options = SchedulerOptions {
                max_running: 3,
                chunk: 16,
                prefill_budget: 16,
                max_positions: 128,
                reuse: PrefixReuse::Exact,
                preempt_after: None,
                max_preemptions: 0,
            };
            let mut scheduler = Scheduler::new(Box::new(model), options, metrics.clone());
            let scheduler = scheduler.as_mut().expect("starts");
            let speculator = Speculator {
                proposer: Box::new(OwnHead::default()),
                verify_rows: 4,
                max_running: 3,
            };
            scheduler.speculate(speculator).expect("starts");
            let now = Instant::now();
            let mut receivers = Vec::new();
            for i in 0..5 {
                let sampler = [&Sampler::greedy(), &sampled][i % 2].clone();
                let (events, receiver) = unbounded_channel();
                scheduler.submit(
                    Job {
                        prompt: prompt.clone(),
                        max_tokens: 40,
                        stop_tokens: Vec::new(),
                        chooser: Box::new(Chooser::new(sampler, &prompt, None, None)),
                        salt: 0,
                        deadline: None,
                        index: i,
                        events,
                        enough: Arc::default(),
                    },
                    now,
                );
                receivers.push(receiver);
            }
            while scheduler.has_work() {
                scheduler.turn(|| now).expect("a turn");
            }
            for (i, mut receiver) in receivers.into_iter().enumerate() {
                let mut answer = Vec::new();
                while let Ok((_, event)) = receiver.try_recv() {
                    match event {
                        Event::Token(choice) => answer.push(choice.token),
                        Event::Failed { failure, .. } => panic!("{failure}"),
                        Event::Finished { .. } => {}
                    }
                }
                assert_eq!(
                    answer,
                    expected[i % 2],
                    "{}, {name}, request {i}",
                    kind.family
                );
            }
            let (proposed, accepted) = (&metrics.proposed, &metrics.accepted);
            let (proposed, accepted) = (proposed.load(Relaxed), accepted.load(Relaxed));
            println!(
                "{}, {name}, scheduled: {accepted} of {proposed}",
                kind.family
            );
            assert!(proposed > 0 && (accepted > 0 || name == "random"));
        }
    }
}

#[test]
fn a_head_is_whole_and_the_models_own_or_refused() {
    let refused = |draft: &Draft| {
        let folder = draft.write();
        let error = Checkpoint::open(folder.path()).expect_err("refused");
        error.to_string()
    };
    for kind in [QWEN, DEEPSEEK] {
        let whole = kind.with_head();
        for name in [kind.norm, kind.hidden_norm, kind.embedding_norm] {
            let mut draft = whole.clone();
            draft.tensors.remove(name);
            let message = refused(&draft);
            assert!(
                message.contains("1 of ") && message.contains(name),
                "{message}"
            );
        }
        let mut draft = whole.clone();
        let narrow = Stored::floats(&[HIDDEN, HIDDEN], &[0.0; HIDDEN * HIDDEN]);
        draft.tensors.insert(kind.join.to_owned(), narrow);
        assert!(refused(&draft).contains("has shape [64, 64], the config asks for [64, 128]"));
        let mut draft = whole.clone();
        let more = Stored::floats(&[1], &[0.0]);
        let name = format!("{}more.weight", kind.head_layer);
        draft.tensors.insert(name.clone(), more);
        assert!(refused(&draft).contains(&name));
        // Without the joint, there is no head, and asking for it is an error.
        let mut draft = whole.clone();
        draft.tensors.remove(kind.join);
        let folder = draft.write();
        let checkpoint = Checkpoint::open(folder.path()).expect("a model without a head");
        let mut model = load(folder.path(), false);
        let loaded = model.load_head(&checkpoint.config, &checkpoint.weights);
        assert_eq!(loaded, Err(ModelError::NoHead));
        let row = HeadRow {
            sequence: model.open_sequence(1).expect("room"),
            token: 0,
            position: 0,
            from: HiddenFrom::Model,
            output: RowOutput::Greedy,
        };
        assert_eq!(model.head_step(&[row]), Err(ModelError::NoHead));
    }
    let mut draft = DEEPSEEK.with_head();
    let copy = "model.layers.3.shared_head.head.weight";
    draft.tensors.get_mut(copy).expect("there").bytes[0] ^= 1;
    assert!(refused(&draft).contains(&format!("{copy} is not equal to lm_head.weight")));
}
