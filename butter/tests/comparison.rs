//! `butter perplexity --compare` against plain sums in `f64` over the same steps' logits.

mod support {
    pub mod gguf_writer;
}

use std::path::PathBuf;
use std::process::Command;

use butter::checkpoint::Checkpoint;
use butter::cli::{ActivationType, Activations, Backend, open_model};
use butter::model::{RowOutput, RowResult, StepRow};
use serde_json::Value as Json;

/// Two windows of 17 and one of what is left.
const WINDOW: usize = 17;

fn ids() -> Vec<u32> {
    (0..40u32).map(|i| (i * i * 31 + 7) % 512).collect()
}

fn model(family: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/models/{family}/bf16"))
}

/// `ln` of the probability of each token behind each token of the text.
fn plain(family: &str, dtype: ActivationType) -> Vec<Vec<f64>> {
    let checkpoint = Checkpoint::open(&model(family)).expect("opens");
    let mut model =
        open_model(&checkpoint, Backend::Cpu, dtype, Activations::Exact).expect("loads");
    let ids = ids();
    let mut predicted = Vec::new();
    // A window begins with the last token of the one before, and is one step here.
    for window in ids[..ids.len() - 1].chunks(WINDOW - 1) {
        let sequence = model.open_sequence(window.len()).expect("room");
        let row = |(i, &token): (usize, &u32)| StepRow {
            sequence,
            token,
            position: i as u32,
            output: RowOutput::Logits,
        };
        let rows: Vec<StepRow> = window.iter().enumerate().map(row).collect();
        for result in model.step(&rows).expect("a step") {
            let RowResult::Logits(logits) = result else {
                panic!("{result:?}");
            };
            let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            predicted.push(logits.iter().map(|&l| f64::from(l) - sum.ln()).collect());
        }
        model.close_sequence(sequence);
    }
    predicted
}

fn butter(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butter"));
    command
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn best(row: &[f64]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

#[test]
fn divergence_and_agreement_are_those_of_plain_sums() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, csv) = (
        folder.path().join("ids"),
        folder.path().join("predictions.csv"),
    );
    let list: Vec<String> = ids().iter().map(u32::to_string).collect();
    std::fs::write(&text, list.join(" ")).expect("written");
    let [text, csv] = [text, csv].map(|path| path.display().to_string());
    let [llama, qwen3] = ["llama", "qwen3"].map(|family| model(family).display().to_string());
    let window = WINDOW.to_string();
    let run = |more: &[&str]| -> Json {
        let fixed = [
            "perplexity",
            "--model",
            &llama,
            "--ids",
            &text,
            "--window",
            &window,
            "--json",
        ];
        let output = butter(&[&fixed, more].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let f32s = plain("llama", ActivationType::F32);
    for (arguments, reference) in [
        (
            vec!["--compare-dtype", "bf16"],
            plain("llama", ActivationType::Bf16),
        ),
        (
            vec!["--compare", &qwen3],
            plain("qwen3", ActivationType::F32),
        ),
    ] {
        let found = run(&[&arguments[..], &["--predictions", &csv]].concat());
        let mut kl = Vec::new();
        let mut same = 0;
        for (q, p) in f32s.iter().zip(&reference) {
            kl.push(p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>());
            same += usize::from(best(p) == best(q));
        }
        let mean = kl.iter().sum::<f64>() / kl.len() as f64;
        let near = |key: &str, expected: f64| {
            let found = found[key].as_f64().expect("a number");
            assert!(
                (found - expected).abs() < 1e-9 * (1.0 + expected.abs()),
                "{key}: {found}, {expected}"
            );
        };
        near("mean_kl", mean);
        near("largest_kl", kl.iter().copied().fold(0.0, f64::max));
        near("same_top", same as f64 / kl.len() as f64);
        assert!(mean > 1e-7, "{mean}");
        let nll = |rows: &[Vec<f64>]| {
            let each = rows
                .iter()
                .zip(&ids()[1..])
                .map(|(row, &token)| -row[token as usize])
                .collect::<Vec<_>>();
            each.iter().sum::<f64>() / each.len() as f64
        };
        for (name, rows) in [("model", &f32s), ("reference", &reference)] {
            let found = found[name]["mean_nll"].as_f64().expect("a number");
            assert!((found - nll(rows)).abs() < 1e-9, "{name}: {found}");
        }
        // Each prediction stands in the file.
        let table = std::fs::read_to_string(&csv).expect("written");
        let rows: Vec<Vec<f64>> = table
            .lines()
            .skip(1)
            .map(|line| {
                line.split(',')
                    .map(|cell| cell.parse().expect("a number"))
                    .collect()
            })
            .collect();
        assert_eq!(rows.len(), 39);
        for (i, row) in rows.iter().enumerate() {
            assert_eq!((row[0] as usize, row[1] as u32), (i + 1, ids()[i + 1]));
            assert!(
                (row[2] - kl[i]).abs() < 1e-9 * (1.0 + kl[i]),
                "{i}: {} {}",
                row[2],
                kl[i]
            );
        }
    }
    // With itself: nothing, to the bit, whatever the route is called.
    let found = run(&["--compare-route", "rows"]);
    assert_eq!(
        (&found["mean_kl"], &found["same_top"]),
        (&0.0.into(), &1.0.into())
    );
    assert_eq!(found["reference"]["run"]["route"], "rows");
    assert_eq!(found["model"], {
        let mut same = found["reference"].clone();
        same["run"] = found["model"]["run"].clone();
        same
    });
}

#[test]
fn what_cannot_be_compared_is_said() {
    let llama = model("llama").display().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("ids");
    std::fs::write(&text, "1 2 3").expect("written");
    let text = text.display().to_string();
    let other = folder.path().join("other.gguf");
    std::fs::write(&other, support::gguf_writer::Writer::llama().file()).expect("written");
    let other = other.display().to_string();
    let output = butter(&[
        "perplexity",
        "--model",
        &llama,
        "--ids",
        &text,
        "--compare",
        &other,
    ]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(
        line.contains("the model has 512 tokens, the one to compare it with 259"),
        "{line}"
    );
    let output = butter(&[
        "perplexity",
        "--model",
        &llama,
        "--ids",
        &text,
        "--predictions",
        "x",
    ]);
    assert_eq!(output.status.code(), Some(2));
}
