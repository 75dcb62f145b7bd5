//! `butter pull` against a small hub in the test: what it asks, what it refuses, what it leaves.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const LIST: &str = "/api/models/org/tiny/revision/main?blobs=true";

/// What the hub answers to a request.
#[derive(Clone)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Bytes of the body after which the connection is cut.
    cut: Option<usize>,
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            cut: None,
        }
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn cut(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
struct Asked {
    path: String,
    headers: BTreeMap<String, String>,
}

type Respond = dyn Fn(&Asked, usize) -> Answer + Send + Sync;

/// A server on a port of its own; its thread ends with the process.
struct TestHub {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl TestHub {
    /// `respond` gets a request and how many of its path came before.
    fn start(respond: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (log, respond) = (asked.clone(), Arc::new(respond));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let _ = serve(socket, &log, &*respond);
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.path).collect()
    }
}

fn serve(mut socket: TcpStream, log: &Mutex<Vec<Asked>>, respond: &Respond) -> std::io::Result<()> {
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        match line.trim().split_once(':') {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    let asked = Asked { path, headers };
    let before = {
        let mut log = log.lock().expect("no panic");
        log.push(asked.clone());
        log.iter().filter(|one| one.path == asked.path).count() - 1
    };
    let answer = respond(&asked, before);
    write!(
        socket,
        "HTTP/1.1 {} X\r\nconnection: close\r\ncontent-length: {}\r\n",
        answer.status,
        answer.body.len()
    )?;
    for (name, value) in &answer.headers {
        write!(socket, "{name}: {value}\r\n")?;
    }
    socket.write_all(b"\r\n")?;
    let end = answer.cut.unwrap_or(answer.body.len());
    socket.write_all(&answer.body[..end])
}

/// The bytes of a file from where the request wants them.
fn part(asked: &Asked, content: &[u8]) -> Answer {
    let range = asked.headers.get("range");
    match range.and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }) {
        None => Answer::new(200, content),
        Some(start) if start >= content.len() => Answer::new(416, ""),
        Some(start) => Answer::new(206, &content[start..]).header(
            "content-range",
            &format!("bytes {start}-{}/{}", content.len() - 1, content.len()),
        ),
    }
}

fn weights() -> Vec<u8> {
    (0..300_000u32).map(|i| (i * 31 % 251) as u8).collect()
}

fn hash(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn lfs(name: &str, content: &[u8]) -> Json {
    json!({"rfilename": name, "blobId": "f".repeat(40), "size": content.len(),
           "lfs": {"sha256": hash(content), "size": content.len(), "pointerSize": 134}})
}

fn plain(name: &str, content: &str) -> Json {
    json!({"rfilename": name, "blobId": hash(content.as_bytes())[..40], "size": content.len()})
}

fn listing(files: &[Json]) -> Answer {
    Answer::new(
        200,
        json!({"id": "org/tiny", "sha": COMMIT, "siblings": files}).to_string(),
    )
}

fn file_path(name: &str) -> String {
    format!("/org/tiny/resolve/{COMMIT}/{name}")
}

const CONFIG: &str = "{\"model_type\": \"llama\"}";

/// A hub with a config and a file of weights; `respond` may answer before it.
fn usual(respond: impl Fn(&Asked, usize) -> Option<Answer> + Send + Sync + 'static) -> TestHub {
    TestHub::start(move |asked, before| {
        if let Some(answer) = respond(asked, before) {
            return answer;
        }
        match asked.path.as_str() {
            LIST => listing(&[
                plain("config.json", CONFIG),
                lfs("model.safetensors", &weights()),
                plain("notes/readme.txt", "hello"),
            ]),
            path if path == file_path("config.json") => part(asked, CONFIG.as_bytes()),
            path if path == file_path("model.safetensors") => part(asked, &weights()),
            path if path == file_path("notes/readme.txt") => part(asked, b"hello"),
            _ => Answer::new(404, "").header("x-error-code", "RevisionNotFound"),
        }
    })
}

fn butter(hub: &TestHub, cache: &Path, arguments: &[&str]) -> Output {
    butter_with(&hub.url, cache, arguments, &[])
}

fn butter_with(url: &str, cache: &Path, arguments: &[&str], set: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butter"));
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        command.env_remove(proxy).env_remove(proxy.to_lowercase());
    }
    for name in [
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "HF_HOME",
        "HUGGINGFACE_HUB_CACHE",
    ] {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", url).env("HF_HUB_CACHE", cache);
    command.envs(set.iter().copied()).args(arguments);
    command.output().expect("the program starts")
}

/// The folder that a successful call names.
fn folder(output: &Output) -> PathBuf {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

fn error_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("butter: error: "), "{text}");
    text
}

