//! The HTTP API over a model without a device: what it answers and refuses.

mod support {
    pub mod gguf_writer;
    pub mod http;
    pub mod mock;
}

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use butter::serve::options::Layer;
use serde_json::{Value as Json, json};
use support::http::{CHAT, COMPLETIONS, Reply, Setup, TEMPLATE, TOOLS, TestServer, lonely};

#[test]
fn a_completion_and_its_stream_are_the_models_answer() {
    let server = TestServer::plain();
    let expected = lonely("xyz", 20);
    let whole = server.complete("xyz", json!({"seed": 1}));
    assert_eq!(whole.status, 200, "{}", whole.body);
    let json = whole.json();
    assert_eq!(json["choices"][0]["text"], expected);
    assert_eq!(json["choices"][0]["finish_reason"], "length");
    assert_eq!(json["object"], "text_completion");
    assert_eq!(json["usage"]["prompt_tokens"], 3);
    assert_eq!(json["usage"]["completion_tokens"], 20);
    assert!(json.get("warnings").is_none(), "{json}");
    let stream = server.complete(
        "xyz",
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    assert_eq!(stream.text(0), expected);
    let events = stream.events();
    assert_eq!(events.last().expect("events")["usage"]["total_tokens"], 23);
    assert!(
        events[..events.len() - 1]
            .iter()
            .all(|event| event["usage"].is_null())
    );
    // Several prompts, several answers, ids for text.
    let several = server.complete(json!(["xyz", "bad"]), json!({"n": 2, "echo": true}));
    for (index, prompt) in [(0, "xyz"), (1, "xyz"), (2, "bad"), (3, "bad")] {
        assert_eq!(
            several.text(index),
            format!("{prompt}{}", lonely(prompt, 20))
        );
    }
    let ids = server.complete(json!([120, 121, 122]), json!({"stream": true}));
    assert_eq!(ids.text(0), expected);
    let echoed = server.complete("xyz", json!({"max_tokens": 0, "echo": true}));
    assert_eq!((echoed.text(0).as_str(), echoed.status), ("xyz", 200));
    let scored = server.complete("xyz", json!({"logprobs": 1, "echo": true}));
    assert_eq!((scored.status, scored.error().2.as_str()), (400, "echo"));
    server.check_empty();
}

#[test]
fn a_chat_is_rendered_and_answered() {
    let server = TestServer::plain();
    let reply = server.chat("hi", json!({}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let message = &reply.json()["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    assert_eq!(message["content"].as_str().expect("text").len(), 20);
    let stream = server.chat("hi", json!({"stream": true}));
    assert_eq!(stream.text(0), reply.text(0));
    assert_eq!(
        stream.events()[0]["choices"][0]["delta"]["role"],
        "assistant"
    );
    let parts = json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]);
    let messages = json!([{"role": "user", "content": parts}]);
    assert_eq!(
        server.chat("", json!({"messages": messages})).text(0),
        reply.text(0)
    );
    // E24: the text of a control token stays text: 7 bytes, not one id.
    let count = |text: &str| {
        let body = json!({"messages": [{"role": "user", "content": text}]});
        server.post("/tokenize", &body).json()["count"]
            .as_u64()
            .expect("a count")
    };
    assert_eq!(count("<|end|>"), count("") + 7);
    server.check_empty();
}

#[test]
fn token_ids_come_with_the_answer_where_they_are_asked_for() {
    let server = TestServer::saying(1, "a🦊 one ## two", TEMPLATE);
    let expected: Vec<u64> = "a🦊 one ## two".bytes().map(u64::from).collect();
    for (more, tokens) in [
        (json!({"max_tokens": 100}), expected.len()),
        // The token that completes the stop string was computed.
        (json!({"max_tokens": 100, "stop": "##"}), 12),
    ] {
        let mut more = more;
        more["return_token_ids"] = true.into();
        let whole = server.complete(json!([1]), more.clone()).json();
        assert_eq!(whole["choices"][0]["token_ids"], json!(expected[..tokens]));
        more["stream"] = true.into();
        let stream = server.complete(json!([1]), more);
        let ids: Vec<Vec<u64>> = stream
            .events()
            .iter()
            .filter_map(|event| {
                serde_json::from_value(event["choices"][0]["token_ids"].clone()).ok()
            })
            .collect();
        assert_eq!(ids.concat(), expected[..tokens]);
        // Each as it comes, also where its text waits for the rest of a character.
        assert!(ids.iter().all(|ids| ids.len() <= 1), "{ids:?}");
    }
    let plain = server.complete(json!([1]), json!({}));
    assert!(!plain.body.contains("token_ids"), "{}", plain.body);
}

// E01, E03
#[test]
fn text_is_cut_at_characters_and_stops() {
    let server = TestServer::saying(1, "a🦊 one ## two ##! three", TEMPLATE);
    for (more, text, finish) in [
        (
            json!({"max_tokens": 100}),
            "a🦊 one ## two ##! three",
            "stop",
        ),
        (json!({"max_tokens": 3}), "a\u{fffd}", "length"),
        (
            json!({"max_tokens": 100, "stop": "##!"}),
            "a🦊 one ## two ",
            "stop",
        ),
        (
            json!({"max_tokens": 100, "stop": ["zz", "##! three", "e ##x"]}),
            "a🦊 one ## two ",
            "stop",
        ),
        (
            json!({"max_tokens": 14, "stop": ["## three"]}),
            "a🦊 one ## t",
            "length",
        ),
        (
            json!({"max_tokens": 14, "stop": ["## t"]}),
            "a🦊 one ",
            "stop",
        ),
        (
            json!({"max_tokens": 100, "stop_token_ids": [35]}),
            "a🦊 one ",
            "stop",
        ),
    ] {
        for stream in [false, true] {
            let mut more = more.clone();
            more["stream"] = stream.into();
            let reply = server.complete(json!([1]), more.clone());
            assert_eq!(reply.text(0), text, "{more}");
            let choices = if stream {
                reply.events().last().expect("events")["choices"].clone()
            } else {
                reply.json()["choices"].clone()
            };
            assert_eq!(choices[0]["finish_reason"], finish, "{more}");
        }
    }
    server.check_empty();
}

#[test]
fn an_answer_keeps_to_its_schema() {
    let server = TestServer::plain();
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["ok", "kind"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    for seed in 0..4 {
        let more =
            json!({"response_format": format, "temperature": 2, "seed": seed, "max_tokens": 100});
        let reply = server.chat("hi", more);
        // E35: read by an independent parser.
        let json: Json = serde_json::from_str(&reply.text(0)).expect("JSON");
        assert!(
            json["ok"].is_boolean() && ["a", "b"].contains(&json["kind"].as_str().expect("kind"))
        );
        assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop");
    }
    let regex = server.complete(
        "x",
        json!({"guided_regex": "[0-9]{3}-[ab]{2}", "temperature": 1.5}),
    );
    let text = regex.text(0);
    assert!(text.len() == 6 && text.as_bytes()[3] == b'-', "{text}");
    // E33: what cannot be compiled is refused, before and after its limits.
    let regex = json!({"type": "string", "pattern": "(?=look)("});
    let deep = (0..40).fold(
        json!({"type": "string"}),
        |inner, _| json!({"items": inner}),
    );
    for schema in [
        regex,
        deep,
        json!({"type": "strange"}),
        json!([]),
        json!({"$ref": "#/no"}),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let reply = server.chat("hi", json!({"response_format": format}));
        let (status, _, param) = reply.error();
        assert!(
            status == 400 && param.starts_with("response_format"),
            "{}",
            reply.body
        );
    }
    server.check_empty();
}

// Whatever a request asks for, proposals change nothing of its answer.
#[test]
fn speculation_answers_as_without() {
    let plain = TestServer::plain();
    let speculating = TestServer::start(Setup {
        draft: Some(6),
        ..Setup::default()
    });
    let whole = lonely("xyz", 60);
    let bodies = [
        json!({}),
        json!({"temperature": 1.3, "seed": 5}),
        json!({"temperature": 0.7, "seed": 6, "n": 3, "top_p": 0.9, "presence_penalty": 0.5}),
        json!({"logprobs": 3}),
        json!({"stop": [&whole[11..13], "~~~"]}),
        json!({"stop_token_ids": [whole.as_bytes()[17]]}),
        json!({"guided_regex": "[a-z]{7}[0-9]{3}", "temperature": 1.0, "seed": 3}),
        json!({"response_format": {"type": "json_object"}, "temperature": 1.0, "seed": 4}),
        json!({"logit_bias": {"65": 100}, "max_tokens": 4}),
        json!({"repetition_penalty": 1.5, "max_tokens": 1}),
    ];
    let (mut proposed, mut accepted) = (0, 0);
    for mut body in bodies {
        let defaults = json!({"max_tokens": 60, "receipt": true, "return_token_ids": true});
        for (key, value) in defaults.as_object().expect("an object") {
            if body.get(key).is_none() {
                body[key] = value.clone();
            }
        }
        let [expected, found] =
            [&plain, &speculating].map(|server| server.complete("xyz", body.clone()).json());
        assert_eq!(found["choices"], expected["choices"], "{body}");
        assert_eq!(found["usage"], expected["usage"], "{body}");
        let answers = found["receipt"]["answers"].as_array().expect("receipts");
        for answer in answers {
            proposed += answer["proposed_tokens"].as_u64().expect("a count");
            accepted += answer["accepted_tokens"].as_u64().expect("a count");
        }
        body["stream"] = true.into();
        let [expected, found] =
            [&plain, &speculating].map(|server| server.complete("xyz", body.clone()).text(0));
        assert_eq!(found, expected, "{body}");
    }
    assert!(
        0 < accepted && accepted < proposed,
        "{accepted} of {proposed}"
    );
    let metrics = speculating.get("/metrics").body;
    for name in ["verifications", "proposed_tokens", "accepted_tokens"] {
        let line = format!("\nbutter_speculation_{name}_total ");
        let value = metrics
            .split(&line)
            .nth(1)
            .and_then(|rest| rest.lines().next());
        let value: u64 = value.expect("there").parse().expect("a count");
        assert!(value > 0, "{name}");
    }
    assert!(metrics.contains("\nbutter_draft_leases_total{event=\"leaked\"} 0\n"));
    plain.check_empty();
    speculating.check_empty();
}

/// A template that teaches calls as XML.
const XML_TOOLS: &str = "{% if tools %}{% for tool in tools %}<function={{ tool.function.name }}>{% endfor %}<tool_call>{% endif %}{% for message in messages %}{% for call in message.tool_calls or [] %}{% for key, value in call.function.arguments|items %}<parameter={{ key }}>{{ value }}{% endfor %}{% endfor %}<{{ message.role }}>{{ message.content }}{% endfor %}";

#[test]
fn calls_as_xml_are_typed_by_the_schema() {
    let answer = "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis \"é\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    let tool = json!({"type": "function", "function": {"name": "weather",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9},
        }, "required": ["unit", "days"]}}});
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "weather", "arguments": "{\"days\": 5}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]);
    let body = json!({"model": "mock", "messages": messages, "tools": [tool], "temperature": 0, "max_tokens": 1});
    let probe = TestServer::saying(1, "x", XML_TOOLS)
        .post(CHAT, &body)
        .json();
    let tokens = probe["usage"]["prompt_tokens"].as_u64().expect("a count") as usize;
    let server = TestServer::saying(tokens, answer, XML_TOOLS);
    let mut more = body.clone();
    more["max_tokens"] = 300.into();
    let whole = server.post(CHAT, &more).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], "I look.\n", "{whole}");
    let function = &message["tool_calls"][0]["function"];
    assert_eq!(function["name"], "weather");
    let expected = r#"{"city": "Paris \"é\"", "days": 3}"#;
    assert_eq!(function["arguments"], expected);
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    more["stream"] = true.into();
    let events = server.post(CHAT, &more).events();
    let pieces: Vec<&str> = events
        .iter()
        .filter_map(|event| {
            let call = &event["choices"][0]["delta"]["tool_calls"][0];
            call["function"]["arguments"].as_str()
        })
        .collect();
    assert_eq!(pieces.concat(), expected);
    assert!(pieces.len() > 8, "arguments stream");
    // A required call holds whatever the model wants to say; one without its city is whole.
    let plain = TestServer::start(Setup {
        template: Some(XML_TOOLS),
        ..Setup::default()
    });
    let mut more = body.clone();
    more["max_tokens"] = 400.into();
    more["tool_choice"] = "required".into();
    more["temperature"] = 1.2.into();
    for seed in 0..4 {
        more["seed"] = seed.into();
        let whole = plain.post(CHAT, &more).json();
        let choice = &whole["choices"][0];
        let call = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "weather", "{whole}");
        // A text may go on to the end of the answer.
        if choice["finish_reason"] == "tool_calls" {
            let arguments = call["arguments"].as_str().expect("text");
            let arguments: Json = serde_json::from_str(arguments).expect("JSON");
            assert!(
                arguments["days"].as_u64().is_some_and(|days| days < 10),
                "{whole}"
            );
            assert!(["C", "F"].contains(&arguments["unit"].as_str().expect("a unit")));
        }
    }
    server.check_empty();
}

