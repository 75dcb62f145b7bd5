//! A server over the mock model, and a client that writes what no library would.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use butter::chat::ChatTemplate;
use butter::gguf::GgufFile;
use butter::model::Model;
use butter::scheduler::{
    DraftModels, PrefixReuse, SchedulerMetrics, SchedulerOptions, SchedulerThread, Speculator,
};
use butter::serve::Server;
use butter::serve::engine::{Engine, EngineParts};
use butter::serve::options::{Layer, ServeOptions};
use butter::tokenizer::Tokenizer;
use serde_json::{Value as Json, json};

use super::gguf_writer::Writer;
use super::mock::{MockControl, MockModel};

pub const COMPLETIONS: &str = "/v1/completions";
pub const CHAT: &str = "/v1/chat/completions";

/// What the mock answers to a prompt of plain characters.
pub fn lonely(prompt: &str, tokens: usize) -> String {
    let mut ids: Vec<u32> = prompt.bytes().map(u32::from).collect();
    for _ in 0..tokens {
        ids.push(MockModel::following(&ids));
    }
    ids[prompt.len()..]
        .iter()
        .map(|&id| id as u8 as char)
        .collect()
}

pub const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'tool' and loop.first %}{{ raise_exception('a tool speaks first') }}{% endif %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}[assistant]";

/// A template that knows tools and reasoning.
pub const TOOLS: &str = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}{{ m.content.split('</think>') | last }}{% endfor %}[assistant]";

/// A running server; stopped when it is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    pub control: Arc<MockControl>,
    pub metrics: Arc<butter::scheduler::SchedulerMetrics>,
    runtime: Option<tokio::runtime::Runtime>,
    server: Option<Server>,
}

/// How a test's server differs from the plain one.
pub struct Setup {
    pub layer: Layer,
    pub template: Option<&'static str>,
    pub model: Box<dyn FnOnce(&mut MockModel) + Send>,
    pub max_queued: usize,
    pub reuse: PrefixReuse,
    /// Whether the checkpoint has a tokenizer that Butter reads.
    pub tokenizer: bool,
    /// A draft model proposes, one of so many of whose tokens is wrong.
    pub draft: Option<u32>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            layer: Layer::default(),
            template: Some(TEMPLATE),
            model: Box::new(|_| ()),
            max_queued: 256,
            reuse: PrefixReuse::Exact,
            tokenizer: true,
            draft: None,
        }
    }
}

pub fn tokenizer() -> Tokenizer {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, Writer::llama().file()).expect("written");
    Tokenizer::from_gguf(&GgufFile::open(&path).expect("opens")).expect("builds")
}

impl TestServer {
    pub fn plain() -> TestServer {
        TestServer::start(Setup::default())
    }

    /// One that answers with a text, whatever it is asked with a prompt of `prompt` tokens.
    pub fn saying(prompt: usize, text: &str, template: &'static str) -> TestServer {
        let mut script = vec![0; prompt - 1];
        script.extend(text.bytes().map(u32::from));
        TestServer::start(Setup {
            template: Some(template),
            model: Box::new(move |model| model.script = Some(script)),
            ..Setup::default()
        })
    }

