//! `butter serve` and `butter bench-serve` as an operator meets them: random weights behind a
//! port, load from both loops, the errors of settings and of a server that is not there.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value as Json;

fn butter(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_butter"))
        .args(arguments)
        .output()
        .expect("the program starts")
}

/// The one line of an error.
fn error_line(arguments: &[&str]) -> String {
    let output = butter(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
    let errors: Vec<&str> = text.lines().filter(|l| l.contains("error: ")).collect();
    assert_eq!(errors.len(), 1, "{arguments:?}: {text}");
    assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    errors[0].to_owned()
}

/// A server of random weights, ended when it is dropped.
struct Served {
    process: Child,
    url: String,
}

impl Served {
    fn start(more: &[&str]) -> Served {
        let mut process = Command::new(env!("CARGO_BIN_EXE_butter"))
            .args(["serve", "--shape", "tiny", "--port", "0"])
            .args(more)
            .env("BUTTER_MAX_RUNNING", "4")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stderr = process.stderr.take().expect("piped");
        let mut lines = BufReader::new(stderr).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once(" at http://")?.1.to_owned()))
            .expect("it serves");
        std::thread::spawn(move || lines.for_each(drop));
        Served {
            process,
            url: format!("http://{url}"),
        }
    }

    fn load(&self, more: &[&str]) -> (Json, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.json").display().to_string();
        let mut arguments = vec!["bench-serve", "--url", &self.url, "--json", &path];
        arguments.extend(more);
        let output = butter(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let report = std::fs::read(&path).expect("written");
        let markdown = String::from_utf8(output.stdout).expect("text");
        (serde_json::from_slice(&report).expect("JSON"), markdown)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn random_weights_are_served_and_both_loops_measure_them() {
    let served = Served::start(&["--max-positions", "256", "--cache-tokens", "2048"]);
    for (more, name, clients) in [
        (
            vec!["--clients", "4", "--requests", "9"],
            "closed",
            4.into(),
        ),
        (vec!["--rate", "50", "--requests", "9"], "open", Json::Null),
    ] {
        let mut arguments = vec!["--prompt-tokens", "40-90", "--answer-tokens", "5-20"];
        arguments.extend(more);
        let (report, markdown) = served.load(&arguments);
        assert_eq!(
            (&report["loop"], &report["clients"]),
            (&name.into(), &clients)
        );
        assert_eq!(
            (&report["answered"], &report["failed"]),
            (&9.into(), &0.into())
        );
        assert!(report["answer_tokens_per_second"].as_f64() > Some(0.0));
        let clocks = report["milliseconds"].as_object().expect("clocks");
        let names: Vec<&str> = clocks.keys().map(String::as_str).collect();
        assert_eq!(names, ["queue", "first_token", "between_tokens", "whole"]);
        for (name, clock) in clocks {
            let at = |point: &str| clock[point].as_f64().expect(name);
            let points = ["p50", "p90", "p95", "p99", "max"].map(at);
            assert!(points.is_sorted(), "{name}: {points:?}");
            assert!(name == "queue" || points[0] > 0.0, "{name}: {points:?}");
            assert!(markdown.contains(&format!("| {} |", name.replace('_', " "))));
        }
        let whole = &clocks["whole"]["p50"];
        assert!(clocks["first_token"]["p50"].as_f64() < whole.as_f64());
        assert!(markdown.contains(&served.url), "{markdown}");
    }
    // What prompts share is computed once, to the last chunk of 64 tokens.
    let shared = [
        "--prompt-tokens",
        "200",
        "--shared",
        "90",
        "--answer-tokens",
        "2",
    ];
    let one = ["--clients", "1", "--requests", "3", "--seed", "7"];
    let (report, _) = served.load(&[&shared[..], &one[..]].concat());
    assert_eq!(report["reused_prompt_tokens"], 2 * 128);
    // Another run finds nothing of this one.
    let (report, _) = served.load(&[&shared[..], &one[..]].concat());
    assert_eq!(report["reused_prompt_tokens"], 2 * 128);
    // A request that does not fit is a failure with the server's address and words.
    let line = error_line(&[
        "bench-serve",
        "--url",
        &served.url,
        "--prompt-tokens",
        "300",
    ]);
    assert!(
        line.contains(&served.url) && line.contains("64 of 64") && line.contains("256"),
        "{line}"
    );
}

#[test]
fn settings_and_servers_that_are_not_there_are_errors_of_a_line() {
    for (name, value) in [
        ("--cache-tokens", "18446744073709551615"),
        ("--max-running", "18446744073709551615"),
        ("--prefill-chunk", "18446744073709551615"),
        ("--max-connections", "18446744073709551615"),
        ("--max-queued", "18446744073709551615"),
        ("--max-positions", "1"),
    ] {
        let line = error_line(&["serve", "--shape", "tiny", "--port", "0", name, value]);
        let setting = name.trim_start_matches("--").replace('-', "_");
        let shown = format!("{setting} is {value}");
        assert!(line.contains(&shown) && line.contains("must be"), "{line}");
    }
    for (arguments, words) in [
        (&["serve"][..], "--model"),
        (&["serve", "--shape", "qwen9"], "qwen3-8b"),
        (&["serve", "--shape", "tiny", "--model", "x"], "not both"),
        (
            &["serve", "--shape", "tiny", "--backend", "abacus"],
            "cpu, vulkan",
        ),
        (
            &["serve", "--shape", "tiny", "--dtype", "f8"],
            "f32, f16, bf16",
        ),
        (&["serve", "--shape", "tiny", "--route", "quick"], "unfused"),
    ] {
        let line = error_line(arguments);
        assert!(line.contains(words), "{line}");
    }
    // A port that is taken is known at once.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let line = error_line(&["serve", "--shape", "tiny", "--port", &port]);
    assert!(
        line.contains("cannot listen") && line.contains(&port),
        "{line}"
    );
    drop(taken);
    let url = format!("http://127.0.0.1:{port}");
    let line = error_line(&["bench-serve", "--url", &url]);
    assert!(line.contains(&url) && line.contains("refused"), "{line}");
    let both = butter(&["bench-serve", "--clients", "3", "--rate", "5"]);
    let text = String::from_utf8_lossy(&both.stderr);
    assert_eq!(both.status.code(), Some(2), "{text}");
    assert!(text.contains("--clients: "), "{text}");
    let line = error_line(&["bench-serve", "--url", "https://x"]);
    assert!(line.contains("http://HOST:PORT"), "{line}");
}

#[test]
fn model_and_backend_come_from_the_environment_and_the_file_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("butter.toml");
    std::fs::write(&file, "shape = \"qwen9\"\nbackend = \"abacus\"\n").expect("written");
    let run = |shape: Option<&str>, flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_butter"));
        command.args(["serve", "--config"]).arg(&file).args(flags);
        if let Some(shape) = shape {
            command.env("BUTTER_SHAPE", shape);
        }
        let output = command.output().expect("the program starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(run(None, &[]).contains("there is no \"abacus\""));
    assert!(run(None, &["--backend", "cpu"]).contains("no shape \"qwen9\""));
    let line = run(Some("other"), &["--backend", "cpu"]);
    assert!(line.contains("no shape \"other\""), "{line}");
}
