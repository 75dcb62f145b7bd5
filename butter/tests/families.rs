//! Every family's tiny checkpoint against outputs of an independent implementation, through the
//! engine, on each backend: last logits whole and for every chunking, greedy tokens, and the
//! same bits whoever shares the batch.
//!
//! `IRON_TEST_BACKENDS` names the backends; one that is not there is skipped aloud. Where it is
//! not set, they are `cpu` and `vulkan`, but for the slower checks of most families `cpu` alone:
//! Mesa's software driver takes 20 ms a row even of these models.

mod support;

use std::io::Write as _;

use butter::checkpoint::Checkpoint;
use butter::config::ModelConfig;
use butter::engine::{CacheType, DeviceModel, EngineOptions, MemoryPlan, ProductInputs};
use butter::generate::{Generator, Request};
use butter::model::{Model, RowOutput, RowResult, SequenceId, StepRow};
use butter::sampler::Sampler;
use iron_ir::Scalar;
use iron_runtime::Backend;
use serde_json::Value as Json;
use support::{data, floats, ids, json};

/// The tests of each family: its folder, and how far a logit may lie from the reference's.
macro_rules! families {
    ($($family:ident: $bound:literal,)*) => {
        $(mod $family {
            #[test]
            fn both_config_spellings_say_the_same() {
                super::both_config_spellings_say_the_same(stringify!($family));
            }

            // E09
            #[test]
            fn logits_for_every_chunking_and_greedy_tokens_are_the_references() {
                super::outputs_are_the_references(stringify!($family), $bound);
            }

            // E09
            #[test]
            fn greedy_tokens_of_short_steps_are_the_references() {
                super::greedy_tokens_of_short_steps(stringify!($family));
            }

            // E30
            #[test]
            fn a_sequence_decodes_to_the_same_bits_in_any_company() {
                super::company_changes_no_bit(stringify!($family));
            }

            // E06
            #[test]
            fn an_abandoned_step_leaves_no_trace() {
                super::an_abandoned_step_leaves_no_trace(stringify!($family));
            }
        })*
    };
}

families! {
    llama: 1e-3,
    qwen3: 1e-3,
    gemma3: 1e-3,
    qwen3_moe: 1e-3,
    qwen3_next: 2e-3,
    granitemoehybrid: 1e-3,
    mistral: 1e-3,
    qwen2: 1e-3,
    mixtral: 1e-3,
    olmo3: 1e-3,
    gpt_oss: 1e-3,
    gemma4: 1e-3,
    qwen3_5_moe: 2e-3,
    deepseek_v3: 1e-3,
    lfm2: 1e-3,
    falcon_h1: 1e-3,
    nemotron_h: 1e-3,
}

/// One family of each kind of graph: their slower checks run on `vulkan` too, and in `bf16`.
const EACH_GRAPH: [&str; 6] = [
    "llama",
    "qwen3",
    "gemma3",
    "qwen3_moe",
    "qwen3_next",
    "granitemoehybrid",
];

/// Runs a slower `check` of a family on every backend asked for.
fn slowly_on_backends(family: &str, check: impl Fn(Backend)) {
    let default = if EACH_GRAPH.contains(&family) {
        "cpu,vulkan"
    } else {
        "cpu"
    };
    on_backends(default, check);
}

/// Runs `check` on every backend asked for, or those of `default`.
fn on_backends(default: &str, check: impl Fn(Backend)) {
    let names = std::env::var("IRON_TEST_BACKENDS").unwrap_or_else(|_| default.to_owned());
    for name in names.split(',') {
        let backend: Backend = Backend::from_name(name.trim()).expect("a backend's name");
        match iron_runtime::open(backend) {
            Ok(_) => check(backend),
            Err(error) => {
                let line = format!("SKIPPED backend {name}: {error}\n");
                let written = std::io::stderr().write_all(line.as_bytes());
                written.expect("standard error takes a line");
            }
        }
    }
}

fn checkpoint(family: &str) -> Checkpoint {
    Checkpoint::open(&data(&format!("models/{family}/bf16"))).expect("the checkpoint loads")
}

/// Loads a model to compute in `f32`.
fn load(checkpoint: &Checkpoint, backend: Backend, max_step_rows: usize) -> DeviceModel {
    load_as(Scalar::F32, checkpoint, backend, max_step_rows)
}

