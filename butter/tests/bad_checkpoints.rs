//! Truncated, garbled and lying checkpoints: each is an error of one line that
//! names what is wrong, none a panic or a large allocation.

mod support {
    pub mod allocator;
    pub mod gguf_writer;
    pub mod tokenizer_file;
}

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use butter::checkpoint::Checkpoint;
use butter::gguf::GgufHeader;
use butter::tokenizer::Tokenizer;
use serde_json::{Value, json};
use support::allocator::LARGEST;
use support::gguf_writer::{
    Raw, Writer, alphabet, f32_value, i32s_value, string_value, strings_value, u32_value,
};
use support::tokenizer_file;

/// Far above what these small files need (the tokenizer library's word cache is
/// the largest), far below what their wrong counts claim.
const LARGEST_ALLOWED: usize = 4 << 20;

fn assert_small_allocations() {
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(
        largest <= LARGEST_ALLOWED,
        "an allocation of {largest} bytes"
    );
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).expect("written");
        path
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The error of opening, on one line and with the file's name.
fn refusal(path: &Path) -> String {
    let error = Checkpoint::open(path)
        .expect_err("the checkpoint is wrong")
        .to_string();
    assert!(!error.contains('\n'), "{error:?}");
    assert!(
        error.contains(&path.parent().expect("a folder").display().to_string()),
        "{error}"
    );
    error
}

#[test]
fn the_small_file_itself_is_right() {
    let folder = Folder::new();
    let path = folder.write("model.gguf", &Writer::llama().file());
    for path in [path.as_path(), folder.path()] {
        let checkpoint = Checkpoint::open(path).expect("loads");
        let tokenizer = checkpoint.tokenizer.as_ref().expect("a tokenizer");
        assert_eq!(
            tokenizer.encode_prompt("abc<|end|> é").expect("encodes"),
            [258, 256, 32, 0xc3, 0xa9]
        );
        assert_eq!(tokenizer.encode_text("<|end|>").expect("encodes").len(), 7);
        assert_eq!(checkpoint.end_of_generation, [256]);
    }
}

#[test]
fn ends_that_are_no_tokens_are_refused() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/llama/bf16");
    let folder = Folder::new();
    for entry in fs::read_dir(&source).expect("a checkpoint") {
        let entry = entry.expect("a file");
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("copied");
    }
    let text = fs::read_to_string(source.join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    for wrong in [
        json!("x"),
        json!(-1),
        json!(2.5),
        json!({}),
        json!([27, 99_999]),
    ] {
        config["eos_token_id"] = wrong.clone();
        let path = folder.write("config.json", config.to_string().as_bytes());
        let error = Checkpoint::open(folder.path())
            .expect_err("refused")
            .to_string();
        let path = path.display().to_string();
        assert!(
            error.contains(&path) && error.contains("eos_token_id is"),
            "{wrong}: {error}"
        );
    }
    for (right, ends) in [
        (json!(null), vec![]),
        (json!(27), vec![27]),
        (json!([1, 2]), vec![1, 2]),
    ] {
        config["eos_token_id"] = right;
        folder.write("config.json", config.to_string().as_bytes());
        let checkpoint = Checkpoint::open(folder.path()).expect("loads");
        assert_eq!(checkpoint.end_of_generation, ends);
    }
    let weights = folder.path().join("config.json");
    assert!(refusal(&weights).contains("name its folder"));
}