/// Every file below a folder, links not followed.
fn all_files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().expect("a type").is_dir() {
            true => found.extend(all_files(&entry.path())),
            false => found.push(entry.path().display().to_string()),
        }
    }
    found.sort();
    found
}

#[test]
fn a_model_is_fetched_once_and_then_found_by_its_name_without_the_network() {
    let cache = tempfile::tempdir().expect("a folder");
    let hub = usual(|_, _| None);
    let path = folder(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
    assert_eq!(
        path,
        cache
            .path()
            .join("models--org--tiny/snapshots")
            .join(COMMIT)
    );
    assert_eq!(
        std::fs::read(path.join("model.safetensors")).expect("read"),
        weights()
    );
    assert_eq!(
        std::fs::read_to_string(path.join("config.json")).expect("read"),
        CONFIG
    );
    assert!(!path.join("notes").exists());
    let first = hub.paths().len();
    assert_eq!(first, 3);

    // Again: the list alone is asked for.
    folder(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
    assert_eq!(&hub.paths()[first..], [LIST]);
    // A file in a folder, by its pattern.
    folder(&butter(
        &hub,
        cache.path(),
        &["pull", "org/tiny@main", "--include", "*.txt"],
    ));
    assert_eq!(
        std::fs::read_to_string(path.join("notes/readme.txt")).expect("read"),
        "hello"
    );

    let before = hub.paths().len();
    for (arguments, set) in [
        (&["pull", "org/tiny", "--offline"][..], &[][..]),
        (&["pull", "org/tiny"], &[("HF_HUB_OFFLINE", "1")]),
        (
            &["pull", "org/tiny", "--revision", COMMIT, "--offline"],
            &[],
        ),
    ] {
        let output = butter_with(&hub.url, cache.path(), arguments, set);
        assert_eq!(folder(&output), path);
    }
    let output = butter(
        &hub,
        cache.path(),
        &["pull", "org/tiny", "--offline", "--include", "notes/*"],
    );
    let listed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(folder(&output), path);
    assert!(listed.contains("notes/readme.txt: 5 bytes"), "{listed}");
    assert!(!listed.contains("config.json"), "{listed}");
    let wrong = ["pull", "org/tiny", "--offline", "--include", "*.bin"];
    let line = error_line(&butter(&hub, cache.path(), &wrong));
    assert!(line.contains("no file is named `*.bin`"), "{line}");
    let output = butter(&hub, cache.path(), &["pull", "org/other", "--offline"]);
    assert!(error_line(&output).contains("org/other is not in "));

    // Where a model is wanted, its name leads to it; what was not fetched is never fetched then.
    let line = error_line(&butter(
        &hub,
        cache.path(),
        &["logits", "--model", "org/tiny", "--prompt-ids", "1"],
    ));
    assert!(
        line.contains("snapshots") && line.contains("config.json"),
        "{line}"
    );
    let line = error_line(&butter(
        &hub,
        cache.path(),
        &["logits", "--model", "org/other", "--prompt-ids", "1"],
    ));
    assert!(line.contains("`butter pull org/other` fetches"), "{line}");
    assert_eq!(hub.paths().len(), before);
}

#[test]
fn a_real_checkpoint_runs_by_its_name() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/llama/bf16");
    let read = |name: &str| std::fs::read(data.join(name)).expect("read");
    let (config, model) = (read("config.json"), read("model.safetensors"));
    let cache = tempfile::tempdir().expect("a folder");
    let hub = TestHub::start(move |asked, _| match asked.path.as_str() {
        LIST => listing(&[
            plain("config.json", &String::from_utf8_lossy(&config)),
            lfs("model.safetensors", &model),
        ]),
        path if path.ends_with("config.json") => part(asked, &config),
        _ => part(asked, &model),
    });
    folder(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
    let run = |model: &str| {
        let arguments = [
            "generate",
            "--model",
            model,
            "--prompt-ids",
            "1,2,3",
            "--max-tokens",
            "4",
        ];
        let output = butter(&hub, cache.path(), &arguments);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    };
    assert_eq!(run("org/tiny"), run(&data.display().to_string()));
}

#[test]
fn a_cut_transfer_goes_on_at_once_and_by_the_next_call() {
    // Cut twice within one call.
    let cache = tempfile::tempdir().expect("a folder");
    let cuts = |asked: &Asked, before: usize| {
        let cut = (asked.path == file_path("model.safetensors")).then_some(before)?;
        (cut < 2).then(|| part(asked, &weights()).cut(100_000))
    };
    let hub = usual(cuts);
    let path = folder(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
    assert_eq!(
        std::fs::read(path.join("model.safetensors")).expect("read"),
        weights()
    );
    let ranges = |hub: &TestHub| -> Vec<Option<String>> {
        let weights = file_path("model.safetensors");
        let asked = hub
            .asked()
            .into_iter()
            .filter(|asked| asked.path == weights);
        asked
            .map(|asked| asked.headers.get("range").cloned())
            .collect()
    };
    let found = ranges(&hub);
    assert_eq!(found.len(), 3);
    assert_eq!(found[0], None);
    for range in &found[1..] {
        let start = range
            .as_ref()
            .and_then(|range| range.strip_prefix("bytes="));
        let start = start.and_then(|start| start.strip_suffix('-')?.parse::<usize>().ok());
        assert!(
            start.is_some_and(|start| start > 0 && start <= 200_000),
            "{found:?}"
        );
    }

    // Cut in every attempt: an error, and what is there stays for the next call.
    let cache = tempfile::tempdir().expect("a folder");
    let hub = usual(|asked, before| {
        if asked.path != file_path("model.safetensors") {
            return None;
        }
        Some(match before {
            0 => part(asked, &weights()).cut(120_000),
            _ => Answer::new(503, ""),
        })
    });
    let line = error_line(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
    assert!(
        line.contains("model.safetensors: the transfer ended after ") && line.contains("of 300000"),
        "{line}"
    );
    assert!(!cache.path().join("models--org--tiny/refs/main").exists());
    let again = usual(|_, _| None);
    folder(&butter(&again, cache.path(), &["pull", "org/tiny"]));
    let found = ranges(&again);
    assert!(
        matches!(&found[..], [Some(range)] if range.starts_with("bytes=")),
        "{found:?}"
    );
}

#[test]
fn a_server_that_cannot_go_on_sends_the_whole_again() {
    let cache = tempfile::tempdir().expect("a folder");
    let hub = usual(|asked, before| {
        if asked.path != file_path("model.safetensors") {
            return None;
        }
        Some(match before {
            0 => Answer::new(200, weights()).cut(150_000),
            // Another part than was asked for, then the whole.
            1 => {
                Answer::new(206, &weights()[10..]).header("content-range", "bytes 10-299999/300000")
            }
            _ => Answer::new(200, weights()),
        })
    });
    let path = folder(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
    assert_eq!(
        std::fs::read(path.join("model.safetensors")).expect("read"),
        weights()
    );
}

#[test]
fn a_server_that_begins_again_and_again_is_given_up() {
    let cache = tempfile::tempdir().expect("a folder");
    let hub = usual(|asked, before| {
        if asked.path != file_path("model.safetensors") {
            return None;
        }
        Some(match before % 2 {
            0 => Answer::new(200, weights()).cut(150_000),
            _ => Answer::new(416, ""),
        })
    });
    let line = error_line(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
    assert!(line.contains("the transfer ended after "), "{line}");
    let weights = file_path("model.safetensors");
    let asked = hub.paths().into_iter().filter(|path| *path == weights);
    assert_eq!(asked.count(), 6);
}

#[test]
fn a_file_that_is_not_the_listed_one_is_refused_and_removed() {
    let mut wrong = weights();
    wrong[150_000] ^= 1;
    let longer = [weights(), vec![0]].concat();
    for (content, words) in [
        (wrong, "its SHA-256 is"),
        (
            longer,
            "the server sends 300001 bytes, the hub's list says 300000",
        ),
        (
            weights()[..299_999].to_vec(),
            "the server sends 299999 bytes",
        ),
    ] {
        let cache = tempfile::tempdir().expect("a folder");
        let hub = usual(move |asked, _| {
            (asked.path == file_path("model.safetensors"))
                .then(|| Answer::new(200, content.clone()))
        });
        let line = error_line(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
        assert!(
            line.contains("model.safetensors") && line.contains(words),
            "{line}"
        );
        let left = all_files(cache.path());
        assert!(
            !left.iter().any(|file| file.ends_with("model.safetensors")),
            "{left:?}"
        );
        if words.contains("SHA") {
            assert!(
                !left.iter().any(|file| file.ends_with(".incomplete")),
                "{left:?}"
            );
        }
        // The right file comes through afterwards.
        let right = usual(|_, _| None);
        let path = folder(&butter(&right, cache.path(), &["pull", "org/tiny"]));
        assert_eq!(
            std::fs::read(path.join("model.safetensors")).expect("read"),
            weights()
        );
    }
}

#[test]
fn what_is_not_there_is_said_in_one_line() {
    let cache = tempfile::tempdir().expect("a folder");
    let hub = usual(|_, _| None);
    let wrong = |arguments: &[&str]| error_line(&butter(&hub, cache.path(), arguments));
    let line = wrong(&["pull", "org/tiny", "--revision", "v9/x"]);
    assert!(
        line.contains("org/tiny has no revision v9/x") && line.contains("404"),
        "{line}"
    );
    assert!(
        hub.paths()
            .last()
            .is_some_and(|path| path.contains("/revision/v9%2Fx?"))
    );
    assert!(
        wrong(&["pull", "org/tiny", "--include", "*.gguf"]).contains("no file is named `*.gguf`")
    );
    assert!(wrong(&["pull", "../org"]).contains("`../org` is not ORG/NAME"));
    assert!(wrong(&["pull", "org/tiny@../../x"]).contains("is not a branch"));
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", closed.local_addr().expect("an address"));
    drop(closed);
    let line = error_line(&butter_with(&url, cache.path(), &["pull", "org/tiny"], &[]));
    assert!(line.contains(&url), "{line}");
    let line = error_line(&butter_with(
        "ftp://x",
        cache.path(),
        &["pull", "org/tiny"],
        &[],
    ));
    assert!(line.contains("HF_ENDPOINT is `ftp://x`"), "{line}");
    let gated = usual(|_, _| Some(Answer::new(401, "")));
    let line = error_line(&butter(&gated, cache.path(), &["pull", "org/tiny"]));
    assert!(
        line.contains("there is no model org/tiny, or it asks for a token (HF_TOKEN)"),
        "{line}"
    );
    assert!(all_files(cache.path()).is_empty());
}

#[test]
fn a_list_that_lies_is_refused_before_anything_is_written() {
    let lists = [
        (
            json!([{"rfilename": "../../evil.json", "blobId": "a".repeat(40), "size": 1}]),
            "`../../evil.json` is no path",
        ),
        (
            json!([{"rfilename": "/etc/x.json", "blobId": "a".repeat(40), "size": 1}]),
            "`/etc/x.json` is no path",
        ),
        (
            json!([{"rfilename": "a\u{1b}[2J.json", "blobId": "a".repeat(40), "size": 1}]),
            "is no path",
        ),
        (
            json!([{"rfilename": "x.json", "blobId": "../../../x", "size": 1}]),
            "`x.json` has no hash",
        ),
        (
            json!([{"rfilename": "x.json", "blobId": "a".repeat(40)}]),
            "`x.json` has no size",
        ),
        (
            json!([{"rfilename": "x.json", "size": 1, "lfs": {"sha256": "../x", "size": 1}}]),
            "`x.json` has no hash",
        ),
        (json!("none"), "expected a sequence"),
    ];
    for (siblings, words) in lists {
        let cache = tempfile::tempdir().expect("a folder");
        let body = json!({"sha": COMMIT, "siblings": siblings}).to_string();
        let hub = TestHub::start(move |_, _| Answer::new(200, body.clone()));
        let line = error_line(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
        assert!(line.contains(words), "{line}");
        assert!(all_files(cache.path()).is_empty());
    }
    let cache = tempfile::tempdir().expect("a folder");
    let hub = TestHub::start(|_, _| {
        Answer::new(200, json!({"sha": "../../x", "siblings": []}).to_string())
    });
    let line = error_line(&butter(&hub, cache.path(), &["pull", "org/tiny"]));
    assert!(line.contains("its commit is `../../x`"), "{line}");
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    // Weights lie with another host, as the hub's do; the config on another path of its own.
    let elsewhere = TestHub::start(|asked, _| part(asked, &weights()));
    let to = format!("{}/cdn/weights?signature=1", elsewhere.url);
    let hub = usual(move |asked, _| {
        if asked.path == file_path("model.safetensors") {
            return Some(Answer::new(302, "").header("location", &to));
        }
        if asked.path == file_path("config.json") {
            return Some(Answer::new(307, "").header("location", "/moved/config.json"));
        }
        (asked.path == "/moved/config.json").then(|| part(asked, CONFIG.as_bytes()))
    });
    let cache = tempfile::tempdir().expect("a folder");
    let set = [("HF_TOKEN", "hf_secret")];
    let path = folder(&butter_with(
        &hub.url,
        cache.path(),
        &["pull", "org/tiny"],
        &set,
    ));
    assert_eq!(
        std::fs::read(path.join("model.safetensors")).expect("read"),
        weights()
    );
    for asked in hub.asked() {
        let token = asked.headers.get("authorization").map(String::as_str);
        assert_eq!(token, Some("Bearer hf_secret"), "{asked:?}");
    }
    let asked = elsewhere.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].headers.get("authorization"), None);

    let line = error_line(&butter_with(
        &hub.url,
        cache.path(),
        &["pull", "org/tiny"],
        &[("HF_TOKEN", "a\nb")],
    ));
    assert!(
        line.contains("HF_TOKEN is not a token") && !line.contains("hf_secret"),
        "{line}"
    );
    // Round and round.
    let round = usual(|_, _| Some(Answer::new(302, "").header("location", "/again")));
    let line = error_line(&butter(&round, cache.path(), &["pull", "org/tiny"]));
    assert!(line.contains("too many redirects"), "{line}");
}

#[test]
fn files_in_a_folder_of_ones_own_are_compared_before_they_are_left() {
    let (cache, own) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let hub = usual(|_, _| None);
    let to = own.path().display().to_string();
    let pull = || {
        folder(&butter(
            &hub,
            cache.path(),
            &["pull", "org/tiny", "--to", &to],
        ))
    };
    assert_eq!(pull(), own.path());
    let path = own.path().join("model.safetensors");
    assert_eq!(std::fs::read(&path).expect("read"), weights());
    assert!(all_files(cache.path()).is_empty());
    // Right: left alone. Of the same length and wrong: fetched again.
    let fetched = |hub: &TestHub| {
        hub.paths()
            .iter()
            .filter(|p| **p == file_path("model.safetensors"))
            .count()
    };
    pull();
    assert_eq!(fetched(&hub), 1);
    let mut wrong = weights();
    wrong[7] ^= 1;
    std::fs::write(&path, wrong).expect("written");
    pull();
    assert_eq!(fetched(&hub), 2);
    assert_eq!(std::fs::read(&path).expect("read"), weights());
}