/// Loads a model, whose state takes what the plan said.
fn load_as(
    dtype: Scalar,
    checkpoint: &Checkpoint,
    backend: Backend,
    max_step_rows: usize,
) -> DeviceModel {
    let device = iron_runtime::open(backend).expect("opened before");
    let options = EngineOptions {
        dtype,
        product_inputs: ProductInputs::Exact,
        max_sequences: 8,
        max_step_rows,
        cache_positions: 8 * 256,
        cache: CacheType::Activations,
    };
    let model = DeviceModel::load(device, checkpoint, options).expect("the model loads");
    let (caches, states) = model.state_bytes();
    let planned = MemoryPlan::new(&checkpoint.config, &options).bytes();
    assert_eq!(caches + states, planned, "{}", checkpoint.config.family);
    model
}

/// The rows of `tokens` as they continue a sequence of `length` positions; the last row's logits
/// are wanted.
fn rows(sequence: SequenceId, length: usize, tokens: &[u32]) -> Vec<StepRow> {
    let last = tokens.len() - 1;
    let row = |(i, &token)| StepRow {
        sequence,
        token,
        position: (length + i) as u32,
        output: if i == last {
            RowOutput::Logits
        } else {
            RowOutput::Nothing
        },
    };
    tokens.iter().enumerate().map(row).collect()
}

fn logits(result: &RowResult) -> &[f32] {
    match result {
        RowResult::Logits(logits) => logits,
        other => panic!("expected logits, got {other:?}"),
    }
}

/// Last logits of a prompt that goes in by chunks of the lengths given.
fn chunked(model: &mut DeviceModel, prompt: &[u32], chunks: &[usize]) -> Vec<f32> {
    let sequence = model.open_sequence(prompt.len()).expect("a sequence");
    let mut last = Vec::new();
    let mut at = 0;
    for chunk in chunks {
        let results = model.step(&rows(sequence, at, &prompt[at..at + chunk]));
        let results = results.expect("a step");
        last = logits(results.last().expect("a result")).to_vec();
        at += chunk;
    }
    assert_eq!(at, prompt.len(), "the chunks make the prompt");
    model.close_sequence(sequence);
    last
}

fn equal_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// `64+50+16`, `100+1x30`: lengths of chunks, `nxm` being `m` chunks of `n`.
fn chunks_of(text: &str) -> Vec<usize> {
    let one = |part: &str| {
        let number = |text: &str| text.parse::<usize>().expect("a number");
        match part.split_once('x') {
            Some((length, times)) => vec![number(length); number(times)],
            None => vec![number(part)],
        }
    };
    text.split('+').flat_map(one).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    // NaN must not pass as the smaller.
    differences.fold(0.0, |worst, d| if d <= worst { worst } else { d })
}

fn prompts(goldens: &Json) -> &[Json] {
    goldens["prompts"].as_array().expect("prompts")
}

fn both_config_spellings_say_the_same(family: &str) {
    let [old, new] = ["config.json", "config.v5.json"].map(|file| {
        let path = data(&format!("models/{family}/bf16/{file}"));
        ModelConfig::from_config_json(&path).expect("reads")
    });
    assert_eq!(old, new, "{family}");
}

fn outputs_are_the_references(family: &str, bound: f32) {
    let checkpoint = checkpoint(family);
    let goldens = json(&data(&format!("models/{family}/goldens.json")));
    on_backends("cpu,vulkan", |backend| {
        let mut model = load(&checkpoint, backend, 160);
        let mut worst = 0.0f32;
        for prompt in prompts(&goldens) {
            let tokens = ids(&prompt["prompt_ids"]);
            let expected = floats(&prompt["last_logits"]);
            let mut ways = vec![vec![tokens.len()]];
            if tokens.len() == 130 {
                let checks = goldens["chunk_checks"].as_object().expect("chunkings");
                ways.extend(checks.keys().map(|text| chunks_of(text)));
            }
            for chunks in ways {
                let found = chunked(&mut model, &tokens, &chunks);
                let distance = distance(&found, &expected);
                assert!(
                    distance < bound,
                    "{family} on {backend:?}, {} ids in {chunks:?}: {distance}",
                    tokens.len()
                );
                worst = worst.max(distance);
            }
        }
        println!("{family} on {backend:?}: largest difference of a last logit {worst:e}");
        greedy_tokens_are_the_references(family, backend, &mut model, &goldens);
    });
}

