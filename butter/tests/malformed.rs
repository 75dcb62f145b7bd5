//! Malformed checkpoints made by a generator: a good one, changed in one place. Each must be an
//! error of one line that names the file and what is wrong in it; none may panic, hang, or
//! allocate more than the file itself justifies.
//!
//! A change that the loader takes must not have changed what it read: a key that is listed as
//! irrelevant may hold anything.

mod support {
    pub mod allocator;
    pub mod gguf_writer;
    pub mod random;
    pub mod tokenizer_file;
}

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use butter::checkpoint::Checkpoint;
use butter::config::ModelConfig;
use butter::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use support::allocator::LARGEST;
use support::gguf_writer::{Raw, Writer};
use support::random::Random;
use support::tokenizer_file;

const LARGEST_ALLOWED: usize = 64 << 20;
const LONGEST: Duration = Duration::from_secs(20);

/// Every family that there are test models of; of the first six, files of weights are garbled too.
const FAMILIES: [&str; 17] = [
    "llama",
    "qwen3",
    "gemma3",
    "qwen3_moe",
    "qwen3_next",
    "granitemoehybrid",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3_5_moe",
    "gemma4",
    "olmo3",
    "gpt_oss",
    "deepseek_v3",
    "falcon_h1",
    "nemotron_h",
    "lfm2",
];

/// What the cases of one kind came to.
#[derive(Default)]
struct Tally {
    refused: usize,
    irrelevant: usize,
    /// Cases that went wrong, all shown at the end.
    faults: Vec<String>,
}

impl Tally {
    /// An error of one line that has the folder and one of the words; or, where `same` says so,
    /// no change.
    fn take<T>(
        &mut self,
        case: &str,
        words: &[&str],
        open: impl FnOnce() -> Result<T, String>,
        same: impl FnOnce(&T) -> bool,
    ) {
        let start = Instant::now();
        match open() {
            Ok(found) if same(&found) => self.irrelevant += 1,
            Ok(_) => self.faults.push(format!("{case}: taken")),
            Err(error) => {
                self.refused += 1;
                let named = words.iter().any(|word| error.contains(word));
                if error.contains('\n') || !named || error.len() > 1000 {
                    let shown: String = error.chars().take(300).collect();
                    self.faults
                        .push(format!("{case}: {words:?} not in {shown}"));
                }
            }
        }
        if start.elapsed() > LONGEST {
            self.faults.push(format!("{case}: {:?}", start.elapsed()));
        }
        let largest = LARGEST.swap(0, Ordering::Relaxed);
        if largest > LARGEST_ALLOWED {
            self.faults
                .push(format!("{case}: an allocation of {largest} bytes"));
        }
    }

    fn finish(self, least: usize) {
        println!("{} refused, {} irrelevant", self.refused, self.irrelevant);
        assert!(
            self.faults.is_empty(),
            "{} faults:\n{}",
            self.faults.len(),
            self.faults.join("\n")
        );
        assert!(self.refused >= least, "{} of {least}", self.refused);
    }
}

fn source(family: &str) -> PathBuf {
    let path = format!("../tests/data/models/{family}/bf16");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A folder with the files of a family's checkpoint.
fn copy_of(family: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(source(family).join(file), folder.path().join(file)).expect("copied");
    }
    folder
}

fn open(path: &Path) -> Result<Checkpoint, String> {
    Checkpoint::open(path).map_err(|error| {
        let error = error.to_string();
        // The message names the file by its whole path; what is left must name the rest.
        let folder = path.parent().expect("a folder").display().to_string();
        assert!(error.contains(&folder), "{error}");
        error
    })
}

