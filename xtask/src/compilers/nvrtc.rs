//! CUDA text to a cubin with NVRTC, in this process: no driver and no GPU.
//!
//! NVRTC is opened by absolute path. It opens `libnvrtc-builtins` by bare name later, so that one
//! is loaded first: the dynamic linker then finds it by its soname, without a search path.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use iron_lower::cuda::COMPILE_FLAGS;
use libloading::Library;

use super::{CompileFailure, Compiled, Compiler, number_before};
use crate::tools::{CudaFiles, Tool};
use crate::workspace::Workspace;

const TOOL: &str = "NVRTC";

/// Makes ptxas print registers and spills; the binary is the same without it.
const VERBOSE: &str = "--ptxas-options=-v";

type Program = *mut c_void;
type Status = c_int;

/// NVRTC, loaded.
pub struct Nvrtc {
    version: (c_int, c_int),
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    // Keeps the functions above valid; dropped last.
    _nvrtc: Library,
    _builtins: Library,
}

impl Nvrtc {
    /// Loads the library that set-up installed.
    pub fn find(workspace: &Workspace) -> Result<Self, CompileFailure> {
        let files = CudaFiles::find(workspace).ok_or_else(|| CompileFailure::MissingTool {
            tool: TOOL,
            remedy: format!(
                "run `cargo xtask setup`, which installs {} under target/tools",
                Tool::Cuda.name()
            ),
        })?;
        let builtins = open(&files.builtins)?;
        let nvrtc = open(&files.nvrtc)?;
        let version_function: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status =
            symbol(&nvrtc, c"nvrtcVersion")?;
        let mut version = (0, 0);
        // SAFETY: the function has this signature in nvrtc.h, and both pointers are valid for writes.
        let status = unsafe { version_function(&mut version.0, &mut version.1) };
        if status != 0 {
            return Err(broken(format!("nvrtcVersion returns {status}")));
        }
        Ok(Self {
            version,
            create: symbol(&nvrtc, c"nvrtcCreateProgram")?,
            destroy: symbol(&nvrtc, c"nvrtcDestroyProgram")?,
            compile: symbol(&nvrtc, c"nvrtcCompileProgram")?,
            log_size: symbol(&nvrtc, c"nvrtcGetProgramLogSize")?,
            log: symbol(&nvrtc, c"nvrtcGetProgramLog")?,
            cubin_size: symbol(&nvrtc, c"nvrtcGetCUBINSize")?,
            cubin: symbol(&nvrtc, c"nvrtcGetCUBIN")?,
            error_string: symbol(&nvrtc, c"nvrtcGetErrorString")?,
            _nvrtc: nvrtc,
            _builtins: builtins,
        })
    }

    /// Reads a size and then that many bytes of `program`: its log or its binary.
    fn read(
        &self,
        program: Program,
        size_of: unsafe extern "C" fn(Program, *mut usize) -> Status,
        copy: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, CompileFailure> {
        let mut size = 0;
        // SAFETY: `program` is alive and `size` is valid for writes.
        self.check(unsafe { size_of(program, &mut size) })?;
        let mut bytes = vec![0u8; size];
        if size > 0 {
            // SAFETY: `program` is alive, and `bytes` holds the size that NVRTC asked for.
            self.check(unsafe { copy(program, bytes.as_mut_ptr().cast()) })?;
        }
        Ok(bytes)
    }

    fn check(&self, status: Status) -> Result<(), CompileFailure> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC returns a static string for every status, known or not.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(broken(text.to_string_lossy()))
    }
}

/// A program that is destroyed whatever happens.
struct OwnedProgram<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Drop for OwnedProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was made by `create`, and nobody else destroys it.
        unsafe { (self.nvrtc.destroy)(&mut self.program) };
    }
}

impl Compiler for Nvrtc {
    fn identity(&self) -> String {
        format!(
            "NVRTC {}.{} {}",
            self.version.0,
            self.version.1,
            COMPILE_FLAGS.join(" ")
        )
    }