#[test]
fn each_lie_is_named_with_both_values() {
    let folder = Folder::new();
    let huge = 1u64 << 63;
    type Change = Box<dyn Fn(&mut Writer)>;
    let set = |key: &'static str, value: Raw| -> Change {
        Box::new(move |writer| writer.set(key, value.clone()))
    };
    let huge_array = |element: u32| {
        let mut bytes = element.to_le_bytes().to_vec();
        bytes.extend(huge.to_le_bytes());
        Raw(9, bytes)
    };
    let cases: Vec<(&str, Change, &[&str])> = vec![
        (
            "magic",
            Box::new(|w| w.magic = *b"GGML"),
            &["magic is [47, 47, 4d, 4c]"],
        ),
        (
            "version 1",
            Box::new(|w| w.version = 1),
            &["version is 1, supported are 2 and 3"],
        ),
        (
            "endianness",
            Box::new(|w| w.version = 3 << 24),
            &["50331648", "big-endian"],
        ),
        (
            "tensor count",
            Box::new(move |w| w.tensor_count = Some(huge)),
            &["tensor_count counts 9223372036854775808"],
        ),
        (
            "key count",
            Box::new(move |w| w.metadata_count = Some(huge)),
            &["metadata_kv_count counts 9223372036854775808"],
        ),
        (
            "string",
            set("general.name", Raw(8, huge.to_le_bytes().to_vec())),
            &["general.name", "9223372036854775808 bytes"],
        ),
        (
            "strings",
            set("tokenizer.ggml.tokens", huge_array(8)),
            &["tokenizer.ggml.tokens counts 9223372036854775808"],
        ),
        (
            "floats",
            set("tokenizer.ggml.scores", huge_array(6)),
            &["tokenizer.ggml.scores counts"],
        ),
        ("bools", set("x.y", huge_array(7)), &["x.y counts"]),
        (
            "nested",
            set("x.y", huge_array(9)),
            &["`x.y` is an array of arrays"],
        ),
        (
            "element type",
            set("x.y", huge_array(13)),
            &["`x.y` has value type 13"],
        ),
        (
            "value type",
            set("x.y", Raw(99, Vec::new())),
            &["`x.y` has value type 99"],
        ),
        (
            "boolean",
            set("x.y", Raw(7, vec![2])),
            &["`x.y` is a boolean with value 2"],
        ),
        (
            "not UTF-8",
            set(
                "general.name",
                Raw(8, [&1u64.to_le_bytes()[..], &[0xff]].concat()),
            ),
            &["general.name", "not valid UTF-8"],
        ),
        (
            "duplicate key",
            Box::new(|w| w.metadata.push(("llama.block_count".into(), u32_value(1)))),
            &["`llama.block_count` stands twice"],
        ),
        (
            "alignment 0",
            set("general.alignment", u32_value(0)),
            &["general.alignment is integer 0"],
        ),
        (
            "alignment 24",
            set("general.alignment", u32_value(24)),
            &["integer 24"],
        ),
        (
            "alignment text",
            set("general.alignment", string_value("x")),
            &["string `x`"],
        ),
        (
            "long key",
            Box::new(|w| w.metadata.push(("k".repeat(70_000), u32_value(1)))),
            &["70000 bytes long, the limit is 65535"],
        ),
        (
            "rank",
            Box::new(|w| w.tensor("blk.0.attn_q.weight").dimensions = vec![32, 1, 1, 1, 32]),
            &["`blk.0.attn_q.weight` has 5 dimensions"],
        ),
        (
            "no rank",
            Box::new(|w| w.tensor("blk.0.attn_q.weight").dimensions.clear()),
            &["has 0 dimensions"],
        ),
        (
            "zero",
            Box::new(|w| w.tensor("blk.0.attn_q.weight").dimensions[1] = 0),
            &["a dimension of 0"],
        ),
        (
            "overflow",
            Box::new(|w| w.tensor("blk.0.attn_q.weight").dimensions = vec![1 << 32, 1 << 32]),
            &["[4294967296, 4294967296]", "overflows"],
        ),
        (
            "type",
            Box::new(|w| w.tensor("blk.0.attn_q.weight").ty = 4),
            &["type id 4"],
        ),
        (
            "K-quant",
            Box::new(|w| w.push("extra", &[256], 12)),
            &["`extra`", "not part of a llama model"],
        ),
        (
            "partial block",
            Box::new(|w| w.tensor("blk.0.attn_q.weight").dimensions[0] = 33),
            &["rows of 33 elements, Q4_0 stores blocks of 32"],
        ),
        (
            "unaligned",
            Box::new(|w| w.tensor("blk.0.attn_q.weight").offset += 1),
            &["no multiple of general.alignment = 32"],
        ),
        (
            "past the end",
            Box::new(|w| w.tensor("blk.0.ffn_down.weight").offset = 1 << 40),
            &["`blk.0.ffn_down.weight` ends at byte 1099511"],
        ),
        (
            "past all",
            Box::new(|w| w.tensor("blk.0.ffn_down.weight").offset = u64::MAX - 31),
            &["ends at byte 18446744073709551615"],
        ),
        (
            "overlap",
            Box::new(|w| {
                let at = w.tensor("blk.0.attn_q.weight").offset;
                w.tensor("blk.0.attn_k.weight").offset = at;
            }),
            &["they overlap", "attn_k", "attn_q"],
        ),
        (
            "twice",
            Box::new(|w| w.tensor("blk.0.attn_q.weight").name = "blk.0.attn_k.weight".into()),
            &["`blk.0.attn_k.weight` stands twice"],
        ),
        (
            "architecture",
            set("general.architecture", string_value("mamba\u{1b}[2J")),
            &["general.architecture is `mamba\\u{1b}[2J`, supported: \"llama\""],
        ),
        (
            "adapter",
            set("general.type", string_value("adapter")),
            &["general.type is string `adapter`"],
        ),
        (
            "split",
            set("split.count", u32_value(3)),
            &["split.count is integer 3"],
        ),
        (
            "no heads",
            set("llama.attention.head_count", u32_value(0)),
            &["head count is 0"],
        ),
        (
            "odd heads",
            set("llama.attention.head_count", u32_value(5)),
            &["32 for 5 heads"],
        ),
        (
            "kv heads",
            set("llama.attention.head_count_kv", u32_value(3)),
            &["3 for 4 query heads"],
        ),
        (
            "array of heads",
            set("llama.attention.head_count", i32s_value(&[4, 4])),
            &["array of 2 i32", "expected a non-negative integer"],
        ),
        (
            "many layers",
            set("llama.block_count", u32_value(u32::MAX)),
            &["layer count is 4294967295"],
        ),
        (
            "more layers",
            set("llama.block_count", u32_value(3)),
            &[
                "18 of 29 tensors are missing: blk.1.attn_q.weight",
                "and 6 more",
            ],
        ),
        (
            "epsilon",
            set(
                "llama.attention.layer_norm_rms_epsilon",
                f32_value(f32::NAN),
            ),
            &["epsilon is NaN"],
        ),
        (
            "RoPE base",
            set("llama.rope.freq_base", f32_value(0.0)),
            &["llama.rope.freq_base is 0"],
        ),
        (
            "rotary",
            set("llama.rope.dimension_count", u32_value(7)),
            &["7 of a head of 8"],
        ),
        (
            "RoPE recipe",
            set("llama.rope.scaling.type", string_value("yarn")),
            &["llama.rope.scaling.type is `yarn`"],
        ),
        (
            "unknown key",
            set("llama.attention.sinks", u32_value(1)),
            &["unknown key `llama.attention.sinks`"],
        ),
        (
            "experts",
            set("llama.expert_count", u32_value(8)),
            &["llama.expert_count is 8"],
        ),
        (
            "missing key",
            Box::new(|w| w.remove("llama.context_length")),
            &["llama.context_length is missing"],
        ),
        (
            "no context",
            set("llama.context_length", u32_value(0)),
            &["context length is 0"],
        ),
        (
            "vocabulary",
            set("llama.vocab_size", u32_value(200)),
            &["token_embd.weight has shape [259, 32], the config asks for [200, 32]"],
        ),
        (
            "missing tensor",
            Box::new(|w| w.tensors.retain(|t| !t.name.ends_with("attn_q.weight"))),
            &["1 of 11 tensors are missing: blk.0.attn_q.weight"],
        ),
        (
            "bias",
            Box::new(|w| w.push("blk.0.attn_q.bias", &[32], 0)),
            &["1 tensors are not part", "`blk.0.attn_q.bias`"],
        ),
        (
            "integers",
            Box::new(|w| w.tensor("output_norm.weight").ty = 26),
            &["output_norm.weight is stored as I32"],
        ),
        (
            "pre",
            set("tokenizer.ggml.pre", string_value("tekken")),
            &["tokenizer.ggml.pre is `tekken`, supported"],
        ),
        (
            "no pre",
            Box::new(|w| w.remove("tokenizer.ggml.pre")),
            &["tokenizer.ggml.pre is missing"],
        ),
        (
            "tokenizer",
            set("tokenizer.ggml.model", string_value("t5")),
            &["tokenizer.ggml.model is `t5`"],
        ),
        (
            "tokenizer key",
            set("tokenizer.ggml.magic", u32_value(1)),
            &["`tokenizer.ggml.magic`"],
        ),
        (
            "no space",
            set("tokenizer.ggml.merges", strings_value(&["ab".into()])),
            &["merge 0 is `ab`"],
        ),
        (
            "long merge",
            set(
                "tokenizer.ggml.merges",
                strings_value(&["<|end|> <|end|>".into()]),
            ),
            &["merge 0 is `<|end|> <|end|>`"],
        ),
        (
            "token id",
            set("tokenizer.ggml.eos_token_id", u32_value(259)),
            &["eos_token_id is 259, there are 259 tokens"],
        ),
        (
            "token kinds",
            set("tokenizer.ggml.token_type", i32s_value(&[1; 5])),
            &["5 entries for 259 tokens"],
        ),
        (
            "token kind",
            set("tokenizer.ggml.token_type", i32s_value(&[9; 259])),
            &["tokenizer.ggml.token_type is 9"],
        ),
        (
            "same tokens",
            set(
                "tokenizer.ggml.tokens",
                strings_value(&vec!["a".to_owned(); 259]),
            ),
            &["token `a` stands twice, as id 0 and id 1"],
        ),
    ];
    assert!(cases.len() >= 60, "{}", cases.len());
    for (case, change, words) in cases {
        // Names the case where the file is taken for a right one.
        println!("{case}");
        let mut writer = Writer::llama();
        change(&mut writer);
        let path = folder.write("model.gguf", &writer.file());
        let error = refusal(&path);
        for word in words {
            assert!(error.contains(word), "{case}: {error}");
        }
    }
    assert_small_allocations();
}

