//! The HTTP API's bad days: bodies that are no request, clients that vanish, stall or come in
//! thousands, a device that fails, a server that ends.

mod support {
    pub mod gguf_writer;
    pub mod http;
    pub mod mock;
}

use std::io::{Read, Write};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use butter::serve::options::Layer;
use serde_json::json;
use support::http::{CHAT, COMPLETIONS, Reply, Setup, TestServer, lonely};
use support::mock::MockModel;

#[test]
fn bodies_that_are_no_request_are_refused() {
    let server = TestServer::start(Setup {
        layer: Layer {
            max_body_bytes: Some(1 << 20),
            ..Layer::default()
        },
        ..Setup::default()
    });
    let utf16: Vec<u8> = "{\"a\": 1}"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let nested = [vec![b'['; 10_000], vec![b']'; 10_000]].concat();
    let nested_field = format!(
        "{{\"model\":\"mock\",\"prompt\":\"x\",\"odd\":{}1{}}}",
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    for (body, status) in [
        (&b""[..], 400),
        (b"{", 400),
        (b"not json", 400),
        (b"[1]", 400),
        (b"null", 400),
        (b"{\"model\": NaN}", 400),
        (b"{\"model\": \"mock\", \"prompt\": \"\\ud800\"}", 400),
        (b"{\"model\": \"mo\xffck\"}", 400),
        (&utf16, 400),
        (&nested, 400),
        (nested_field.as_bytes(), 400),
        (&vec![b' '; (1 << 20) + 1], 413),
        (&vec![b'x'; 20 << 20], 413),
    ] {
        for path in [COMPLETIONS, CHAT, "/tokenize", "/detokenize"] {
            let reply = server.raw(path, "application/json", body);
            assert_eq!(reply.error().0, status, "{} bytes to {path}", body.len());
        }
    }
    // What is too long by its head is not waited for, nor asked for.
    for head in [
        "content-length: 99999999999",
        "content-length: 2000000\r\nexpect: 100-continue",
    ] {
        let mut socket = server.connect();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n{head}\r\n\r\n"
        );
        let begun = Instant::now();
        socket.write_all(head.as_bytes()).expect("written");
        let reply = Reply::read(socket);
        assert_eq!(reply.error().0, 413, "{}", reply.head);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    let reply = server.raw(CHAT, "text/plain", b"{}");
    assert_eq!(reply.error().0, 415);
    assert_eq!(server.get("/nowhere").error().0, 404);
    assert_eq!(server.get(CHAT).error().0, 405);
    assert_eq!(server.metrics.submitted.load(Relaxed), 0);
    server.check_alive();
}

#[test]
fn slow_and_broken_clients_are_dropped() {
    let server = TestServer::start(Setup {
        layer: Layer {
            head_timeout: Some(0.3),
            body_timeout: Some(0.3),
            ..Layer::default()
        },
        ..Setup::default()
    });
    // A head that never ends, and a body that never comes.
    let mut socket = server.connect();
    socket
        .write_all(b"GET / HTTP/1.1\r\nhost:")
        .expect("written");
    let begun = Instant::now();
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest);
    assert!(begun.elapsed() < Duration::from_secs(5), "it was let go");
    let mut socket = server.connect();
    let head = "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\nconnection: close\r\n\r\n{";
    socket.write_all(head.as_bytes()).expect("written");
    assert_eq!(Reply::read(socket).error().0, 408);
    // One that goes in the middle of its body.
    let mut socket = server.connect();
    socket.write_all(head.as_bytes()).expect("written");
    drop(socket);
    // Garbage.
    let mut socket = server.connect();
    socket
        .write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        .expect("written");
    socket.write_all(b"\r\n\r\n").expect("written");
    let _ = socket.read_to_end(&mut rest);
    server.check_alive();
}