#[test]
fn tools_are_called_and_reasoning_is_apart() {
    let answer = "<think>\nwhich?</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    let tool = json!({"type": "function", "function": {"name": "weather", "description": "d",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": false}}});
    let body = json!({"messages": [{"role": "user", "content": "x"}], "tools": [tool]});
    let probe = TestServer::saying(1, "x", TOOLS);
    let prompt = probe.post(
        CHAT,
        &json!({"model": "mock", "messages": body["messages"], "tools": [tool], "max_tokens": 1}),
    );
    let tokens = prompt.json()["usage"]["prompt_tokens"]
        .as_u64()
        .expect("a count") as usize;
    let server = TestServer::saying(tokens, answer, TOOLS);
    let mut more = body.clone();
    more["max_tokens"] = 200.into();
    let whole = server.chat("", more.clone()).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "which?");
    assert_eq!(message["content"], Json::Null);
    assert_eq!(message["tool_calls"][0]["function"]["name"], "weather");
    assert_eq!(
        message["tool_calls"][0]["function"]["arguments"],
        "{\"city\": \"Paris\"}"
    );
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    more["stream"] = true.into();
    let events = server.chat("", more.clone()).events();
    let deltas: Vec<&Json> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"])
        .collect();
    let join = |read: &dyn Fn(&Json) -> Option<String>| -> String {
        deltas.iter().filter_map(|delta| read(delta)).collect()
    };
    let text = |json: &Json| json.as_str().map(str::to_owned);
    assert_eq!(join(&|d| text(&d["reasoning_content"])), "which?");
    assert_eq!(
        join(&|d| text(&d["tool_calls"][0]["function"]["name"])),
        "weather"
    );
    assert_eq!(
        join(&|d| text(&d["tool_calls"][0]["function"]["arguments"])),
        "{\"city\": \"Paris\"}"
    );
    assert!(
        deltas.iter().filter(|d| d["tool_calls"].is_array()).count() > 5,
        "arguments stream"
    );
    // A required call holds whatever the model wants to say.
    let plain = TestServer::start(Setup {
        template: Some(TOOLS),
        ..Setup::default()
    });
    for choice in [
        json!("required"),
        json!({"type": "function", "function": {"name": "weather"}}),
    ] {
        let more =
            json!({"tools": [tool], "tool_choice": choice, "temperature": 1.5, "max_tokens": 200});
        let whole = plain.chat("x", more).json();
        let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments: Json =
            serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
        assert!(
            ["Paris", "Rome"].contains(&arguments["city"].as_str().expect("a city")),
            "{whole}"
        );
    }
    // Where the template knows no tools, they are refused by name.
    let refused = TestServer::plain().chat("x", json!({"tools": [tool]}));
    assert_eq!(
        refused.error(),
        (400, "unsupported_parameter".into(), "tools".into())
    );
}