#[test]
fn every_truncation_is_refused() {
    let file = Writer::llama().file();
    let header_end = Writer::llama().header().len();
    for length in (0..header_end).chain((header_end..file.len()).step_by(97)) {
        assert!(
            GgufHeader::parse(&file[..length]).is_err(),
            "{length} bytes"
        );
    }
    let folder = Folder::new();
    for length in [0, 3, 4, 23, 24, header_end, file.len() - 1] {
        refusal(&folder.write("model.gguf", &file[..length]));
    }
    assert_small_allocations();
}

#[test]
fn no_flipped_bit_of_a_header_panics_or_allocates() {
    let folder = Folder::new();
    let file = Writer::llama().file();
    let header_end = Writer::llama().header().len();
    let mut opened = 0;
    for bit in 0..header_end * 8 {
        let mut garbled = file.clone();
        garbled[bit / 8] ^= 1 << (bit % 8);
        // Most flips fall on token texts; parse all, open a sample and all of
        // those at the start.
        let parses = GgufHeader::parse(&garbled).is_ok();
        if parses && (bit < 8 * 700 || bit % 13 == 0) {
            opened += 1;
            let _ = Checkpoint::open(&folder.write("model.gguf", &garbled));
        }
    }
    assert!(opened > 500, "{opened}");
    assert_small_allocations();
}