// E05
#[test]
fn a_client_that_vanishes_frees_its_request() {
    let server = TestServer::plain();
    server.control.step_microseconds.store(20_000, SeqCst);
    for stream in [true, false] {
        let sockets: Vec<_> = (0..12)
            .map(|i| {
                let mut socket = server.connect();
                let body = json!({"model": "mock", "prompt": format!("client {i}"), "max_tokens": 450, "stream": stream, "temperature": 0}).to_string();
                let head = format!(
                    "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                socket.write_all(head.as_bytes()).expect("written");
                if stream && i < 4 {
                    let mut some = [0; 600];
                    socket.read_exact(&mut some).expect("a part of the answer");
                }
                socket
            })
            .collect();
        while server.metrics.queued.load(Relaxed) < 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = server.metrics.cancelled.load(Relaxed);
        drop(sockets);
        server.check_empty();
        let cancelled = server.metrics.cancelled.load(Relaxed) - before;
        assert_eq!(cancelled, 12, "stream: {stream}");
    }
    server.check_alive();
}

#[test]
fn a_reader_that_does_not_read_holds_nobody_up() {
    let server = TestServer::start(Setup {
        layer: Layer {
            write_timeout: Some(0.5),
            ..Layer::default()
        },
        ..Setup::default()
    });
    let mut slow: Vec<_> = (0..8)
        .map(|i| {
            let mut socket = server.connect();
            let body = json!({"model": "mock", "prompt": format!("slow {i}"), "max_tokens": 500, "n": 2, "stream": true, "logprobs": 20}).to_string();
            let head = format!(
                "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            socket.write_all(head.as_bytes()).expect("written");
            socket
        })
        .collect();
    server.check_alive();
    server.check_empty();
    // Byte after byte the first still gets its answer; or it was dropped, which it may be.
    let mut byte = [0];
    for _ in 0..20 {
        let _ = slow[0].read(&mut byte);
    }
    server.check_alive();
}

#[test]
fn a_thousand_sockets_do_not_shut_others_out_for_long() {
    let server = TestServer::start(Setup {
        layer: Layer {
            max_connections: Some(300),
            head_timeout: Some(0.5),
            ..Layer::default()
        },
        ..Setup::default()
    });
    // As many as this process may open; both ends are in it.
    let open = |_| std::net::TcpStream::connect(server.address).ok();
    let mut idle: Vec<_> = (0..1000).map_while(open).collect();
    if idle.len() < 1000 {
        idle.truncate(idle.len().saturating_sub(100));
    }
    assert!(idle.len() >= 300, "{} sockets", idle.len());
    let mut refused = 0;
    for _ in 0..100 {
        let reply = server.get("/health/live");
        if reply.status == 200 {
            break;
        }
        assert_eq!(reply.error(), (503, "overloaded".into(), String::new()));
        refused += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(
        refused < 100,
        "idle sockets are closed after the head timeout"
    );
    server.check_alive();
    drop(idle);
    server.check_alive();
}

#[test]
fn too_much_work_is_refused_with_a_hint() {
    let server = TestServer::start(Setup {
        max_queued: 4,
        layer: Layer {
            max_choices: Some(32),
            ..Layer::default()
        },
        ..Setup::default()
    });
    server.control.step_microseconds.store(3_000, SeqCst);
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..40)
            .map(|i| {
                let server = &server;
                scope.spawn(move || server.complete(format!("q{i}"), json!({"max_tokens": 60})))
            })
            .collect();
        calls
            .into_iter()
            .map(|call| call.join().expect("a reply"))
            .collect()
    });
    let busy: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 503).collect();
    assert!(!busy.is_empty());
    for reply in &busy {
        assert_eq!(reply.error().1, "overloaded");
        assert!(reply.head.contains("retry-after: 1"));
    }
    for (i, reply) in replies.iter().enumerate() {
        if reply.status == 200 {
            assert_eq!(reply.text(0), lonely(&format!("q{i}"), 60));
        }
    }
    assert_eq!(server.complete("x", json!({"n": 32})).status, 503);
    server.check_empty();
    server.check_alive();
}