// E31, E32
#[test]
fn each_wrong_field_is_named() {
    let server = TestServer::plain();
    let user = json!([{"role": "user", "content": "x"}]);
    for (path, field, value) in [
        (COMPLETIONS, "max_tokens", json!(-1)),
        (COMPLETIONS, "max_tokens", json!("5")),
        (COMPLETIONS, "max_tokens", json!(1.5)),
        (COMPLETIONS, "temperature", json!("NaN")),
        (COMPLETIONS, "temperature", json!(-0.1)),
        (COMPLETIONS, "top_p", json!(0)),
        (COMPLETIONS, "top_p", json!(1.1)),
        (COMPLETIONS, "min_p", json!(2)),
        (COMPLETIONS, "top_k", json!(-2)),
        (COMPLETIONS, "top_k", json!(1e12)),
        (COMPLETIONS, "repetition_penalty", json!(0)),
        (COMPLETIONS, "frequency_penalty", json!(2.5)),
        (COMPLETIONS, "presence_penalty", json!([])),
        (COMPLETIONS, "temperature", json!(1e308)),
        (COMPLETIONS, "frequency_penalty", json!(1e300)),
        (COMPLETIONS, "logit_bias", json!({"259": 1})),
        (COMPLETIONS, "logit_bias.5", json!({"5": 101})),
        (COMPLETIONS, "logit_bias.5", json!({"5": 1e300})),
        (COMPLETIONS, "logit_bias.05", json!({"5": 1, "05": 2})),
        (COMPLETIONS, "logit_bias.-1", json!({"-1": 1})),
        (COMPLETIONS, "logit_bias.x", json!({"x": 1})),
        (COMPLETIONS, "logit_bias", json!([1])),
        (COMPLETIONS, "n", json!(0)),
        (COMPLETIONS, "n", json!(1_000_000)),
        (COMPLETIONS, "seed", json!("x")),
        (COMPLETIONS, "logprobs", json!(1_000_000_000)),
        (COMPLETIONS, "stop", json!(5)),
        (COMPLETIONS, "stop", json!(vec!["x"; 17])),
        (COMPLETIONS, "stop[0]", json!([""])),
        (COMPLETIONS, "stop[0]", json!(["x".repeat(513)])),
        (COMPLETIONS, "stop_token_ids[1]", json!([1, 259])),
        (COMPLETIONS, "prompt", json!([])),
        (COMPLETIONS, "prompt[1]", json!([1, 300])),
        (COMPLETIONS, "prompt", json!("")),
        (COMPLETIONS, "prompt[1]", json!(["x", ""])),
        (COMPLETIONS, "prompt[0]", json!([[], "x"])),
        (COMPLETIONS, "prompt", json!({"a": 1})),
        (COMPLETIONS, "prompt", json!("x".repeat(600))),
        (COMPLETIONS, "best_of", json!(3)),
        (COMPLETIONS, "suffix", json!("x")),
        (COMPLETIONS, "stream", json!("yes")),
        (
            COMPLETIONS,
            "stream_options",
            json!({"include_usage": true}),
        ),
        (COMPLETIONS, "guided_regex", json!(["x"])),
        (CHAT, "messages", json!([])),
        (CHAT, "messages", json!("x")),
        (CHAT, "messages[0]", json!([1])),
        (
            CHAT,
            "messages[0].role",
            json!([{"role": "nobody", "content": "x"}]),
        ),
        (CHAT, "messages[0].role", json!([{"content": "x"}])),
        (
            CHAT,
            "messages[0].content",
            json!([{"role": "user", "content": null}]),
        ),
        (
            CHAT,
            "messages[0].content",
            json!([{"role": "user", "content": 5}]),
        ),
        (
            CHAT,
            "messages[0].content[0].type",
            json!([{"role": "user", "content": [{"type": "image_url"}]}]),
        ),
        (CHAT, "top_logprobs", json!(5)),
        (CHAT, "max_tokens", json!(0)),
        (CHAT, "modalities", json!(["audio"])),
        (CHAT, "functions", json!([{}])),
        (
            CHAT,
            "chat_template_kwargs.messages",
            json!({"messages": []}),
        ),
        (
            CHAT,
            "chat_template_kwargs.add_generation_prompt",
            json!({"add_generation_prompt": false}),
        ),
        (COMPLETIONS, "guided_regex", json!("(")),
        (COMPLETIONS, "guided_regex", json!("a[^\\x00-\\U{10ffff}]")),
        (COMPLETIONS, "guided_grammar", json!("start: nothing")),
        (COMPLETIONS, "guided_grammar", json!("start: start")),
        (COMPLETIONS, "guided_json", json!({"$ref": "#"})),
        (CHAT, "response_format.type", json!({"type": "xml"})),
        (
            CHAT,
            "response_format.json_schema",
            json!({"type": "json_schema"}),
        ),
        (CHAT, "tool_choice", json!("required")),
        (CHAT, "tools[0].type", json!([{"function": {}}])),
        (
            CHAT,
            "tools[0].function.name",
            json!([{"type": "function", "function": {"name": "a b"}}]),
        ),
    ] {
        let mut body = match path {
            CHAT => json!({"model": "mock", "messages": user}),
            _ => json!({"model": "mock", "prompt": "x"}),
        };
        let top = field.split(['.', '[']).next().expect("a name");
        body[top] = value.clone();
        let reply = server.post(path, &body);
        let (status, _, param) = reply.error();
        assert_eq!(
            (status, param.as_str()),
            (400, field),
            "{body}: {}",
            reply.body
        );
        let message = reply.json()["error"]["message"].clone();
        let message = message.as_str().expect("a message");
        assert!(
            message.len() < 300 && !message.contains("inf") && !message.contains(&"0".repeat(20)),
            "{message}"
        );
    }
    let both = json!({"max_tokens": 5, "max_completion_tokens": 6});
    assert_eq!(server.chat("x", both).error().2, "max_completion_tokens");
    // Nothing of it reached the device: what it ran is its warm-up.
    assert_eq!(server.metrics.submitted.load(Relaxed), 0);
    let ignored = server.chat(
        "x",
        json!({"user": "me", "odd": 1, "store": false, "metadata": {}, "functions": []}),
    );
    let warnings = ignored.json()["warnings"].clone();
    let warnings = warnings.as_array().expect("a list");
    assert_eq!(warnings.len(), 4, "{warnings:?}");
    assert_eq!(server.chat("x", json!({"model": "gpt-4"})).error().0, 404);
    let refused = server.chat(
        "x",
        json!({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}),
    );
    assert_eq!(
        refused.error(),
        (422, "template_refused".into(), "messages".into())
    );
    server.check_alive();
}