/// A value that such a key may have: only the tensors, or nobody, could tell that it is wrong.
fn is_plausible(key: &str, right: &Value, wrong: &Value) -> bool {
    const FLOATS: [&str; 5] = [
        "query_pre_attn_scalar",
        "routed_scaling_factor",
        "embedding_multiplier",
        "beta_fast",
        "beta_slow",
    ];
    // Flags that change what is computed, and no tensor.
    const FLAGS: [&str; 3] = ["norm_topk_prob", "rope_interleave", "truncate"];
    if wrong.is_boolean() && right.is_boolean() {
        return FLAGS.contains(&key);
    }
    let is_float = right.is_f64() || FLOATS.contains(&key);
    match wrong.as_f64() {
        // An epsilon, and what is a matter of training, may be 0; a factor may not.
        Some(number) if is_float => {
            let may_be_zero = key.contains("eps");
            (number > 0.0 || number == 0.0 && may_be_zero) && (number as f32).is_finite()
        }
        Some(_) => wrong.as_u64().is_some_and(|n| (1..1 << 31).contains(&n)),
        None => false,
    }
}

/// Values that a key of this one's type must not have.
fn wrong_values(right: &Value) -> Vec<Value> {
    let nonsense = [
        json!("nonsense\u{1b}[2J"),
        json!([1, "x"]),
        json!({"a": {"b": 1}}),
    ];
    let mut wrong: Vec<Value> = nonsense.to_vec();
    match right {
        Value::Number(number) if number.is_f64() => {
            wrong.extend([json!(true), json!(-1.0), json!(0.0), json!(1e39)]);
        }
        Value::Number(_) => wrong.extend([
            json!(true),
            json!(-1),
            json!(1.5),
            json!(0),
            json!(7_777_777),
            json!(1u64 << 62),
            json!(u64::MAX),
            json!(1e300),
        ]),
        Value::Bool(flag) => wrong.extend([json!(1), json!("true"), json!(!flag)]),
        Value::String(_) => wrong.extend([json!(3), json!(true), json!("")]),
        Value::Array(list) => {
            let mut longer = list.clone();
            longer.push(list.first().cloned().unwrap_or(json!(1)));
            let shorter = &list[..list.len().saturating_sub(1)];
            wrong.extend([
                json!(3),
                json!("x"),
                json!(longer),
                json!(shorter),
                json!([null]),
            ]);
            if list.iter().any(Value::is_number) {
                let all = |value: Value| json!(vec![value; list.len()]);
                wrong.extend([
                    all(json!(-1)),
                    all(json!(-1.5)),
                    all(json!(1e39)),
                    all(json!(0)),
                ]);
            }
        }
        Value::Object(_) => wrong.extend([json!(3), json!([])]),
        Value::Null => {}
    }
    // A string is wrong for a string, an object for an object, only by what it says.
    wrong.retain(|value| value != right);
    wrong
}

/// Every key of a config and of the objects in it, as JSON pointers.
fn pointers(value: &Value, prefix: &str, found: &mut Vec<String>) {
    if let Value::Object(object) = value {
        for (key, inner) in object {
            let pointer = format!("{prefix}/{key}");
            pointers(inner, &pointer, found);
            found.push(pointer);
        }
    }
}

// E19, E31
#[test]
fn a_config_with_a_wrong_value_is_refused_by_its_key() {
    let mut tally = Tally::default();
    // An eighth of the cases, in CI's time; `BUTTER_ALL_CASES` asks for all.
    let all = std::env::var_os("BUTTER_ALL_CASES").is_some();
    let mut random = Random(19);
    for family in FAMILIES {
        let folder = copy_of(family);
        for file in ["config.json", "config.v5.json"] {
            let config: Value =
                serde_json::from_slice(&fs::read(source(family).join(file)).expect("read"))
                    .expect("JSON");
            let path = folder.path().join("config.json");
            fs::write(&path, config.to_string()).expect("written");
            let right = Checkpoint::open(folder.path()).expect("loads").config;
            let mut keys = Vec::new();
            pointers(&config, "", &mut keys);
            for pointer in keys {
                let key = pointer.rsplit('/').next().expect("a key");
                for wrong in wrong_values(config.pointer(&pointer).expect("there")) {
                    if !all && random.below(8) > 0 {
                        continue;
                    }
                    let mut changed = config.clone();
                    *changed.pointer_mut(&pointer).expect("there") = wrong.clone();
                    fs::write(&path, changed.to_string()).expect("written");
                    let words = [key, ".weight", ".bias", "tensor model.layers."];
                    let case = format!("{family} {file} {pointer} = {wrong}");
                    let plausible =
                        is_plausible(key, config.pointer(&pointer).expect("there"), &wrong);
                    let same = |checkpoint: &Checkpoint| plausible || checkpoint.config == right;
                    tally.take(&case, &words, || open(folder.path()), same);
                }
            }
        }
    }
    tally.finish(200);
}

