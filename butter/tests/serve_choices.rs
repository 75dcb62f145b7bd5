//! What the HTTP API says of an answer's tokens, and how seeds and biases choose them.

mod support {
    pub mod gguf_writer;
    pub mod http;
    pub mod mock;
}

use serde_json::{Value as Json, json};
use support::http::{Setup, TestServer};

#[test]
fn log_probabilities_stand_beside_their_tokens() {
    let server = TestServer::plain();
    let reply = server.chat("hi", json!({"logprobs": true, "top_logprobs": 3}));
    let listed = reply.json()["choices"][0]["logprobs"]["content"].clone();
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), 20);
    let joined: String = listed
        .iter()
        .filter_map(|entry| entry["token"].as_str())
        .collect();
    assert_eq!(joined, reply.text(0));
    for entry in listed {
        let top = entry["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 3);
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&entry["token"], &entry["logprob"])
        );
        assert!(
            entry["logprob"]
                .as_f64()
                .is_some_and(|l| l < 0.0 && l > -6.0)
        );
    }
    let stream = server.chat("hi", json!({"logprobs": true, "stream": true}));
    let count: usize = stream
        .events()
        .iter()
        .filter_map(|event| {
            event["choices"][0]["logprobs"]["content"]
                .as_array()
                .map(Vec::len)
        })
        .sum();
    assert_eq!(count, 20);
    let old =
        server.complete("xyz", json!({"logprobs": 2})).json()["choices"][0]["logprobs"].clone();
    assert_eq!(old["tokens"].as_array().map(Vec::len), Some(20));
    assert_eq!(old["text_offset"][3], 3);
    // A character of several tokens begins once, whole and in a stream.
    let emoji: Vec<u32> = "é😀x".bytes().map(u32::from).collect();
    let mut biased = json!({"logprobs": 1, "max_tokens": 7, "guided_regex": "é😀x"});
    let offsets = |reply: &Json| reply["choices"][0]["logprobs"]["text_offset"].clone();
    let whole = server.complete("xyz", biased.clone());
    assert_eq!((whole.text(0).as_str(), emoji.len()), ("é😀x", 7));
    assert_eq!(offsets(&whole.json()), json!([0, 0, 1, 1, 1, 1, 2]));
    biased["stream"] = true.into();
    let events = server.complete("xyz", biased).events();
    let streamed = events
        .iter()
        .filter_map(|event| offsets(event).as_array().cloned());
    assert_eq!(
        json!(streamed.flatten().collect::<Vec<_>>()),
        json!([0, 0, 1, 1, 1, 1, 2])
    );
    assert_eq!(
        old["top_logprobs"][0].as_object().map(serde_json::Map::len),
        Some(2)
    );
}

#[test]
fn a_seed_repeats_an_answer_and_a_bias_forces_a_token() {
    let server = TestServer::plain();
    let draw = |seed: u64| {
        server
            .complete("xyz", json!({"temperature": 2.0, "seed": seed}))
            .text(0)
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    let forced = server.complete("xyz", json!({"logit_bias": {"65": 100}, "max_tokens": 5}));
    assert_eq!(forced.text(0), "AAAAA");
    // The answers of one request are those of its seed and the next ones.
    let two = server.complete("xyz", json!({"temperature": 2.0, "seed": 7, "n": 2}));
    assert_eq!([two.text(0), two.text(1)], [draw(7), draw(8)]);
    // Each prompt of a list gets what it gets alone; without a seed no two are alike.
    let list = |more: Json| {
        let reply = server.complete(json!(["abc", "xyz", "xyz"]), more);
        [1, 2].map(|index| reply.text(index))
    };
    assert_eq!(
        list(json!({"temperature": 2.0, "seed": 7})),
        [draw(7), draw(7)]
    );
    let [a, b] = list(json!({"temperature": 2.0}));
    assert_ne!(a, b);
}

#[test]
fn without_a_tokenizer_ids_are_answered_and_no_text_is_echoed() {
    let server = TestServer::start(Setup {
        template: None,
        tokenizer: false,
        ..Setup::default()
    });
    let more = json!({"logprobs": 1, "max_tokens": 3, "return_token_ids": true});
    let choice = server.complete(json!([1, 2]), more).json()["choices"][0].clone();
    assert_eq!(choice["token_ids"].as_array().map(Vec::len), Some(3));
    assert_eq!(choice["text"], "");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0, 0]));
    for (field, more) in [
        ("echo", json!({"echo": true})),
        ("stop", json!({"stop": "x"})),
        ("guided_regex", json!({"guided_regex": "x"})),
    ] {
        let (status, _, param) = server.complete(json!([1, 2]), more).error();
        assert_eq!((status, param.as_str()), (400, field));
    }
}
