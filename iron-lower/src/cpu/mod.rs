//! Machine code of this process, through Cranelift.
//!
//! One function a kernel runs one workgroup. The body is cut at its synchronisation points; the
//! statements between two of them are a *run*, a loop over the threads that takes **four side
//! by side** in vector registers. What the whole workgroup shares is computed once, outside the
//! loops. What lives across a cut lies in scratch memory, thread by thread. A barrier then costs
//! nothing by itself, and a collective is a loop over what the threads left.
//!
//! Cutting was chosen over a fiber for each thread: a switch costs about 30 ns, so a workgroup of
//! 256 threads with two barriers would spend 15 µs on switching alone, and a thread on its own
//! stack cannot share vector registers with its neighbours.
//!
//! Within a run a value has one of four forms (`Rep`): the same in all four threads, an integer
//! that grows by a constant from thread to thread, four scalars in one register, or four values
//! of their own (which is how the author's own vectors are held). Indices of the second form
//! make loads and stores of one register. Where the threads part, at a branch or at the last
//! turn of a loop, each goes on alone and they meet behind the statement.

mod convert;
mod emit;
mod groups;
mod layout;
mod memory;
mod ops;
mod plan;
mod schedule;
mod support;
mod threads;
mod uniformity;
mod value;

use std::collections::{HashMap, HashSet};

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{AbiParam, InstBuilder};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module};
use iron_ir::entity::Value;
use iron_ir::kernel::Kernel;
use iron_ir::layout::{BlockLayout, FieldKind};
use iron_ir::{Handle, Stmt};

use crate::LowerError;
use emit::{CpuError, Emitter, Mode};
use layout::Scratch;
use plan::Plan;

pub use support::SUBGROUP_SIZE;

/// Runs one workgroup: the parameter block, the workgroup's place, the grid (three `u32`), and
/// scratch memory of the size that [`Compiled::scratch_bytes`] tells, aligned to 64.
pub type Entry = unsafe extern "C" fn(*const u8, u32, u32, u32, *const u32, *mut u8);

/// A kernel as machine code.
pub struct Compiled {
    entry: Entry,
    scratch_bytes: usize,
    code_bytes: usize,
    module: Option<JITModule>,
}

impl Compiled {
    /// The function.
    pub fn entry(&self) -> Entry {
        self.entry
    }

    /// Bytes of scratch memory that one workgroup needs.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.code_bytes
    }
}

// SAFETY: the code is finished and never changes; the module is kept only to be freed.
unsafe impl Send for Compiled {}
// SAFETY: as above; nothing is reachable through `&Compiled` but the function's address.
unsafe impl Sync for Compiled {}

impl Drop for Compiled {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            // SAFETY: whoever runs the function holds this value, so that nobody does any more.
            unsafe { module.free_memory() };
        }
    }
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled")
            .field("scratch_bytes", &self.scratch_bytes)
            .field("code_bytes", &self.code_bytes)
            .finish_non_exhaustive()
    }
}

/// Compiles a kernel after the passes.
pub fn compile(kernel: &Kernel) -> Result<Compiled, LowerError> {
    Ok(generate(kernel, false)?.0)
}

/// The code of a kernel after the passes, to be read: Cranelift's IR, then the instructions.
pub fn listing(kernel: &Kernel) -> Result<String, LowerError> {
    Ok(generate(kernel, true)?.1)
}

fn generate(kernel: &Kernel, with_listing: bool) -> Result<(Compiled, String), LowerError> {
    let failed = |message: String| LowerError::Codegen {
        kernel: kernel.full_name(),
        profile: "cpu".into(),
        message,
    };
    if plan::has_grid_barrier(kernel) {
        return Err(failed(
            "a grid barrier: workgroups run one after another here".into(),
        ));
    }
    let plan = Plan::new(kernel);
    let layout = Scratch::new(kernel, &plan)
        .ok_or_else(|| failed("shared and private memory of a workgroup pass 2 GiB".into()))?;
    let optimiser = processor("speed").map_err(failed)?;
    // What is optimised and put in order is not optimised again.
    let isa = processor("none").map_err(failed)?;
    let mut builder = JITBuilder::with_isa(isa, cranelift_module::default_libcall_names());
    for (name, address) in support::symbols() {
        builder.symbol(name, address);
    }
    let mut module = JITModule::new(builder);
    let mut context = module.make_context();
    for ty in [I64, I32, I32, I32, I64, I64] {
        context.func.signature.params.push(AbiParam::new(ty));
    }
    let mut function_context = FunctionBuilderContext::new();
    emit_function(
        kernel,
        &plan,
        &layout,
        &mut module,
        &mut context.func,
        &mut function_context,
    )
    .map_err(|CpuError { message, span }| LowerError::NotLegalised {
        kernel: kernel.full_name(),
        profile: "cpu".into(),
        what: message,
        line: span.line,
    })?;
    context
        .optimize(&*optimiser, &mut ControlPlane::default())
        .map_err(|e| failed(e.to_string()))?;
    schedule::schedule(&mut context.func);
    context.compute_cfg();
    context.compute_domtree();
    context.set_disasm(with_listing);
    let id = module
        .declare_function(
            &kernel.entry_point(),
            Linkage::Export,
            &context.func.signature,
        )
        .map_err(|e| failed(e.to_string()))?;
    module
        .define_function(id, &mut context)
        .map_err(|e| failed(format!("{e:?}")))?;
    let compiled = context.compiled_code();
    let code_bytes = compiled.map_or(0, |c| c.code_info().total_size as usize);
    let instructions = compiled
        .and_then(|c| c.vcode.as_deref())
        .unwrap_or_default();
    let listing = if with_listing {
        format!("{}\n{instructions}", context.func.display())
    } else {
        String::new()
    };
    module
        .finalize_definitions()
        .map_err(|e| failed(e.to_string()))?;
    let address = module.get_finalized_function(id);
    // SAFETY: the function was declared with this signature, in the C calling convention that
    // the module's default is on this platform.
    let entry = unsafe { std::mem::transmute::<*const u8, Entry>(address) };
    let scratch_bytes = layout.bytes as usize;
    Ok((
        Compiled {
            entry,
            scratch_bytes,
            code_bytes,
            module: Some(module),
        },
        listing,
    ))
}