/// In `bf16` the logits of a prompt's median position lie no further from those in `f32` than twice
/// what PyTorch's do, and those of any position no further than twice PyTorch's worst of all
/// prompts: both round to the same 8 bits, at other places. Where a router's choice is nearly tied,
/// rounding sends a position to another expert, and its logits move far more than those of others;
/// which position that is, is chance. The last position's reference in `f32` is PyTorch's own.
#[test]
fn outputs_in_bf16_lie_as_near_as_pytorchs() {
    const MEDIAN: &str = "bf16_median_pos_max_diff";
    const WORST: &str = "bf16_max_abs_diff";
    let theirs = |prompt: &Json, key: &str| prompt[key].as_f64().expect("a distance") as f32;
    for family in EACH_GRAPH {
        let checkpoint = checkpoint(family);
        let goldens = json(&data(&format!("models/{family}/goldens.json")));
        let worst = prompts(&goldens).iter().map(|prompt| theirs(prompt, WORST));
        let theirs_worst = worst.fold(0.0, f32::max);
        on_backends("cpu", |backend| {
            let mut exact = load(&checkpoint, backend, 160);
            let mut rounded = load_as(Scalar::BF16, &checkpoint, backend, 160);
            for prompt in prompts(&goldens) {
                let tokens = ids(&prompt["prompt_ids"]);
                let wide = at_every_position(&mut exact, &tokens);
                let narrow = at_every_position(&mut rounded, &tokens);
                let golden = floats(&prompt["last_logits"]);
                let last = distance(wide.last().expect("a row"), &golden);
                assert!(last < 2e-3, "{family} on {backend:?} in f32: {last}");
                let both = wide.iter().zip(&narrow);
                let mut distances: Vec<f32> = both.map(|(a, b)| distance(a, b)).collect();
                distances.sort_by(f32::total_cmp);
                let count = distances.len();
                for (name, ours, theirs) in [
                    ("median", distances[(count - 1) / 2], theirs(prompt, MEDIAN)),
                    ("worst", distances[count - 1], theirs_worst),
                ] {
                    let line = format!(
                        "{family} in bf16 on {backend:?}, {count} ids, {name} position: {ours}, \
                         PyTorch's {theirs}"
                    );
                    println!("{line}");
                    assert!(ours <= 2.0 * theirs, "{line}");
                }
            }
        });
    }
}

/// Logits of every position of a prompt, in one step.
fn at_every_position(model: &mut DeviceModel, prompt: &[u32]) -> Vec<Vec<f32>> {
    let sequence = model.open_sequence(prompt.len()).expect("a sequence");
    let mut step = rows(sequence, 0, prompt);
    for row in &mut step {
        row.output = RowOutput::Logits;
    }
    let results = model.step(&step).expect("a step");
    model.close_sequence(sequence);
    results
        .iter()
        .map(|result| logits(result).to_vec())
        .collect()
}

/// The same tokens where no step takes a whole prompt.
fn greedy_tokens_of_short_steps(family: &str) {
    let checkpoint = checkpoint(family);
    let goldens = json(&data(&format!("models/{family}/goldens.json")));
    slowly_on_backends(family, |backend| {
        let mut model = load(&checkpoint, backend, 7);
        greedy_tokens_are_the_references(family, backend, &mut model, &goldens);
    });
}

fn greedy_tokens_are_the_references(
    family: &str,
    backend: Backend,
    model: &mut DeviceModel,
    goldens: &Json,
) {
    let rows = model.max_step_rows();
    for prompt in prompts(goldens) {
        let expected = ids(&prompt["greedy"]);
        let request = Request {
            prompt_ids: ids(&prompt["prompt_ids"]),
            max_tokens: expected.len(),
            sampler: Sampler::greedy(),
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
        };
        let answer = Generator::new(model).run(&request, None, &mut |_| {});
        let found = answer.expect("the request runs").token_ids;
        assert_eq!(found, expected, "{family} on {backend:?}, {rows} rows");
    }
}