// E18, E19, E20
#[test]
fn wrong_hugging_face_folders_are_refused() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/llama/bf16");
    let config: Value =
        serde_json::from_slice(&fs::read(source.join("config.json")).expect("read")).expect("JSON");
    let weights = fs::read(source.join("model.safetensors")).expect("read");
    let header_length = u64::from_le_bytes(*weights.first_chunk().expect("8 bytes")) as usize;
    let folder = Folder::new();
    let write = |config: &Value, weights: &[u8]| {
        folder.write("config.json", config.to_string().as_bytes());
        folder.write("model.safetensors", weights);
        folder.path().to_owned()
    };
    let inner = |error: butter::checkpoint::LoadError| error.to_string();
    let open = |config: &Value, weights: &[u8]| Checkpoint::open(&write(config, weights));

    // Untied with a head of its own loads; tied with one loads only if it is the embedding again.
    assert!(open(&config, &weights).is_ok());
    let mut tied = config.clone();
    tied["tie_word_embeddings"] = json!(true);
    let error = inner(open(&tied, &weights).expect_err("tied with another head"));
    assert!(
        error.contains("lm_head.weight is not equal to model.embed_tokens.weight"),
        "{error}"
    );
    // Without the head, tied loads and untied names the tensor.
    let mut header: serde_json::Map<String, Value> =
        serde_json::from_slice(&weights[8..8 + header_length]).expect("JSON");
    let head = header.remove("lm_head.weight").expect("a head");
    assert_eq!(head["data_offsets"], json!([0, 65_536]), "it comes first");
    let place = &header["model.embed_tokens.weight"]["data_offsets"];
    let [start, end] = [0, 1].map(|i| place[i].as_u64().expect("an offset") as usize);
    let mut copied = weights.clone();
    let data = 8 + header_length;
    copied.copy_within(data + start..data + end, data);
    let checkpoint = open(&tied, &copied).expect("tied with a copy");
    assert!(checkpoint.weights.output.is_none(), "the embedding serves");
    for offset in header
        .values_mut()
        .filter_map(|tensor| tensor.get_mut("data_offsets")?.as_array_mut())
        .flatten()
    {
        *offset = json!(offset.as_u64().expect("an offset") - 65_536);
    }
    let header = Value::Object(header).to_string();
    let mut headless = (header.len() as u64).to_le_bytes().to_vec();
    headless.extend(header.as_bytes());
    headless.extend(&weights[8 + header_length + 65_536..]);
    assert!(open(&tied, &headless).is_ok());
    let error = inner(open(&config, &headless).expect_err("no head"));
    assert!(
        error.contains("1 of 57 tensors are missing: lm_head.weight"),
        "{error}"
    );

    for length in (0..8 + header_length)
        .step_by(41)
        .chain([weights.len() - 1])
    {
        assert!(open(&config, &weights[..length]).is_err(), "{length} bytes");
    }
    for bit in (0..64).chain((64..(8 + header_length) * 8).step_by(37)) {
        let mut garbled = weights.clone();
        garbled[bit / 8] ^= 1 << (bit % 8);
        let _ = open(&config, &garbled);
    }

    let mut wrong = config.clone();
    wrong["num_hidden_layers"] = json!(5);
    let error = inner(open(&wrong, &weights).expect_err("a layer too many"));
    assert!(
        error.contains("9 tensors are not part of a llama model"),
        "{error}"
    );
    let index = json!({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}});
    folder.write("model.safetensors.index.json", index.to_string().as_bytes());
    let error = inner(open(&config, &weights).expect_err("no shards"));
    assert!(
        error.contains("missing shards: `one.safetensors`, `two.safetensors`"),
        "{error}"
    );
    let index = json!({"weight_map": {"a": "../one.safetensors"}});
    folder.write("model.safetensors.index.json", index.to_string().as_bytes());
    let error = inner(open(&config, &weights).expect_err("a path"));
    assert!(error.contains("is not a file name"), "{error}");
    assert_small_allocations();
}