#[test]
fn text_that_is_no_config_is_refused_by_its_file() {
    let mut tally = Tally::default();
    let folder = copy_of("qwen3");
    let path = folder.path().join("config.json");
    let right = fs::read_to_string(&path).expect("read");
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let inside = |value: &str| right.replacen('{', &format!("{{\"x\": {value},"), 1);
    let mut texts: Vec<String> = vec![
        String::new(),
        "null".into(),
        "[]".into(),
        "\u{feff}{}".into(),
        "{}".into(),
        nested(100_000),
        inside(&nested(100_000)),
        inside("NaN"),
        inside("-Infinity"),
        inside("1e999999"),
        inside("\"\\ud800\""),
        inside(&format!("\"{}\"", "y".repeat(1 << 20))),
        right.replace(':', "="),
        right.replacen(
            "\"hidden_size\"",
            "\"hidden_size\": 128, \"hidden_size\"",
            1,
        ),
        right.replacen("\"vocab_size\"", "\"vocab_sise\"", 1),
        format!("{right}{right}"),
    ];
    texts.extend(
        (1..right.len())
            .step_by(right.len() / 40)
            .map(|at| right[..at].to_owned()),
    );
    for (i, text) in texts.iter().enumerate() {
        fs::write(&path, text).expect("written");
        tally.take(
            &format!("text {i}"),
            &["config.json"],
            || open(folder.path()),
            |_| false,
        );
    }
    for (i, bytes) in [&b"\xff\xfe{\0}\0"[..], &[0; 64], b"{\"a\xff\": 1}"]
        .iter()
        .enumerate()
    {
        fs::write(&path, bytes).expect("written");
        tally.take(
            &format!("bytes {i}"),
            &["config.json"],
            || open(folder.path()),
            |_| false,
        );
    }
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    tally.take(
        "a folder",
        &["config.json"],
        || open(folder.path()),
        |_| false,
    );
    tally.finish(50);
}

/// A safetensors file of this header and data.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