/// One row a sequence, sequences of different depths, ever fewer of them.
fn company_changes_no_bit(family: &str) {
    let checkpoint = checkpoint(family);
    let goldens = json(&data(&format!("models/{family}/goldens.json")));
    slowly_on_backends(family, |backend| {
        let mut model = load(&checkpoint, backend, 160);
        let prompt = ids(&prompts(&goldens)[3]["prompt_ids"]);
        let follow = |depth: usize| &prompt[depth..depth + 6];
        let depths = [1, 7, 33, 60, 100, 120, 45];
        let start = |model: &mut DeviceModel, depth: usize| {
            let sequence = model.open_sequence(160).expect("a sequence");
            let results = model.step(&rows(sequence, 0, &prompt[..depth]));
            results.expect("a prompt");
            sequence
        };
        let alone: Vec<Vec<Vec<f32>>> = depths
            .iter()
            .map(|&depth| {
                let sequence = start(&mut model, depth);
                let steps = follow(depth).iter().enumerate().map(|(i, &token)| {
                    let row = rows(sequence, depth + i, &[token]);
                    logits(&model.step(&row).expect("a step")[0]).to_vec()
                });
                let steps = steps.collect();
                model.close_sequence(sequence);
                steps
            })
            .collect();
        let sequences = depths.map(|depth| start(&mut model, depth));
        for (i, left) in (2..=7).rev().enumerate() {
            // Ever fewer, in an order that turns.
            let mut members: Vec<usize> = (0..left).collect();
            members.rotate_left(i % left);
            let batch: Vec<StepRow> = members
                .iter()
                .flat_map(|&m| rows(sequences[m], depths[m] + i, &follow(depths[m])[i..=i]))
                .collect();
            let results = model.step(&batch).expect("a step");
            for (result, &m) in results.iter().zip(&members) {
                let same = equal_bits(logits(result), &alone[m][i]);
                assert!(
                    same,
                    "{family} on {backend:?}: depth {}, step {i}",
                    depths[m]
                );
            }
        }
    });
}

/// A step that has run and is dropped, at every depth, between steps that are committed; the
/// answer is that of the steps alone. Sequences that close leave their room.
fn an_abandoned_step_leaves_no_trace(family: &str) {
    let checkpoint = checkpoint(family);
    let goldens = json(&data(&format!("models/{family}/goldens.json")));
    slowly_on_backends(family, |backend| {
        let mut model = load(&checkpoint, backend, 64);
        let prompt = &ids(&prompts(&goldens)[3]["prompt_ids"])[..100];
        let chunks = [40, 30, 1, 1, 28];
        let expected = chunked(&mut model, prompt, &chunks);
        // A software driver takes a second for fifty rows; what a second round would find, a
        // processor's does.
        let rounds = if backend == Backend::Vulkan { 1 } else { 3 };
        for _ in 0..rounds {
            let sequence = model.open_sequence(192).expect("a sequence");
            let (mut at, mut last) = (0, Vec::new());
            for chunk in chunks {
                // Tokens that are not the prompt's, more of them than the step that follows.
                let wrong = (0..chunk as u32 + 10).map(|i| (at as u32 * 7 + i * 3) % 512);
                let wrong: Vec<u32> = wrong.collect();
                let abandoned = model.prepare(&rows(sequence, at, &wrong)).expect("runs");
                assert_eq!(abandoned.results().len(), 1);
                drop(abandoned);
                let results = model.step(&rows(sequence, at, &prompt[at..at + chunk]));
                last = logits(&results.expect("a step")[0]).to_vec();
                at += chunk;
            }
            assert!(equal_bits(&last, &expected), "{family} on {backend:?}");
            // Back to what the layers can still give, and forward again.
            let kept = model.truncate_sequence(sequence, 72).expect("open");
            assert!(kept == 72 || kept == 0, "{kept}");
            let chunks = if kept == 72 {
                vec![28]
            } else {
                vec![40, 30, 1, 1, 28]
            };
            let (mut at, mut last) = (kept, Vec::new());
            for chunk in chunks {
                let results = model.step(&rows(sequence, at, &prompt[at..at + chunk]));
                last = logits(&results.expect("a step")[0]).to_vec();
                at += chunk;
            }
            let same = equal_bits(&last, &expected);
            assert!(same, "{family} on {backend:?}, back to {kept}");
            model.close_sequence(sequence);
        }
    });
}