    pub fn start(setup: Setup) -> TestServer {
        let mut layer = setup.layer;
        layer.port = Some(0);
        let options: ServeOptions = layer.resolve().expect("valid settings");
        let control = Arc::new(MockControl::default());
        let (shared, change) = (control.clone(), setup.model);
        let make = move |metrics: &SchedulerMetrics| {
            let mut model = MockModel::new(shared);
            change(&mut model);
            let speculator = setup.draft.map(|wrong_every| {
                let mut draft = MockModel::new(Arc::default());
                draft.wrong_every = wrong_every;
                let leases = metrics.draft_leases.clone();
                Speculator {
                    proposer: Box::new(DraftModels::new(Box::new(draft), 16, leases)),
                    verify_rows: 5,
                    max_running: 4,
                }
            });
            Ok((Box::new(model) as Box<dyn Model>, speculator))
        };
        let scheduler = SchedulerThread::start_speculating(
            make,
            SchedulerOptions {
                max_running: 8,
                chunk: 16,
                prefill_budget: 16,
                max_positions: 512,
                reuse: setup.reuse,
                preempt_after: None,
                max_preemptions: 2,
            },
            setup.max_queued,
        )
        .expect("starts");
        let metrics = scheduler.metrics().clone();
        let engine = Engine::new(EngineParts {
            name: "mock".to_owned(),
            scheduler,
            tokenizer: setup.tokenizer.then(tokenizer),
            template: setup
                .template
                .map(|source| ChatTemplate::new(source, None, None).expect("compiles")),
            vocab_size: 259,
            end_of_generation: vec![256],
            made_of: None,
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let server = runtime
            .block_on(Server::start(engine, options))
            .expect("listens");
        TestServer {
            address: server.address(),
            control,
            metrics,
            runtime: Some(runtime),
            server: Some(server),
        }
    }

    /// Stops it as a signal would.
    pub fn stop(&mut self) {
        if let (Some(runtime), Some(server)) = (self.runtime.take(), self.server.take()) {
            runtime.block_on(server.stop());
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).expect("connects");
        let limit = Some(Duration::from_secs(30));
        socket.set_read_timeout(limit).expect("a limit");
        socket.set_write_timeout(limit).expect("a limit");
        socket
    }

    /// Sends a body as it stands.
    pub fn raw(&self, path: &str, kind: &str, body: &[u8]) -> Reply {
        let mut socket = self.connect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).expect("written");
        socket.write_all(body).expect("written");
        Reply::read(socket)
    }

    pub fn post(&self, path: &str, body: &Json) -> Reply {
        self.raw(path, "application/json", body.to_string().as_bytes())
    }

    pub fn get(&self, path: &str) -> Reply {
        self.get_with(path, "")
    }

    /// With header lines, each ended by CRLF.
    pub fn get_with(&self, path: &str, headers: &str) -> Reply {
        let mut socket = self.connect();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}connection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).expect("written");
        Reply::read(socket)
    }

    /// A chat with further fields.
    pub fn chat(&self, text: &str, more: Json) -> Reply {
        let mut body = json!({"model": "mock", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 20});
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        self.post("/v1/chat/completions", &body)
    }

    /// A completion with further fields.
    pub fn complete(&self, prompt: impl Into<Json>, more: Json) -> Reply {
        let mut body =
            json!({"model": "mock", "prompt": prompt.into(), "temperature": 0, "max_tokens": 20});
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        self.post("/v1/completions", &body)
    }

    /// Waits until nothing runs; everything must have come back.
    pub fn check_empty(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        for _ in 0..500 {
            let out = self.metrics.leases.out() - self.metrics.kept.load(Relaxed);
            let busy = self.metrics.running.load(Relaxed) + self.metrics.queued.load(Relaxed);
            if out == 0 && busy == 0 {
                assert_eq!(self.metrics.leases.leaked.load(Relaxed), 0);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("something is still held: {:?}", self.metrics);
    }

    /// The server still answers.
    pub fn check_alive(&self) {
        let reply = self.complete("are you there", json!({"max_tokens": 3}));
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn read(mut socket: TcpStream) -> Reply {
        let mut bytes = Vec::new();
        // A server that closes early may reset what was not read; what came counts.
        let _ = socket.read_to_end(&mut bytes);
        Reply::parse(&bytes)
    }

    pub fn parse(bytes: &[u8]) -> Reply {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let body = if head.to_lowercase().contains("transfer-encoding: chunked") {
            unchunked(body)
        } else {
            body.to_owned()
        };
        Reply {
            status: status.unwrap_or_else(|| panic!("no HTTP: {text:?}")),
            head: head.to_lowercase(),
            body,
        }
    }

    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The events of a stream, without the last `[DONE]`, which must be there.
    pub fn events(&self) -> Vec<Json> {
        assert_eq!(self.status, 200, "{}", self.body);
        let mut events: Vec<&str> = self
            .body
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", self.body);
        let parse = |event: &&str| serde_json::from_str(event).expect("JSON");
        events.iter().map(parse).collect()
    }

    /// The text of one answer of a stream or of a whole.
    pub fn text(&self, index: u64) -> String {
        if !self.body.starts_with("data:") {
            let choice = &self.json()["choices"][index as usize];
            let text = choice["text"]
                .as_str()
                .or(choice["message"]["content"].as_str());
            return text.unwrap_or_default().to_owned();
        }
        let events = self.events();
        let choices = events
            .iter()
            .flat_map(|event| event["choices"].as_array().expect("choices"));
        choices
            .filter(|choice| choice["index"] == index)
            .filter_map(|choice| {
                choice["text"]
                    .as_str()
                    .or(choice["delta"]["content"].as_str())
            })
            .collect()
    }

    /// Status, code and field of an error.
    pub fn error(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        assert!(
            error["message"].as_str().is_some_and(|m| !m.contains('\n')),
            "{error}"
        );
        assert!(error["type"].is_string(), "{error}");
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        (self.status, text("code"), text("param"))
    }
}

fn unchunked(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((length, rest)) = text.split_once("\r\n") {
        let Ok(length) = usize::from_str_radix(length, 16) else {
            break;
        };
        if length == 0 || rest.len() < length {
            break;
        }
        out += &rest[..length];
        text = rest[length..].trim_start_matches("\r\n");
    }
    out
}