// E20
#[test]
fn a_safetensors_file_with_a_wrong_entry_is_refused_by_its_tensor() {
    let mut tally = Tally::default();
    let mut random = Random(20);
    for family in &FAMILIES[..6] {
        let folder = copy_of(family);
        let path = folder.path().join("model.safetensors");
        let bytes = fs::read(&path).expect("read");
        let length = u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes")) as usize;
        let header: Map<String, Value> =
            serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
        let data = &bytes[8 + length..];
        let names: Vec<&String> = header
            .keys()
            .filter(|name| *name != "__metadata__")
            .collect();
        for round in 0..24 {
            let name = names[random.below(names.len())].clone();
            let entry = &header[&name];
            let mut changed = header.clone();
            let change = |key: &str, value: Value| {
                let mut entry = entry.clone();
                entry[key] = value;
                entry
            };
            let offsets = &entry["data_offsets"];
            let (start, end) = (
                offsets[0].as_u64().expect("a start"),
                offsets[1].as_u64().expect("an end"),
            );
            let (case, replaced) = match round {
                0 => ("dtype", change("dtype", json!("I64"))),
                1 => ("dtype type", change("dtype", json!(16))),
                2 => ("unknown dtype", change("dtype", json!("BF17"))),
                3 => ("wider dtype", change("dtype", json!("F32"))),
                4 => ("negative extent", change("shape", json!([-1, 64]))),
                5 => ("fraction", change("shape", json!([1.5]))),
                6 => ("no list", change("shape", json!(64))),
                7 => ("product", change("shape", json!([1u64 << 32, 1u64 << 32]))),
                8 => ("huge", change("shape", json!([u64::MAX]))),
                9 => ("zero", change("shape", json!([0, 64]))),
                10 => ("many dimensions", change("shape", json!(vec![1; 4000]))),
                11 => ("scalar", change("shape", json!([]))),
                12 => ("reversed", change("data_offsets", json!([end, start]))),
                13 => ("beyond", change("data_offsets", json!([start, u64::MAX]))),
                14 => (
                    "beyond the file",
                    change("data_offsets", json!([start, data.len() + 2])),
                ),
                15 => ("three", change("data_offsets", json!([start, end, end]))),
                16 => ("negative", change("data_offsets", json!([-1, end]))),
                17 => ("empty", change("data_offsets", json!([start, start]))),
                18 => ("text", change("data_offsets", json!("0, 1"))),
                19 => ("no object", json!([])),
                20 => ("null", Value::Null),
                21 => ("unknown field", change("shap", json!([1]))),
                22 => ("shift", change("data_offsets", json!([start + 2, end + 2]))),
                _ => ("gone", Value::Null),
            };
            if case == "gone" {
                changed.remove(&name);
            } else {
                changed.insert(name.clone(), replaced);
            }
            let header = Value::Object(changed).to_string();
            fs::write(&path, safetensors(&header, data)).expect("written");
            let case = format!("{family} {name}: {case}");
            let words = [name.as_str(), "model.safetensors"];
            tally.take(&case, &words, || open(folder.path()), |_| false);
        }
        // An entry more, one twice, and data that nobody names.
        let more = |entry: &str| {
            let text = Value::Object(header.clone()).to_string();
            format!("{{{entry},{}", &text[1..])
        };
        let first = format!("\"{}\":{}", names[0], header[names[0].as_str()]);
        let unnamed = [data, &[0; 6]].concat();
        for (case, header, data) in [
            ("twice", more(&first), data),
            (
                "overlap",
                more("\"extra.weight\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}"),
                data,
            ),
            (
                "a long name",
                more(&format!("\"{}\":{{}}", "n".repeat(1 << 20))),
                data,
            ),
            ("metadata", more("\"__metadata__\":{\"format\":3}"), data),
            (
                "unnamed data",
                Value::Object(header.clone()).to_string(),
                unnamed.as_slice(),
            ),
            (
                "deep",
                more(&format!("\"x\":{}", "[".repeat(200_000))),
                data,
            ),
        ] {
            fs::write(&path, safetensors(&header, data)).expect("written");
            let case = format!("{family}: {case}");
            tally.take(
                &case,
                &["model.safetensors"],
                || open(folder.path()),
                |_| false,
            );
        }
        for claimed in [
            0,
            1,
            7,
            length as u64 - 1,
            length as u64 + 1,
            1 << 27,
            1 << 40,
            u64::MAX - 7,
            u64::MAX,
        ] {
            let mut changed = bytes.clone();
            changed[..8].copy_from_slice(&claimed.to_le_bytes());
            fs::write(&path, changed).expect("written");
            let case = format!("{family}: a header of {claimed}");
            tally.take(
                &case,
                &["model.safetensors"],
                || open(folder.path()),
                |_| false,
            );
        }
        for cut in [0, 3, 8, 9, 8 + length - 1, 8 + length, bytes.len() - 1] {
            fs::write(&path, &bytes[..cut]).expect("written");
            let case = format!("{family}: {cut} bytes");
            tally.take(
                &case,
                &["model.safetensors"],
                || open(folder.path()),
                |_| false,
            );
        }
    }
    tally.finish(200);
}