#[test]
fn a_device_that_fails_fails_its_requests_and_comes_back() {
    let server = TestServer::plain();
    server.control.broken.store(true, SeqCst);
    let reply = server.complete("x", json!({}));
    assert_eq!(reply.error(), (503, "device_failed".into(), String::new()));
    for _ in 0..100 {
        if server.get("/health/ready").status == 503 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.get("/health/ready").error().1, "not_ready");
    assert_eq!(server.get("/health/live").status, 200);
    assert_eq!(server.complete("x", json!({})).error().1, "not_ready");
    server.control.broken.store(false, SeqCst);
    let begun = Instant::now();
    while server.get("/health/ready").status != 200 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it never came back"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    server.check_alive();
    // In the middle of a stream the error is an event.
    server.control.step_microseconds.store(1_000, SeqCst);
    server
        .control
        .poison_token
        .store(MockModel::following(&[120]).into(), SeqCst);
    let stream = server.complete(json!([120]), json!({"stream": true}));
    assert!(
        stream.body.contains("\"code\":\"no_token\"") && !stream.body.contains("[DONE]"),
        "{}",
        stream.body
    );
    server.check_empty();
}

#[test]
fn a_server_that_ends_finishes_what_runs() {
    let mut server = TestServer::plain();
    server.control.step_microseconds.store(3_000, SeqCst);
    let address = server.address;
    let running = {
        let mut socket = server.connect();
        std::thread::spawn(move || {
            let body = json!({"model": "mock", "prompt": "last words", "max_tokens": 100, "temperature": 0}).to_string();
            let head = format!(
                "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            socket.write_all(head.as_bytes()).expect("written");
            Reply::read(socket)
        })
    };
    while server.metrics.running.load(Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    server.stop();
    let reply = running.join().expect("a reply");
    assert_eq!(reply.text(0), lonely("last words", 100));
    assert!(
        std::net::TcpStream::connect(address).is_err(),
        "nobody listens"
    );
    assert_eq!(server.metrics.leases.out(), 0);
}

#[test]
fn a_server_that_ends_tells_who_comes_and_who_did_not_end_in_time() {
    let mut server = TestServer::start(Setup {
        layer: Layer {
            drain_timeout: Some(1.5),
            ..Layer::default()
        },
        ..Setup::default()
    });
    // Longer than the drain: 400 tokens of 20 ms.
    server.control.step_microseconds.store(20_000, SeqCst);
    let ask = |stream: bool| {
        let mut socket = server.connect();
        let body = json!({"model": "mock", "prompt": "no end", "max_tokens": 400, "temperature": 0, "stream": stream}).to_string();
        let head = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(head.as_bytes()).expect("written");
        socket
    };
    let running = [true, false].map(|stream| {
        let socket = ask(stream);
        std::thread::spawn(move || Reply::read(socket))
    });
    while server.metrics.running.load(Relaxed) < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let address = server.address;
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        let ask = |request: &str| {
            let mut socket = std::net::TcpStream::connect(address).expect("still listens");
            socket.write_all(request.as_bytes()).expect("written");
            Reply::read(socket)
        };
        let body = "{\"model\": \"mock\", \"prompt\": \"x\"}";
        let post = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let get = "GET /health/ready HTTP/1.1\r\nhost: x\r\n\r\n";
        [ask(&post), ask(get)]
    });
    let begun = Instant::now();
    server.stop();
    assert!(begun.elapsed() > Duration::from_millis(1400), "it drained");
    assert!(begun.elapsed() < Duration::from_secs(6), "and no longer");
    for reply in late.join().expect("replies") {
        assert_eq!(reply.error(), (503, "shutting_down".into(), String::new()));
        assert!(reply.head.contains("retry-after: "), "{}", reply.head);
    }
    let [stream, whole] = running.map(|reply| reply.join().expect("a reply"));
    assert_eq!(stream.status, 200);
    assert!(
        stream.body.contains("\"code\":\"shutting_down\"") && !stream.body.contains("[DONE]"),
        "{}",
        stream.body
    );
    assert_eq!(whole.error(), (503, "shutting_down".into(), String::new()));
    assert_eq!(server.metrics.leases.out(), 0);
}