// E19, E20
#[test]
fn what_a_family_does_not_compute_is_refused_by_name() {
    use serde_json::json as value;
    for (family, key, wrong, words) in [
        (
            "mistral",
            "attention_bias",
            value!(true),
            "unknown key `attention_bias`",
        ),
        ("qwen2", "use_mrope", value!(true), "use_mrope is true"),
        (
            "mixtral",
            "num_experts_per_tok",
            value!(9),
            "experts a token is 9 of 8",
        ),
        (
            "olmo3",
            "layer_types",
            value!(["chunked_attention"]),
            "a list of 1",
        ),
        (
            "gpt_oss",
            "quantization_config",
            value!(null),
            "quantization_config is missing",
        ),
        (
            "gpt_oss",
            "quantization_config",
            value!({"quant_method": "gptq"}),
            "quantization_config.quant_method is `gptq`, supported: \"mxfp4\"",
        ),
        (
            "gpt_oss",
            "hidden_act",
            value!("gelu"),
            "hidden_act is `gelu`",
        ),
        (
            "gpt_oss",
            "experts_per_token",
            value!(3),
            "but experts_per_token is 3",
        ),
        (
            "gemma4",
            "enable_moe_block",
            value!(true),
            "enable_moe_block is true",
        ),
        (
            "gemma4",
            "use_bidirectional_attention",
            value!("all"),
            "is `all`",
        ),
        (
            "gemma4",
            "num_kv_shared_layers",
            value!(6),
            "num_kv_shared_layers is 6",
        ),
        (
            "gemma4",
            "vocab_size_per_layer_input",
            value!(100),
            "every token needs a row",
        ),
        (
            "gemma4",
            "per_layer_config",
            value!({"9": {}}),
            "`per_layer_config.9`",
        ),
        (
            "deepseek_v3",
            "topk_method",
            value!("greedy"),
            "topk_method is `greedy`",
        ),
        (
            "deepseek_v3",
            "n_group",
            value!(3),
            "expert groups is 2 of 3",
        ),
        (
            "deepseek_v3",
            "num_key_value_heads",
            value!(2),
            "num_key_value_heads is 2",
        ),
        (
            "deepseek_v3",
            "attention_bias",
            value!(true),
            "attention_bias is true",
        ),
        ("lfm2", "conv_bias", value!(true), "conv_bias is true"),
        (
            "lfm2",
            "conv_dim",
            value!(32),
            "conv_dim is 32, but hidden_size is 64",
        ),
        (
            "falcon_h1",
            "ssm_multipliers",
            value!([1.0]),
            "it must have 5 entries",
        ),
        (
            "falcon_h1",
            "mamba_d_ssm",
            value!(100),
            "but mamba_d_ssm is 100",
        ),
        (
            "nemotron_h",
            "hybrid_override_pattern",
            value!("MXM"),
            "is `X`",
        ),
        (
            "nemotron_h",
            "mlp_hidden_act",
            value!("silu"),
            "without a gate",
        ),
        (
            "nemotron_h",
            "num_hidden_layers",
            value!(7),
            "num_hidden_layers is 7",
        ),
        (
            "nemotron_h",
            "moe_latent_size",
            value!(32),
            "moe_latent_size is 32",
        ),
    ] {
        let mut config = json(&data(&format!("models/{family}/bf16/config.json")));
        config[key] = wrong;
        let error = ModelConfig::from_json(config.as_object().expect("an object"));
        let error = error.expect_err(key).to_string();
        assert!(error.contains(words), "{family}, {key}: {error}");
    }
}

// E18: what released files hold beside that changes nothing.
#[test]
fn keys_that_change_nothing_are_read() {
    use serde_json::json as value;
    for (family, extra) in [
        (
            "deepseek_v3",
            value!({"ep_size": 1, "aux_loss_alpha": 0.001, "seq_aux": true}),
        ),
        (
            "deepseek_v3",
            value!({"num_nextn_predict_layers": 0, "auto_map": {"AutoModel": "x"}}),
        ),
        (
            "qwen3_5_moe",
            value!({"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
                "mamba_ssm_dtype": "float32"}),
        ),
        (
            "lfm2",
            value!({"block_dim": 64, "conv_dim": 64, "conv_dim_out": 64, "num_heads": 4}),
        ),
        (
            "lfm2",
            value!({"use_pos_enc": true, "block_use_swiglu": true, "block_norm_eps": 1e-5}),
        ),
        (
            "lfm2",
            value!({"block_mlp_init_scale": 1.0, "conv_use_xavier_init": true}),
        ),
        (
            "falcon_h1",
            value!({"mamba_use_mlp": true, "mlp_expansion_factor": 8}),
        ),
        ("falcon_h1", value!({"attn_layer_indices": null})),
        (
            "nemotron_h",
            value!({"rms_norm_eps": 1e-5, "attention_head_dim": 32}),
        ),
        ("qwen2", value!({"use_mrope": false})),
    ] {
        let plain = json(&data(&format!("models/{family}/bf16/config.json")));
        let plain = plain.as_object().expect("an object");
        let mut longer = plain.clone();
        longer.extend(extra.as_object().expect("an object").clone());
        let [plain, longer] = [plain, &longer].map(ModelConfig::from_json);
        let longer = longer.unwrap_or_else(|error| panic!("{family}, {extra}: {error}"));
        assert_eq!(plain.expect("reads"), longer);
    }
}

