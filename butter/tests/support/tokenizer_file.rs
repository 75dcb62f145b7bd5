//! A small `tokenizer.json`.

use serde_json::{Map, Value, json};

/// Byte-level BPE of 257 tokens, the last `ab`, and the special token `<s>` with the id 257.
pub fn byte_level(alphabet: Vec<char>, post_processor: Value) -> Value {
    let vocab: Map<String, Value> = alphabet
        .into_iter()
        .map(String::from)
        .chain(["ab".to_owned()])
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                            "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{"id": 257, "content": "<s>", "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": byte_level,
        "post_processor": post_processor,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"]},
    })
}