#[test]
fn long_texts_hold_nobody_up() {
    let server = TestServer::start(Setup {
        layer: Layer {
            max_prompt_bytes: Some(4 << 20),
            ..Layer::default()
        },
        ..Setup::default()
    });
    let too_long = server.post("/tokenize", &json!({"prompt": "x".repeat((4 << 20) + 1)}));
    assert_eq!(
        too_long.error(),
        (400, "context_length_exceeded".into(), "prompt".into())
    );
    let user = json!([{"role": "user", "content": "x".repeat((4 << 20) + 1)}]);
    let too_long = server.post("/tokenize", &json!({"messages": user}));
    assert_eq!(too_long.error().2, "messages");
    // More at once than there are threads for sockets; each takes a core for a while.
    let long = json!({"prompt": "ab ".repeat(1 << 19)});
    let encoding = std::sync::atomic::AtomicUsize::new(6);
    let begun = Instant::now();
    let (slowest, together) = std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let reply = server.post("/tokenize", &long);
                encoding.fetch_sub(1, SeqCst);
                assert_eq!(reply.status, 200);
            });
        }
        let (mut slowest, mut together) = (Duration::ZERO, 0);
        while encoding.load(SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(5));
            let asked = Instant::now();
            assert_eq!(server.get("/health/live").status, 200);
            slowest = slowest.max(asked.elapsed());
            together += 1;
        }
        (slowest, together)
    });
    let all = begun.elapsed();
    assert!(together > 5, "health was asked {together} times in {all:?}");
    // On the threads of the sockets it would wait for two of three rounds.
    assert!(slowest * 3 < all, "{slowest:?} of {all:?}");
}

// E33: a grammar may lead nowhere in the middle; that is the request's fault.
#[test]
fn a_grammar_that_leads_nowhere_ends_its_request() {
    let server = TestServer::plain();
    for grammar in ["start: start", "start: \"a\" b\nb: b"] {
        let reply = server.complete("x", json!({"guided_grammar": grammar}));
        let (status, code, _) = reply.error();
        assert_eq!(
            (status, code.as_str()),
            (400, "invalid_grammar"),
            "{}",
            reply.body
        );
    }
    server.check_empty();
    server.check_alive();
}

/// Random bodies, some broken: no panic, no 5xx, and the next request is answered.
#[test]
fn random_requests_are_answered_or_refused() {
    let server = TestServer::plain();
    let mut state = 0x9e37_79b9_u64;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1),
        json!(2.5),
        json!(1e308),
        json!(18_446_744_073_709_551_615u64),
        json!(""),
        json!("x"),
        json!("<|end|>"),
        json!("\u{0}\u{ffff}🦊"),
        json!([]),
        json!([1, 2]),
        json!(["a"]),
        json!({}),
        json!({"a": {"b": []}}),
        json!([{"role": "user", "content": "x"}]),
        json!({"type": "json_object"}),
        json!("auto"),
    ];
    let names = [
        "model",
        "prompt",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "n",
        "seed",
        "stop",
        "stop_token_ids",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "stream",
        "stream_options",
        "response_format",
        "tools",
        "tool_choice",
        "echo",
        "user",
        "guided_regex",
        "guided_json",
        "guided_grammar",
        "repetition_penalty",
        "cache_salt",
    ];
    let mut answered = 0;
    for _ in 0..600 {
        let mut body = json!({"model": "mock", "prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3});
        for _ in 0..random(4) {
            let name = names[random(names.len() as u64) as usize];
            body[name] = values[random(values.len() as u64) as usize].clone();
        }
        let mut bytes = body.to_string().into_bytes();
        if random(6) == 0 {
            let at = random(bytes.len() as u64) as usize;
            bytes[at] = random(256) as u8;
        }
        let path = [COMPLETIONS, CHAT, "/tokenize", "/detokenize"][random(4) as usize];
        let reply = server.raw(path, "application/json", &bytes);
        assert!(
            reply.status < 500,
            "{}: {}",
            String::from_utf8_lossy(&bytes),
            reply.body
        );
        if reply.status != 200 {
            reply.error();
        }
        answered += u64::from(reply.status == 200);
    }
    assert!(answered > 50, "{answered} of 600 were answered");
    server.check_empty();
    server.check_alive();
}