// E26
#[test]
fn a_prompt_at_the_limit_is_answered_and_one_past_it_is_not() {
    let server = TestServer::plain();
    for (length, max_tokens, expected) in [
        (511, json!(100), Some(1)),
        (510, json!(1_000_000_000u64), Some(2)),
        (511, Json::Null, Some(1)),
        (512, json!(1), None),
        (513, json!(1), None),
    ] {
        let reply = server.complete(json!(vec![65; length]), json!({"max_tokens": max_tokens}));
        match expected {
            Some(tokens) => {
                assert_eq!(reply.json()["usage"]["completion_tokens"], tokens);
                assert_eq!(reply.json()["choices"][0]["finish_reason"], "length");
            }
            None => {
                let error = reply.error();
                assert_eq!(
                    error,
                    (400, "context_length_exceeded".into(), "prompt".into())
                );
                assert!(reply.body.contains(&length.to_string()) && reply.body.contains("512"));
            }
        }
    }
    server.check_empty();
}

#[test]
fn keys_rates_and_origins() {
    let server = TestServer::start(Setup {
        layer: Layer {
            api_keys: Some(vec!["secret".into()]),
            rate_limit: Some(3),
            cors_origins: Some(vec!["https://page.example".into()]),
            ..Layer::default()
        },
        ..Setup::default()
    });
    assert_eq!(server.complete("x", json!({})).error().0, 401);
    assert_eq!(server.get("/v1/models").error().0, 401);
    assert_eq!(server.get("/metrics").error().0, 401);
    for open in ["/", "/health/live", "/health/ready"] {
        assert_eq!(server.get(open).status, 200, "{open}");
    }
    let key = "authorization: Bearer secret\r\n";
    let models = server.get_with(
        "/v1/models",
        &format!("{key}origin: https://page.example\r\n"),
    );
    assert_eq!(models.status, 200);
    assert!(
        models
            .head
            .contains("access-control-allow-origin: https://page.example")
    );
    let other = server.get_with(
        "/v1/models",
        &format!("{key}origin: https://other.example\r\n"),
    );
    assert!(!other.head.contains("access-control"));
    assert_eq!(other.json()["data"][0]["prefix_reuse"]["kind"], "exact");
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let mut socket = server.connect();
        let body = json!({"model": "mock", "prompt": "x", "max_tokens": 1}).to_string();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\n{key}connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(head.as_bytes()).expect("written");
        let reply = Reply::read(socket);
        if reply.status == 429 {
            assert_eq!(reply.error().1, "rate_limit_exceeded");
            assert!(reply.head.contains("retry-after: "));
        }
        statuses.push(reply.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}

#[test]
fn tokens_metrics_and_receipts() {
    let server = TestServer::plain();
    let ids = server
        .post("/tokenize", &json!({"prompt": "abc<|end|>"}))
        .json();
    assert_eq!(ids["tokens"], json!([258, 256]));
    let text = server.post(
        "/tokenize",
        &json!({"prompt": "<|end|>", "add_special_tokens": false}),
    );
    assert_eq!(text.json()["count"], 7);
    for (path, field) in [("/tokenize", "prompt"), ("/detokenize", "tokens")] {
        let wrong = server.post(path, &json!({"model": "another", field: "a"}));
        assert_eq!(
            (wrong.status, wrong.error().2.as_str()),
            (404, "model"),
            "{path}"
        );
    }
    let both = json!({"prompt": "a", "messages": [{"role": "user", "content": "a"}]});
    let error = server.post("/tokenize", &both);
    assert_eq!(error.error().2, "messages");
    assert!(error.body.contains("give one of them"), "{}", error.body);
    let back = server
        .post("/detokenize", &json!({"tokens": [258, 33]}))
        .json();
    assert_eq!(back["prompt"], "abc!");
    let neither = server.post("/tokenize", &json!({}));
    assert_eq!(neither.error().2, "prompt");
    let written = server.post("/detokenize", &json!({"tokens": [33, 256]}));
    assert_eq!(written.json()["prompt"], "!<|end|>");
    assert_eq!(
        server
            .post("/detokenize", &json!({"tokens": [259]}))
            .error()
            .2,
        "tokens[0]"
    );
    let prompt = "a prompt that is longer than two chunks of sixteen tokens";
    for reused in [0, 48] {
        let reply = server.complete(prompt, json!({"receipt": true, "ignore_eos": true}));
        let receipt = reply.json()["receipt"]["answers"][0].clone();
        assert_eq!(receipt["reused_tokens"], reused, "{receipt}");
        assert_eq!(
            reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"],
            reused
        );
        assert_eq!(reply.text(0), lonely(prompt, 20));
    }
    let other = server.complete(prompt, json!({"receipt": true, "cache_salt": "mine"}));
    assert_eq!(other.json()["receipt"]["answers"][0]["reused_tokens"], 0);
    server.check_empty();
    let metrics = server.get("/metrics").body;
    for line in [
        "butter_requests_total{outcome=\"completed\"} 3",
        "butter_reused_tokens_total 48",
        "butter_leases_total{event=\"leaked\"} 0",
        "butter_first_token_seconds_count 3",
        "butter_requests_running 0",
        "butter_prefix_reuse_possible 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in\n{metrics}"
        );
    }
}
