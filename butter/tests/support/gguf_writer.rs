//! Writes small GGUF files, right and wrong ones.

#![allow(dead_code, reason = "each test binary uses its own part")]

/// A metadata value as bytes with its type id.
#[derive(Clone)]
pub struct Raw(pub u32, pub Vec<u8>);

pub fn u32_value(value: u32) -> Raw {
    Raw(4, value.to_le_bytes().to_vec())
}

pub fn f32_value(value: f32) -> Raw {
    Raw(6, value.to_le_bytes().to_vec())
}

pub fn bool_value(value: bool) -> Raw {
    Raw(7, vec![value.into()])
}

pub fn string_value(value: &str) -> Raw {
    Raw(8, string(value))
}

pub fn strings_value(values: &[String]) -> Raw {
    let mut bytes = 8u32.to_le_bytes().to_vec();
    bytes.extend((values.len() as u64).to_le_bytes());
    bytes.extend(values.iter().flat_map(|value| string(value)));
    Raw(9, bytes)
}

pub fn i32s_value(values: &[i32]) -> Raw {
    let mut bytes = 5u32.to_le_bytes().to_vec();
    bytes.extend((values.len() as u64).to_le_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    Raw(9, bytes)
}

fn string(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend(value.as_bytes());
    bytes
}

/// A tensor: name, dimensions as GGUF stores them (fastest first), type id,
/// data offset, bytes of data.
#[derive(Clone)]
pub struct RawTensor {
    pub name: String,
    pub dimensions: Vec<u64>,
    pub ty: u32,
    pub offset: u64,
    pub bytes: usize,
}

/// A file in parts, so that a test can change one of them.
#[derive(Clone)]
pub struct Writer {
    pub magic: [u8; 4],
    pub version: u32,
    pub metadata: Vec<(String, Raw)>,
    pub tensors: Vec<RawTensor>,
    pub metadata_count: Option<u64>,
    pub tensor_count: Option<u64>,
}

impl Writer {
    /// A Llama of one layer with a byte-level tokenizer of 256 + 3 tokens.
    pub fn llama() -> Self {
        let mut tokens: Vec<String> = alphabet().into_iter().map(String::from).collect();
        tokens.extend(["<|end|>".to_owned(), "ab".to_owned(), "abc".to_owned()]);
        let mut kinds = vec![1; tokens.len()];
        kinds[256] = 3;
        let vocabulary = tokens.len() as u64;
        let metadata = [
            ("general.architecture", string_value("llama")),
            ("general.name", string_value("tiny")),
            ("llama.block_count", u32_value(1)),
            ("llama.context_length", u32_value(64)),
            ("llama.embedding_length", u32_value(32)),
            ("llama.feed_forward_length", u32_value(64)),
            ("llama.attention.head_count", u32_value(4)),
            ("llama.attention.head_count_kv", u32_value(2)),
            ("llama.attention.layer_norm_rms_epsilon", f32_value(1e-5)),
            ("llama.rope.freq_base", f32_value(10_000.0)),
            ("tokenizer.ggml.model", string_value("gpt2")),
            ("tokenizer.ggml.pre", string_value("smollm")),
            ("tokenizer.ggml.tokens", strings_value(&tokens)),
            ("tokenizer.ggml.token_type", i32s_value(&kinds)),
            (
                "tokenizer.ggml.merges",
                strings_value(&["a b".to_owned(), "ab c".to_owned()]),
            ),
            ("tokenizer.ggml.eos_token_id", u32_value(256)),
            ("tokenizer.ggml.add_bos_token", bool_value(false)),
        ];
        let mut writer = Self {
            magic: *b"GGUF",
            version: 3,
            metadata: metadata
                .map(|(key, value)| (key.to_owned(), value))
                .to_vec(),
            tensors: Vec::new(),
            metadata_count: None,
            tensor_count: None,
        };
        writer.push("token_embd.weight", &[32, vocabulary], 8);
        writer.push("output_norm.weight", &[32], 0);
        for (name, dimensions, ty) in [
            ("attn_norm", &[32][..], 0),
            ("attn_q", &[32, 32], 2),
            ("attn_k", &[32, 16], 3),
            ("attn_v", &[32, 16], 1),
            ("attn_output", &[32, 32], 30),
            ("ffn_norm", &[32], 0),
            ("ffn_gate", &[32, 64], 0),
            ("ffn_up", &[32, 64], 0),
            ("ffn_down", &[64, 32], 3),
        ] {
            writer.push(&format!("blk.0.{name}.weight"), dimensions, ty);
        }
        writer
    }

    /// Adds a tensor behind the last one.
    pub fn push(&mut self, name: &str, dimensions: &[u64], ty: u32) {
        let end = self
            .tensors
            .last()
            .map_or(0, |t| (t.offset as usize + t.bytes).div_ceil(32) * 32);
        let elements: u64 = dimensions.iter().product();
        let bytes = butter::gguf::TensorType::from_id(ty)
            .and_then(|ty| ty.bytes_of(elements as usize))
            .expect("a known type and whole blocks");
        self.tensors.push(RawTensor {
            name: name.to_owned(),
            dimensions: dimensions.to_vec(),
            ty,
            offset: end as u64,
            bytes,
        });
    }

    pub fn set(&mut self, key: &str, value: Raw) {
        match self.metadata.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.metadata.retain(|(name, _)| name != key);
    }

    pub fn tensor(&mut self, name: &str) -> &mut RawTensor {
        self.tensors
            .iter_mut()
            .find(|tensor| tensor.name == name)
            .expect("that tensor")
    }

    /// The bytes before the tensor data.
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(
            self.tensor_count
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        bytes.extend(
            self.metadata_count
                .unwrap_or(self.metadata.len() as u64)
                .to_le_bytes(),
        );
        for (key, value) in &self.metadata {
            bytes.extend(string(key));
            bytes.extend(value.0.to_le_bytes());
            bytes.extend(&value.1);
        }
        for tensor in &self.tensors {
            bytes.extend(string(&tensor.name));
            bytes.extend((tensor.dimensions.len() as u32).to_le_bytes());
            bytes.extend(tensor.dimensions.iter().flat_map(|d| d.to_le_bytes()));
            bytes.extend(tensor.ty.to_le_bytes());
            bytes.extend(tensor.offset.to_le_bytes());
        }
        bytes
    }

    /// The whole file; weights are small codes, norms are what the bytes give.
    pub fn file(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        let start = bytes.len();
        for tensor in &self.tensors {
            let offset = usize::try_from(tensor.offset).unwrap_or(0).min(1 << 20);
            let end = start + offset + tensor.bytes;
            if bytes.len() < end {
                bytes.resize(end, 0x11);
            }
        }
        bytes
    }
}

/// GPT-2's 256 characters in the order of their bytes.
pub fn alphabet() -> Vec<char> {
    let mut next = 256;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("a character")
            }
        })
        .collect()
}