#[test]
fn an_index_that_lies_is_refused_by_its_file_or_shard() {
    let mut tally = Tally::default();
    let folder = copy_of("llama");
    let index = folder.path().join("model.safetensors.index.json");
    let bytes = fs::read(folder.path().join("model.safetensors")).expect("read");
    let length = u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes")) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    fs::rename(
        folder.path().join("model.safetensors"),
        folder.path().join("a.safetensors"),
    )
    .expect("moved");
    let names = || header.keys().filter(|name| *name != "__metadata__");
    let map: Map<String, Value> = names()
        .map(|name| (name.clone(), json!("a.safetensors")))
        .collect();
    fs::write(&index, json!({"weight_map": map}).to_string()).expect("written");
    open(folder.path()).expect("the right index loads");
    let with = |name: &str, file: Value| {
        let mut map = map.clone();
        map.insert(name.to_owned(), file);
        json!({"weight_map": map})
    };
    let first = names().next().expect("a tensor").clone();
    for (case, json, word) in [
        ("a list", json!([]), "index.json"),
        ("empty", json!({}), "weight_map"),
        ("no map", json!({"weight_map": 3}), "weight_map"),
        ("nothing", json!({"weight_map": {}}), "weight_map"),
        ("a number", with(&first, json!(3)), "weight_map"),
        (
            "a list of files",
            with(&first, json!(["a.safetensors"])),
            "weight_map",
        ),
        (
            "a missing shard",
            with(&first, json!("b.safetensors")),
            "b.safetensors",
        ),
        (
            "two missing",
            with("x", json!("c.safetensors")),
            "c.safetensors",
        ),
        (
            "a path",
            with(&first, json!("../a.safetensors")),
            "../a.safetensors",
        ),
        (
            "absolute",
            with(&first, json!("/etc/passwd")),
            "/etc/passwd",
        ),
        (
            "itself",
            with(&first, json!("model.safetensors.index.json")),
            "model.safetensors.index.json",
        ),
        ("empty name", with(&first, json!("")), "index.json"),
        ("dots", with(&first, json!("..")), "\"..\""),
        (
            "a tensor that no shard has",
            with("ghost.weight", json!("a.safetensors")),
            "ghost.weight",
        ),
    ] {
        fs::write(&index, json.to_string()).expect("written");
        tally.take(case, &[word], || open(folder.path()), |_| false);
    }
    for (case, text) in [
        ("cut", "{\"weight_map\": {"),
        ("no JSON", "weights"),
        ("none", ""),
    ] {
        fs::write(&index, text).expect("written");
        tally.take(case, &["index.json"], || open(folder.path()), |_| false);
    }
    tally.finish(17);
}

#[test]
fn a_gguf_file_with_a_wrong_value_is_refused_by_its_key_or_tensor() {
    let mut tally = Tally::default();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let right = Writer::llama();
    fs::write(&path, right.file()).expect("written");
    let config = Checkpoint::open(&path).expect("loads").config;
    let array = |element: u32, count: u64| {
        let mut bytes = element.to_le_bytes().to_vec();
        bytes.extend(count.to_le_bytes());
        Raw(9, bytes)
    };
    let values = [
        ("a negative", Raw(5, (-1i32).to_le_bytes().to_vec())),
        ("a huge number", Raw(10, u64::MAX.to_le_bytes().to_vec())),
        ("NaN", Raw(6, f32::NAN.to_le_bytes().to_vec())),
        ("infinity", Raw(12, f64::INFINITY.to_le_bytes().to_vec())),
        ("zero", Raw(4, vec![0; 4])),
        ("a flag of 2", Raw(7, vec![2])),
        ("an empty string", Raw(8, vec![0; 8])),
        (
            "a string without end",
            Raw(8, u64::MAX.to_le_bytes().to_vec()),
        ),
        (
            "a string of no text",
            Raw(8, [&3u64.to_le_bytes()[..], &[0xff, 0xfe, 0xfd]].concat()),
        ),
        ("no known type", Raw(77, vec![0; 8])),
        ("an empty array", array(4, 0)),
        ("an array without end", array(8, 1 << 60)),
        (
            "an array of arrays",
            Raw(9, [&9u32.to_le_bytes()[..], &[0; 8]].concat()),
        ),
    ];
    for (key, _) in &right.metadata {
        for (case, value) in &values {
            let mut writer = right.clone();
            writer.set(key, value.clone());
            fs::write(&path, writer.file()).expect("written");
            // What a broken value hides may be named by the one behind it.
            let words = [
                key.as_str(),
                key.rsplit('.').next().expect("a word"),
                "token",
                "weight",
                "head",
                "layer",
                "type",
                "model.gguf",
            ];
            let case = format!("{key}: {case}");
            let same = |checkpoint: &Checkpoint| {
                checkpoint.config == config
                    || ["token", "epsilon", "freq_base"]
                        .iter()
                        .any(|word| key.contains(word))
            };
            tally.take(&case, &words, || open(&path), same);
        }
    }
    for place in 0..right.tensors.len() {
        let name = right.tensors[place].name.clone();
        for round in 0..10 {
            let mut writer = right.clone();
            let tensor = &mut writer.tensors[place];
            match round {
                0 => tensor.dimensions = vec![u64::MAX],
                1 => tensor.dimensions = vec![1 << 33, 1 << 33],
                2 => tensor.dimensions = vec![0],
                3 => tensor.dimensions = vec![1; 9],
                4 => tensor.dimensions.push(2),
                5 => tensor.offset = 1 << 50,
                6 => tensor.offset += 1,
                7 => tensor.ty = 999,
                8 => tensor.name = "blk.0.what.weight".to_owned(),
                _ => {
                    let twin = tensor.clone();
                    writer.tensors.push(twin);
                }
            }
            fs::write(&path, writer.file()).expect("written");
            let case = format!("{name}: change {round}");
            tally.take(
                &case,
                &[name.as_str(), "blk.0.what"],
                || open(&path),
                |_| false,
            );
        }
    }
    tally.finish(200);
}