// E18: a text model that stands in a model that also sees gives the same.
#[test]
fn a_text_model_inside_another_gives_the_references_logits() {
    for (family, class, prefix) in [
        ("gemma4", "Gemma4", "model.language_model."),
        ("qwen3_5_moe", "Qwen3_5Moe", "model.language_model."),
        ("gemma3", "Gemma3", "language_model.model."),
    ] {
        let mut text = json(&data(&format!("models/{family}/bf16/config.json")));
        let text = text.as_object_mut().expect("an object");
        text.remove("architectures");
        let wrapped = serde_json::json!({
            "architectures": [format!("{class}ForConditionalGeneration")], "model_type": family,
            "text_config": text, "vision_config": {"hidden_size": 8}, "image_token_id": 5,
        });
        let path = data(&format!("models/{family}/bf16/model.safetensors"));
        let stored = std::fs::read(path).expect("the tensors");
        let length = u64::from_le_bytes(*stored.first_chunk().expect("8 bytes")) as usize;
        let header: Json = serde_json::from_slice(&stored[8..8 + length]).expect("a header");
        let mut renamed = serde_json::Map::new();
        for (name, tensor) in header.as_object().expect("tensors") {
            let name = match name.strip_prefix("model.") {
                Some(rest) => format!("{prefix}{rest}"),
                None => name.clone(),
            };
            renamed.insert(name, tensor.clone());
        }
        renamed.insert(
            "model.visual.blocks.0.weight".to_owned(),
            serde_json::json!({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}),
        );
        let header = Json::Object(renamed).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(&stored[8 + length..]);
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.json"), wrapped.to_string()).expect("written");
        std::fs::write(folder.path().join("model.safetensors"), file).expect("written");

        let checkpoint = Checkpoint::open(folder.path()).expect("the checkpoint loads");
        let goldens = json(&data(&format!("models/{family}/goldens.json")));
        let prompt = &prompts(&goldens)[1];
        let mut model = load(&checkpoint, Backend::Cpu, 8);
        let found = chunked(&mut model, &ids(&prompt["prompt_ids"]), &[7]);
        let distance = distance(&found, &floats(&prompt["last_logits"]));
        assert!(distance < 2e-3, "{family}: {distance}");
    }
}

// E15, E16: cosines and sines of each recipe as the reference's own module gives them.
#[test]
fn rope_recipes_turn_as_the_references() {
    let tables = json(&data("rope.json"));
    let tables = tables.as_array().expect("a list of recipes");
    assert!(!tables.is_empty());
    for table in tables {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
            "max_position_embeddings": 65536, "num_attention_heads": 2, "head_dim": 32,
            "num_hidden_layers": 1, "vocab_size": 8, "rope_parameters": table["rope_parameters"],
        });
        let config = ModelConfig::from_json(config.as_object().expect("an object"));
        let config = config.expect("the recipe is read");
        let attention = config.attention_layers().next().expect("a layer");
        let rope = attention.rope.as_ref().expect("positions");
        let context = table["context"].as_u64().expect("a length") as usize;
        let frequencies = rope.inverse_frequencies(context);
        for (i, position) in ids(&table["positions"]).into_iter().enumerate() {
            let (cos, sin) = (floats(&table["cos"][i]), floats(&table["sin"][i]));
            assert_eq!(cos.len(), frequencies.len());
            for (pair, frequency) in frequencies.iter().enumerate() {
                let angle = position as f32 * frequency;
                // The reference's frequencies are a few roundings away, and the stored numbers
                // have six digits.
                let bound = 4.0 * f32::EPSILON * angle + 6e-6;
                let found = [angle.cos(), angle.sin()].map(|v| v * rope.magnitude());
                for (found, expected) in found.into_iter().zip([cos[pair], sin[pair]]) {
                    assert!(
                        (found - expected).abs() < bound,
                        "{}, context {context}, position {position}, pair {pair}: {found}, \
                         expected {expected}",
                        table["name"]
                    );
                }
            }
        }
    }
}