    fn compile(&self, source: &[u8], arch: &str) -> Result<Compiled, CompileFailure> {
        let compiler = format!("NVRTC {}.{}", self.version.0, self.version.1);
        let refused = |log: String| CompileFailure::Refused {
            compiler: compiler.clone(),
            arch: arch.to_owned(),
            log,
        };
        let text = CString::new(source).map_err(|_| refused("the text holds a NUL byte".into()))?;
        let arch_flag = CString::new(format!("--gpu-architecture={arch}"))
            .map_err(|_| refused("the architecture's name holds a NUL byte".into()))?;
        let flags: Vec<CString> = COMPILE_FLAGS
            .iter()
            .chain([&VERBOSE])
            .filter_map(|flag| CString::new(*flag).ok())
            .collect();
        let options: Vec<*const c_char> = std::iter::once(&arch_flag)
            .chain(&flags)
            .map(|option| option.as_ptr())
            .collect();

        let mut program: Program = std::ptr::null_mut();
        // SAFETY: the strings outlive the call, and no headers are passed.
        self.check(unsafe {
            (self.create)(
                &mut program,
                text.as_ptr(),
                c"kernel.cu".as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        })?;
        let owned = OwnedProgram {
            nvrtc: self,
            program,
        };
        // SAFETY: the program is alive, and `options` holds as many strings as the count says.
        let status =
            unsafe { (self.compile)(owned.program, options.len() as c_int, options.as_ptr()) };
        let log = self.read(owned.program, self.log_size, self.log)?;
        let log = String::from_utf8_lossy(&log)
            .trim_end_matches('\0')
            .to_owned();
        if status != 0 {
            return Err(refused(log));
        }
        let bytes = self.read(owned.program, self.cubin_size, self.cubin)?;
        let use_of = ResourceUse::parse(&log);
        Ok(Compiled {
            bytes,
            log: use_of.rest,
            registers: use_of.registers,
            spills: use_of.spills,
            shared_bytes: use_of.shared_bytes,
            checked_by: compiler,
        })
    }
}

/// What `ptxas -v` tells: the largest of each over the functions of a text.
struct ResourceUse {
    registers: Option<u32>,
    spills: Option<u32>,
    shared_bytes: Option<u32>,
    /// The lines that are not statistics: warnings.
    rest: String,
}

impl ResourceUse {
    fn parse(log: &str) -> Self {
        let mut parsed = Self {
            registers: None,
            spills: None,
            shared_bytes: None,
            rest: String::new(),
        };
        for line in log.lines() {
            if let Some(registers) = number_before(line, " registers") {
                parsed.registers = parsed.registers.max(Some(registers));
                parsed.shared_bytes = parsed
                    .shared_bytes
                    .max(Some(number_before(line, " bytes smem").unwrap_or(0)));
            }
            if let Some(stores) = number_before(line, " bytes spill stores") {
                parsed.spills = parsed.spills.max(Some(stores));
            }
            let statistics = line.starts_with("ptxas info")
                || line.starts_with("ptxas         .")
                || line.trim().is_empty();
            if !statistics {
                parsed.rest.push_str(line);
                parsed.rest.push('\n');
            }
        }
        parsed
    }
}

fn open(path: &Path) -> Result<Library, CompileFailure> {
    // SAFETY: NVIDIA's library runs no initialiser that has requirements of its caller.
    unsafe { Library::new(path) }
        .map_err(|error| broken(format!("cannot load {}: {error}", path.display())))
}

fn symbol<F: Copy>(library: &Library, name: &CStr) -> Result<F, CompileFailure> {
    // SAFETY: each caller names the signature that nvrtc.h gives for this name, and the function
    // pointer is kept beside the library.
    unsafe { library.get::<F>(name.to_bytes_with_nul()) }
        .map(|function| *function)
        .map_err(|error| broken(error.to_string()))
}

fn broken(reason: impl ToString) -> CompileFailure {
    CompileFailure::BrokenTool {
        tool: TOOL,
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_ptxas_are_read_and_warnings_kept() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Compiling entry function 'k' for 'sm_90a'\n\
                   ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 22 registers, used 1 barriers, 128 bytes smem, 376 bytes cmem[0]\n\
                   ptxas info    : Compile time = 11.366 ms\n\
                   kernel.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n";
        let parsed = ResourceUse::parse(log);
        assert_eq!(
            (parsed.registers, parsed.spills, parsed.shared_bytes),
            (Some(22), Some(8), Some(128))
        );
        assert!(
            parsed.rest.starts_with("kernel.cu(3): warning") && parsed.rest.lines().count() == 1
        );
    }
}
