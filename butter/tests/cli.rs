//! The command line as a user meets it: exit codes, one-line errors, tables.

mod support {
    pub mod gguf_writer;
}

use std::path::Path;
use std::process::{Command, Output};

use support::gguf_writer::Writer;

fn butter(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_butter"))
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn small_model(folder: &Path) -> String {
    let path = folder.join("model.gguf");
    std::fs::write(&path, Writer::llama().file()).expect("written");
    path.display().to_string()
}

/// The one line of an error, with the exit code checked.
fn error_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("butter: error: "), "{text}");
    text
}

#[test]
fn inspect_lists_config_and_tensors_and_says_why_a_model_does_not_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = small_model(folder.path());
    let output = butter(&["inspect", &path]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    for words in [
        "general.name",
        "(not used)",
        "blk.0.attn_q.weight",
        "Q4_0",
        "[32, 32]",
        "11 tensors",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let output = butter(&["inspect", "--json", &path]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["tensors"].as_array().map(Vec::len), Some(11));
    assert_eq!(json["config"]["layers"], "1");

    // A type that is known but not decoded is listed, then refused.
    let mut writer = Writer::llama();
    writer.tensor("output_norm.weight").ty = 26;
    std::fs::write(&path, writer.file()).expect("written");
    let output = butter(&["inspect", &path]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("I32"));
    assert!(error_line(&output).contains("output_norm.weight is stored as I32"));
}

#[test]
fn wrong_command_lines_exit_2_and_wrong_input_exits_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = small_model(folder.path());
    let usage = |arguments: &[&str]| assert_eq!(butter(arguments).status.code(), Some(2));
    usage(&[]);
    usage(&["generate", "--model", &path]);
    usage(&[
        "generate",
        "--model",
        &path,
        "--prompt",
        "a",
        "--prompt-ids",
        "1",
    ]);
    usage(&["generate", "--model", &path, "--prompt-ids", "1,x"]);
    usage(&[
        "generate",
        "--model",
        &path,
        "--prompt",
        "a",
        "--backend",
        "abacus",
    ]);
    usage(&[
        "generate",
        "--model",
        &path,
        "--prompt",
        "a",
        "--max-tokens",
        "-1",
    ]);

    let wrong = |arguments: &[&str]| error_line(&butter(arguments));
    let line = wrong(&[
        "logits",
        "--model",
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/data/models/llama/bf16"
        ),
        "--prompt-ids",
        "1",
        "--activations",
        "q8",
    ]);
    assert!(line.contains("activations of 8 bits"), "{line}");
    let line = wrong(&[
        "logits",
        "--model",
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/data/models/deepseek_v3/bf16"
        ),
        "--prompt-ids",
        "1",
        "--kv-cache-dtype",
        "fp8",
    ]);
    assert!(
        line.contains("deepseek_v3 keeps latents") && line.contains("auto"),
        "{line}"
    );
    let missing = folder.path().join("absent.gguf").display().to_string();
    assert!(wrong(&["generate", "--model", &missing, "--prompt", "a"]).contains("absent.gguf"));
    let line = wrong(&[
        "generate",
        "--model",
        &path,
        "--prompt",
        "a",
        "--temperature",
        "NaN",
    ]);
    assert!(line.contains("--temperature: temperature is NaN"), "{line}");
    let chat = folder.path().join("chat.json").display().to_string();
    std::fs::write(&chat, "[]").expect("written");
    let line = wrong(&["generate", "--model", &path, "--chat", &chat]);
    assert!(
        line.contains("chat.json") && line.contains("the list is empty"),
        "{line}"
    );
    std::fs::write(&chat, r#"[{"role": "user", "content": "x"}]"#).expect("written");
    let line = wrong(&["generate", "--model", &path, "--chat", &chat]);
    assert!(line.contains("no chat template"), "{line}");
}

