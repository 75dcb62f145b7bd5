//! The backend where Metal does not exist.

use std::sync::Arc;

use crate::device::{Backend, Device, DeviceError};

/// Refuses: Metal is part of macOS.
pub fn open() -> Result<Arc<dyn Device>, DeviceError> {
    Err(DeviceError::Missing {
        backend: Backend::Metal.name(),
        reason: "Metal exists on macOS only".into(),
        looked_for: "Metal.framework".into(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn absence_is_said_in_one_line() {
        let error = super::open().err().expect("no Metal here").to_string();
        assert!(
            error.contains("metal") && error.contains("macOS"),
            "{error}"
        );
    }
}