#[test]
fn wrong_tokenizer_files_are_refused() {
    let folder = Folder::new();
    let post_processor = json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}}});
    let right = tokenizer_file::byte_level(alphabet(), post_processor);
    let open = |json: &Value| {
        let path = folder.write("tokenizer.json", json.to_string().as_bytes());
        Tokenizer::from_tokenizer_json(&path, Some("<s>"), None)
    };
    let tokenizer = open(&right).expect("loads");
    assert_eq!(
        tokenizer.encode_prompt("ab<s>").expect("encodes"),
        [257, 256, 257]
    );
    assert_eq!(tokenizer.encode_text("<s>").expect("encodes").len(), 3);
    assert_eq!(
        tokenizer.decode(&[257, 256, 0xf0, 0x9f, 0xa6, 0x8a]),
        "ab🦊"
    );

    for (pointer, value, words) in [
        ("/model/merges", json!(["a b", "ab ab"]), "merge 1"),
        ("/model/merges", json!([["a", 1]]), "merge 0"),
        ("/model/merges", json!(null), "model.merges is missing"),
        (
            "/model/type",
            json!("Unigram"),
            "model.type is `Unigram`, supported: BPE",
        ),
        ("/model/type", json!(null), "model.type is missing"),
        ("/model/vocab", json!([]), "model.vocab is missing"),
        (
            "/decoder",
            json!({"type": "WordPiece"}),
            "decoder is `WordPiece`",
        ),
        ("/decoder", json!(null), "decoder is missing"),
        ("/pre_tokenizer", json!({"type": "Nonsense"}), ""),
        ("/pre_tokenizer", json!({}), ""),
        (
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
            "",
        ),
        ("/normalizer", json!({"type": 3}), ""),
        ("/post_processor", json!([]), ""),
        ("/added_tokens", json!([{"id": 257}]), ""),
        ("/added_tokens", json!([]), "bos_token is `<s>`"),
        ("", json!([]), "not a JSON object"),
    ] {
        let mut wrong = right.clone();
        *wrong.pointer_mut(pointer).expect("that place") = value;
        let error = open(&wrong).expect_err(pointer).to_string();
        assert!(error.contains(words), "{pointer}: {error}");
    }
    assert_small_allocations();
}
