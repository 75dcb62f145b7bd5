//! The vendors' run-time compilers, NVRTC and hipRTC, by both names.

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::Vendor;
use super::driver::{Handle, Status, open_first, symbol};
use crate::device::DeviceError;

/// A run-time compiler.
pub(crate) struct Compiler {
    vendor: Vendor,
    version: (i32, i32),
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        i32,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(Handle, i32, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Handle) -> Status,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    code_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    code: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    error_text: unsafe extern "C" fn(Status) -> *const c_char,
    // Keep the functions valid; dropped last.
    _library: Library,
    _companion: Option<Library>,
}

impl Compiler {
    /// Loads the first of the libraries that is there. `companion` names a library beside it
    /// that it opens by bare name later, and that must be loaded for it to be found.
    pub fn open(
        vendor: Vendor,
        candidates: &[PathBuf],
        companion: impl Fn(&Path) -> Option<PathBuf>,
    ) -> Result<Compiler, DeviceError> {
        let missing = |reason: String| DeviceError::Missing {
            backend: vendor.name(),
            reason,
            looked_for: describe(candidates),
        };
        for candidate in candidates {
            let beside = companion(candidate).and_then(|p| open_first(&[p]).ok());
            let Ok(library) = open_first(std::slice::from_ref(candidate)) else {
                continue;
            };
            return Compiler::load(vendor, library, beside).map_err(missing);
        }
        Err(missing("no run-time compiler".into()))
    }

    fn load(
        vendor: Vendor,
        library: Library,
        companion: Option<Library>,
    ) -> Result<Compiler, String> {
        let prefix = match vendor {
            Vendor::Cuda => "nvrtc",
            Vendor::Hip => "hiprtc",
        };
        let (code_size, code) = match vendor {
            Vendor::Cuda => ("GetCUBINSize", "GetCUBIN"),
            Vendor::Hip => ("GetCodeSize", "GetCode"),
        };
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let version_of: unsafe extern "C" fn(*mut i32, *mut i32) -> Status =
            symbol(&library, &name("Version"))?;
        let mut version = (0, 0);
        // SAFETY: both pointers are valid for writes.
        let status = unsafe { version_of(&mut version.0, &mut version.1) };
        if status != 0 {
            return Err(format!("{} returns {status}", name("Version")));
        }
        Ok(Compiler {
            vendor,
            version,
            create: symbol(&library, &name("CreateProgram"))?,
            compile: symbol(&library, &name("CompileProgram"))?,
            destroy: symbol(&library, &name("DestroyProgram"))?,
            log_size: symbol(&library, &name("GetProgramLogSize"))?,
            log: symbol(&library, &name("GetProgramLog"))?,
            code_size: symbol(&library, &name(code_size))?,
            code: symbol(&library, &name(code))?,
            error_text: symbol(&library, &name("GetErrorString"))?,
            _library: library,
            _companion: companion,
        })
    }

    /// Name and version, part of every artifact's identity.
    pub fn version(&self) -> String {
        let name = match self.vendor {
            Vendor::Cuda => "NVRTC",
            Vendor::Hip => "hipRTC",
        };
        format!("{name} {}.{}", self.version.0, self.version.1)
    }

    /// Compiles a text to a binary.
    pub fn compile(
        &self,
        kernel: &str,
        text: &str,
        flags: &[String],
    ) -> Result<Vec<u8>, DeviceError> {
        let refuse = |message: String| DeviceError::Compile {
            kernel: kernel.to_owned(),
            backend: self.vendor.name(),
            message,
        };
        let no_nul = |_| refuse("the text or a flag has a NUL".into());
        let source = CString::new(text).map_err(no_nul)?;
        let file = CString::new(format!("{kernel}.cu")).map_err(no_nul)?;
        let flags = flags
            .iter()
            .map(|f| CString::new(f.as_str()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(no_nul)?;
        let flag_pointers: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();
        let mut program = Program {
            compiler: self,
            handle: std::ptr::null_mut(),
        };
        // SAFETY: strings end with NUL and outlive the call; there are no headers.
        let status = unsafe {
            (self.create)(
                &mut program.handle,
                source.as_ptr(),
                file.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        if status != 0 {
            return Err(refuse(self.text(status)));
        }
        // SAFETY: the program is alive, and the flags are as many strings as the count says.
        let status = unsafe {
            (self.compile)(
                program.handle,
                flag_pointers.len() as i32,
                flag_pointers.as_ptr(),
            )
        };
        if status != 0 {
            let log = program.read(self.log_size, self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log)
                .trim_end_matches('\0')
                .trim()
                .to_owned();
            let first = log
                .lines()
                .find(|l| l.contains("error"))
                .or_else(|| log.lines().next());
            tracing::debug!(kernel, %log, "the vendor's compiler refuses a text");
            return Err(refuse(format!(
                "{}: {}",
                self.version(),
                first.map_or_else(|| self.text(status), str::to_owned)
            )));
        }
        program
            .read(self.code_size, self.code)
            .map_err(|status| refuse(self.text(status)))
    }

    fn text(&self, status: Status) -> String {
        // SAFETY: the library returns a static string for every status.
        let text = unsafe { (self.error_text)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

// SAFETY: both libraries document their functions as callable from any thread, on programs of
// that thread.
unsafe impl Send for Compiler {}
// SAFETY: as above; the table itself never changes.
unsafe impl Sync for Compiler {}

/// A program that is dropped whatever happens.
struct Program<'a> {
    compiler: &'a Compiler,
    handle: Handle,
}

impl Program<'_> {
    /// Asks for a size, then for that many bytes.
    fn read(
        &self,
        size_of: unsafe extern "C" fn(Handle, *mut usize) -> Status,
        copy: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, Status> {
        let mut size = 0usize;
        // SAFETY: the program is alive and the size valid for writes.
        let status = unsafe { size_of(self.handle, &mut size) };
        if status != 0 {
            return Err(status);
        }
        let mut bytes = vec![0u8; size];
        // SAFETY: the program is alive and the bytes are as many as it asked for.
        let status = unsafe { copy(self.handle, bytes.as_mut_ptr().cast()) };
        if status == 0 { Ok(bytes) } else { Err(status) }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: made by `create`, destroyed once.
            unsafe { (self.compiler.destroy)(&mut self.handle) };
        }
    }
}

/// The candidates in few words: names once, then the folders.
fn describe(candidates: &[PathBuf]) -> String {
    let mut seen: Vec<String> = Vec::new();
    for path in candidates {
        let text = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.display().to_string(),
            _ => path.display().to_string(),
        };
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen.join(", ")
}