/// Command lines that once panicked, hung or were taken as they are.
#[test]
fn hostile_values_are_refused_in_one_line_that_names_the_flag() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = small_model(folder.path());
    const HUGE: &str = "18446744073709551615";
    let bench = ["bench", "--shape", "tiny"];
    let generate = ["generate", "--model", &path, "--prompt-ids", "1"];
    let cases: [(&[&str], &str, &str); 22] = [
        (&bench, "--contexts", HUGE),
        (&bench, "--contexts", "0"),
        (&bench, "--tokens", HUGE),
        (&bench, "--tokens", "0"),
        (&bench, "--batches", HUGE),
        (&bench, "--batches", "0"),
        (&bench, "--batches", "100000"),
        (&bench, "--chunk", HUGE),
        (&bench, "--chunk", "0"),
        (&bench, "--repetitions", "0"),
        (&bench, "--warm-up", HUGE),
        (&["bench-serve"], "--requests", HUGE),
        (&["bench-serve"], "--requests", "0"),
        (&["bench-serve"], "--prompt-tokens", HUGE),
        (&["bench-serve"], "--clients", "0"),
        (&["bench-serve"], "--rate", "nan"),
        (&["bench-serve"], "--temperature", "nan"),
        (&["bench-serve"], "--rate", "1e-300"),
        (&generate, "--max-tokens", HUGE),
        (&generate, "--stop", ""),
        (&generate, "--top-k", HUGE),
        (&generate, "--verify-rows", "0"),
    ];
    for (before, flag, value) in cases {
        let output = butter(&[before, &[flag, value]].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flag} {value}: {text}");
        assert_eq!(text.lines().count(), 1, "{flag} {value}: {text}");
        assert!(
            text.starts_with("butter: error: ") && text.contains(flag),
            "{text}"
        );
    }
    let output = butter(
        &[
            &generate[..],
            &["--logit-bias", "5=1", "--logit-bias", "5=2"],
        ]
        .concat(),
    );
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text, "butter: error: --logit-bias: token 5 stands twice\n");
    // Rows of a verification that nobody asks for.
    let output = butter(&[&generate[..], &["--verify-rows", "3"]].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("--draft") && text.contains("--ngram"),
        "{text}"
    );
    let line = error_line(&butter(&[&generate[..], &["--mtp"]].concat()));
    assert!(line.contains("no multi-token head"), "{line}");
    for (flags, words) in [
        (&["--mtp"][..], "no multi-token head"),
        (&["--mtp", "--ngram"], "ngram is on"),
        (&["--ngram", "--verify-rows", "11"], "verify_rows is 11"),
    ] {
        let serve = ["serve", "--port", "0", "--model", &path];
        let line = butter(&[&serve[..], flags].concat());
        let line = String::from_utf8_lossy(&line.stderr).into_owned();
        assert!(line.contains(words), "{line}");
    }

    // Sizes that the model cannot have are named with the flag before anything is loaded.
    for (flag, words) in [
        ("--prompts", "a prompt of 16777216"),
        ("--contexts", "the model's context"),
    ] {
        let line = error_line(&butter(&[&bench[..], &[flag, "16777216"]].concat()));
        assert!(line.contains(flag) && line.contains(words), "{line}");
    }
    let line = error_line(&butter(&["inspect", "/dev/null"]));
    assert!(
        line.contains("/dev/null: is neither a file nor a folder"),
        "{line}"
    );
}

#[test]
fn token_ids_of_a_file_are_read_strictly_and_the_file_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/data/models/llama/bf16"
    );
    let ids = folder.path().join("ids.txt").display().to_string();
    for (text, words) in [
        ("[[1,[2]],,3", "is no JSON list of token ids"),
        ("1,,2", "no token id before or after comma"),
        ("", "0 tokens leave none to predict"),
        ("7", "1 tokens leave none to predict"),
        ("1 2 99999", "prompt id 99999"),
        ("1 x", "`x` is not a token id"),
    ] {
        std::fs::write(&ids, text).expect("written");
        let line = error_line(&butter(&["perplexity", "--model", path, "--ids", &ids]));
        assert!(line.contains("ids.txt") && line.contains(words), "{line}");
    }
}

#[test]
fn bench_measures_random_weights_and_writes_both_forms() {
    let folder = tempfile::tempdir().expect("a folder");
    let [json, markdown] = ["json", "md"].map(|end| folder.path().join(format!("report.{end}")));
    let [json, markdown] = [&json, &markdown].map(|path| path.display().to_string());
    let mut arguments: Vec<&str> = "bench --shape tiny --prompts 20 --contexts 16 --batches 1,2 \
        --tokens 4 --repetitions 2 --chunk 32 --profile --commit abc --json"
        .split_whitespace()
        .collect();
    arguments.extend([json.as_str(), "--markdown", &markdown]);
    let output = butter(&arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let bytes = std::fs::read(&json).expect("written");
    let report: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!(report["route"], "rows");
    assert_eq!(report["commit"], "abc");
    let measured = report["measurements"].as_array().expect("a list");
    let kinds: Vec<&str> = measured.iter().filter_map(|m| m["kind"].as_str()).collect();
    let decode = ["decode", "decode, read back"];
    assert_eq!(kinds, [&["prefill"], &decode[..], &decode[..]].concat());
    // The device by itself chooses what the host would read back token by token.
    assert_eq!(measured[1]["fingerprint"], measured[2]["fingerprint"]);
    assert_ne!(measured[1]["fingerprint"], measured[3]["fingerprint"]);
    assert!(
        measured
            .iter()
            .all(|m| m["tokens_per_second"].as_f64() > Some(0.0))
    );
    let profiles = report["profiles"].as_array().expect("a list");
    assert_eq!(profiles.len(), 3);
    let table = std::fs::read_to_string(&markdown).expect("written");
    assert!(table.contains("| decode, read back | 2 | 16 |"), "{table}");

    for (option, value) in [("--shape", "qwen9"), ("--route", "quick")] {
        let shape = if option == "--shape" { value } else { "tiny" };
        let mut arguments = vec!["bench", "--shape", shape];
        if option == "--route" {
            arguments.extend([option, value]);
        }
        let line = error_line(&butter(&arguments));
        assert!(line.contains(value) && line.contains(option), "{line}");
    }
}