/// This machine's processor, as a target of Cranelift.
fn processor(opt_level: &str) -> Result<OwnedTargetIsa, String> {
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", opt_level),
        ("is_pic", "false"),
        ("use_colocated_libcalls", "false"),
        (
            "enable_verifier",
            if cfg!(debug_assertions) {
                "true"
            } else {
                "false"
            },
        ),
    ] {
        flags.set(name, value).map_err(|e| e.to_string())?;
    }
    cranelift_native::builder()?
        .finish(settings::Flags::new(flags))
        .map_err(|e| e.to_string())
}

/// Loop indices and checked indices.
fn counters(kernel: &Kernel) -> HashSet<Value> {
    let mut found = HashSet::new();
    kernel.body.walk(&mut |stmt, _| match stmt {
        Stmt::For { index, .. } => {
            found.insert(*index);
        }
        Stmt::CheckIndex { result, .. } => {
            found.insert(*result);
        }
        _ => {}
    });
    found
}

fn emit_function<'k>(
    kernel: &'k Kernel,
    plan: &Plan<'k>,
    layout: &Scratch,
    module: &mut JITModule,
    function: &mut cranelift_codegen::ir::Function,
    context: &mut FunctionBuilderContext,
) -> Result<(), CpuError> {
    let mut b = FunctionBuilder::new(function, context);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let arguments = b.block_params(entry).to_vec();
    let (block, scratch) = (arguments[0], arguments[5]);
    let flags = Emitter::flags();
    let fields = BlockLayout::of(kernel);
    let mut scalars = vec![None; kernel.params.len()];
    let mut bases = vec![None; kernel.params.len()];
    let mut strides = HashMap::new();
    let mut dims = Vec::new();
    let mut error_word = None;
    let mut dim_values = vec![None; kernel.dims.len()];
    for field in &fields.fields {
        let offset = field.offset as i32;
        let ty = ops::machine_type(field.scalar, false);
        let value = b.ins().load(ty, flags, block, offset);
        match field.kind {
            FieldKind::Address(param) => bases[param.index()] = Some(value),
            FieldKind::ErrorWord => error_word = Some(value),
            FieldKind::Stride(param, axis) => {
                strides.insert((param, axis), value);
            }
            FieldKind::Dim(dim) => dim_values[dim.index()] = Some(value),
            FieldKind::Scalar(param) => scalars[param.index()] = Some(value),
            FieldKind::Aligned | FieldKind::TensorMap(..) => {}
        }
    }
    for value in dim_values {
        dims.push(match value {
            Some(value) => value,
            None => b.ins().iconst(I32, 0),
        });
    }
    let group_count = [0, 4, 8].map(|offset| b.ins().load(I32, flags, arguments[4], offset));
    let thread = b.ins().iconst(I32, 0);
    let end = b.create_block();
    let mut emitter = Emitter {
        kernel,
        plan,
        b,
        module,
        functions: HashMap::new(),
        layout,
        scratch,
        scalars,
        bases,
        strides,
        dims,
        error_word,
        group_id: [arguments[1], arguments[2], arguments[3]],
        group_count,
        mode: Mode::Group,
        thread,
        counters: counters(kernel),
        env: vec![None; kernel.values.len()],
        columns: HashMap::new(),
        journal: Vec::new(),
        locals: HashMap::new(),
        loops: Vec::new(),
        return_to: end,
    };
    if emitter.nodes(&plan.nodes)? {
        emitter.b.ins().jump(end, &[]);
    }
    emitter.b.switch_to_block(end);
    emitter.b.ins().return_(&[]);
    emitter.b.seal_all_blocks();
    let config = emitter.module.target_config();
    emitter.b.finalize(config);
    Ok(())
}
