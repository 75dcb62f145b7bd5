//! Exit codes, the same for every command.

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Success = 0,
    /// Something was checked and failed.
    Failure = 1,
    /// The command line asks for what does not exist.
    Usage = 2,
    /// A tool or backend that was required is missing.
    MissingTool = 3,
    /// The selection is empty.
    NothingSelected = 4,
}

impl Exit {
    /// The worse of two, over several runs: failures, then an empty selection, then a missing tool.
    pub fn worst(self, other: Self) -> Self {
        let rank = |exit: Self| match exit {
            Self::Usage => 4,
            Self::Failure => 3,
            Self::NothingSelected => 2,
            Self::MissingTool => 1,
            Self::Success => 0,
        };
        if rank(other) > rank(self) {
            other
        } else {
            self
        }
    }

    /// The meaning of another program's exit code that follows the same rules.
    pub fn from_code(code: Option<i32>) -> Self {
        match code {
            Some(0) => Self::Success,
            Some(2) => Self::Usage,
            Some(3) => Self::MissingTool,
            Some(4) => Self::NothingSelected,
            Some(_) | None => Self::Failure,
        }
    }
}
