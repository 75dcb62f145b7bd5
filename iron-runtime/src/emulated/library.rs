//! A loaded unit, and a text's program in it.

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::executor::{Entry, State};

/// A shared object made of one or more texts. It has one state and one copy of each text's shared
/// memory, so launches of its texts take turns.
pub(super) struct Library {
    state: *mut State,
    turn: Mutex<()>,
    loaded: libloading::Library,
}

// SAFETY: the state is written only by whoever has the turn.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Where a text's shared memory lies.
#[derive(Clone, Copy)]
pub(super) struct SharedRange {
    pub start: *mut u8,
    pub bytes: usize,
}

/// A text of a library.
#[derive(Clone)]
pub(super) struct Program {
    pub library: Arc<Library>,
    pub entry: Entry,
    pub shared: SharedRange,
}

// SAFETY: the range belongs to the library and is used only by whoever has the turn.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Library {
    /// Loads a unit that `compiler.rs` made.
    pub fn load(path: &Path) -> Result<Library, String> {
        // SAFETY: the file is a unit of this module's own making, which has no initialisers.
        let loaded = unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())?;
        // SAFETY: every unit exports this function with this type.
        let state = unsafe {
            let state = loaded
                .get::<unsafe extern "C" fn() -> *mut c_void>(b"iron_state\0")
                .map_err(|e| e.to_string())?;
            state().cast::<State>()
        };
        Ok(Library {
            state,
            turn: Mutex::new(()),
            loaded,
        })
    }

    /// Keeps others from running texts of the library.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// The state that the texts read. Whoever writes it has the turn.
    pub fn state(&self) -> *mut State {
        self.state
    }

    /// The text of that index in the unit.
    pub fn program(self: &Arc<Library>, index: usize, has_shared: bool) -> Result<Program, String> {
        let mut shared = SharedRange {
            start: std::ptr::NonNull::dangling().as_ptr(),
            bytes: 0,
        };
        // SAFETY: the unit exports these functions with these types for each of its texts, the
        // second where the text has shared memory.
        let entry = unsafe {
            let name = format!("iron_entry_{index}\0");
            let entry = self.loaded.get::<Entry>(name.as_bytes());
            if has_shared {
                let name = format!("iron_shared_{index}\0");
                let range = self
                    .loaded
                    .get::<unsafe extern "C" fn(*mut *mut u8, *mut u64)>(name.as_bytes())
                    .map_err(|e| e.to_string())?;
                let mut bytes = 0u64;
                range(&mut shared.start, &mut bytes);
                shared.bytes = usize::try_from(bytes).map_err(|e| e.to_string())?;
            }
            *entry.map_err(|e| e.to_string())?
        };
        Ok(Program {
            library: self.clone(),
            entry,
            shared,
        })
    }
}