#[test]
fn a_tokenizer_with_a_wrong_value_is_refused_or_still_works() {
    let mut tally = Tally::default();
    let folder = tempfile::tempdir().expect("a folder");
    let right = tokenizer_file::byte_level(support::gguf_writer::alphabet(), Value::Null);
    let path = folder.path().join("tokenizer.json");
    let open = || {
        let opened = Tokenizer::from_tokenizer_json(&path, None, None);
        opened.map_err(|error| error.to_string())
    };
    // What opens must take any text.
    let works = |tokenizer: &Tokenizer| {
        let ids = tokenizer.encode_text("ab <s> é🦊");
        if let Ok(ids) = ids {
            tokenizer.decode(&ids);
        }
        true
    };
    let mut keys = Vec::new();
    pointers(&right, "", &mut keys);
    let mut random = Random(21);
    // Of the vocabulary's many entries a few.
    keys.retain(|key| !key.starts_with("/model/vocab/") || random.below(16) == 0);
    keys.extend((0..7).map(|i| {
        format!(
            "/added_tokens/0/{}",
            [
                "id",
                "content",
                "single_word",
                "lstrip",
                "rstrip",
                "normalized",
                "special"
            ][i]
        )
    }));
    for pointer in keys {
        let Some(value) = right.pointer(&pointer) else {
            continue;
        };
        let mut values = wrong_values(value);
        values.extend([Value::Null, json!(4_294_967_295u64), json!(1u64 << 40)]);
        for wrong in values {
            let mut changed = right.clone();
            *changed.pointer_mut(&pointer).expect("there") = wrong.clone();
            fs::write(&path, changed.to_string()).expect("written");
            let case = format!("{pointer} = {wrong}");
            tally.take(&case, &["tokenizer.json"], open, works);
        }
    }
    let text = right.to_string();
    for at in (0..text.len()).step_by(text.len() / 60) {
        if text.is_char_boundary(at) {
            fs::write(&path, &text[..at]).expect("written");
            tally.take(&format!("{at} bytes"), &["tokenizer.json"], open, |_| false);
        }
    }
    let deep = text.replacen("null", &"[".repeat(100_000), 1);
    fs::write(&path, deep).expect("written");
    tally.take("deep", &["tokenizer.json"], open, |_| false);
    tally.finish(150);
}

/// The config alone, as `butter inspect` reads it.
#[test]
fn a_config_read_alone_is_checked_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.json");
    for text in [
        "",
        "{}",
        "{\"model_type\": 3}",
        "{\"model_type\": \"gpt5\"}",
    ] {
        fs::write(&path, text).expect("written");
        let error = ModelConfig::from_config_json(&path)
            .expect_err(text)
            .to_string();
        assert!(error.contains("config.json"), "{error}");
    }
}
