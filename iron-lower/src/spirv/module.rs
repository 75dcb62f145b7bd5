//! Builds one SPIR-V module: ids, types and constants without duplicates, decorations, names,
//! and the blocks of one function. It knows the format and nothing of kernels.

use std::collections::{BTreeSet, HashMap};

use rspirv::binary::Assemble;
use rspirv::dr::{self, Instruction, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FPEncoding,
    FunctionControl, GlslStd450Op as Glsl, LoopControl, MemoryModel, Op, SelectionControl,
    SourceLanguage, StorageClass, Word,
};

/// A module under construction.
pub(super) struct ModuleBuilder {
    module: dr::Module,
    next_id: Word,
    types: HashMap<TypeKey, Word>,
    constants: HashMap<(Word, u64), Word>,
    composites: HashMap<(Word, Vec<Word>), Word>,
    capabilities: BTreeSet<u32>,
    extensions: BTreeSet<&'static str>,
    glsl: Option<Word>,
    /// Global variables, which the entry point lists.
    interface: Vec<Word>,
    /// Function variables, which stand at the head of the first block.
    variables: Vec<Instruction>,
    blocks: Vec<dr::Block>,
    current: Option<dr::Block>,
    version: (u8, u8),
}

/// Identity of a type that must not be declared twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum TypeKey {
    Void,
    Bool,
    Int(u32),
    Float(u32),
    Bfloat,
    Vector(Word, u32),
    Array(Word, u32),
    Pointer(StorageClass, Word),
    CooperativeMatrix(Word, Word),
}

impl ModuleBuilder {
    /// An empty module of a SPIR-V version.
    pub fn new(version: (u8, u8)) -> ModuleBuilder {
        ModuleBuilder {
            module: dr::Module::new(),
            next_id: 1,
            types: HashMap::new(),
            constants: HashMap::new(),
            composites: HashMap::new(),
            capabilities: BTreeSet::new(),
            extensions: BTreeSet::new(),
            glsl: None,
            interface: Vec::new(),
            variables: Vec::new(),
            blocks: Vec::new(),
            current: None,
            version,
        }
    }

    /// An unused id.
    pub fn id(&mut self) -> Word {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Declares a capability, once.
    pub fn capability(&mut self, capability: Capability) {
        self.capabilities.insert(capability as u32);
    }

    /// Declares an extension, once, where the version does not contain it.
    pub fn extension(&mut self, name: &'static str, core_since: (u8, u8)) {
        if self.version < core_since {
            self.extensions.insert(name);
        }
    }

    /// A note about how the module was made.
    pub fn processed(&mut self, note: &str) {
        let note = note.replace('\0', " ");
        let inst = instruction(
            Op::ModuleProcessed,
            None,
            None,
            vec![Operand::LiteralString(note)],
        );
        self.module.debug_module_processed.push(inst);
    }

    /// Declares a source file; the id serves [`line`](ModuleBuilder::line).
    pub fn source_file(&mut self, path: &str) -> Word {
        let id = self.id();
        let text = Operand::LiteralString(path.replace('\0', " "));
        self.module
            .debug_string_source
            .push(instruction(Op::String, None, Some(id), vec![text]));
        let operands = vec![
            Operand::SourceLanguage(SourceLanguage::Unknown),
            Operand::LiteralBit32(0),
            Operand::IdRef(id),
        ];
        self.module
            .debug_string_source
            .push(instruction(Op::Source, None, None, operands));
        id
    }

    /// Names an id for disassemblies and debuggers.
    pub fn name(&mut self, id: Word, name: &str) {
        let operands = vec![
            Operand::IdRef(id),
            Operand::LiteralString(name.replace('\0', " ")),
        ];
        self.module
            .debug_names
            .push(instruction(Op::Name, None, None, operands));
    }

    /// Decorates an id.
    pub fn decorate(&mut self, id: Word, decoration: Decoration, extra: &[Operand]) {
        let mut operands = vec![Operand::IdRef(id), Operand::Decoration(decoration)];
        operands.extend_from_slice(extra);
        self.module
            .annotations
            .push(instruction(Op::Decorate, None, None, operands));
    }

    fn declare(&mut self, key: TypeKey, op: Op, operands: Vec<Operand>) -> Word {
        if let Some(&id) = self.types.get(&key) {
            return id;
        }
        let id = self.id();
        self.module
            .types_global_values
            .push(instruction(op, None, Some(id), operands));
        self.types.insert(key, id);
        id
    }

    /// `void`.
    pub fn type_void(&mut self) -> Word {
        self.declare(TypeKey::Void, Op::TypeVoid, vec![])
    }

    /// `bool`.
    pub fn type_bool(&mut self) -> Word {
        self.declare(TypeKey::Bool, Op::TypeBool, vec![])
    }

    /// An integer; signedness is the operations' matter.
    pub fn type_int(&mut self, bits: u32) -> Word {
        match bits {
            8 => self.capability(Capability::Int8),
            16 => self.capability(Capability::Int16),
            64 => self.capability(Capability::Int64),
            _ => {}
        }
        let operands = vec![Operand::LiteralBit32(bits), Operand::LiteralBit32(0)];
        self.declare(TypeKey::Int(bits), Op::TypeInt, operands)
    }

    /// An IEEE float.
    pub fn type_float(&mut self, bits: u32) -> Word {
        match bits {
            16 => self.capability(Capability::Float16),
            64 => self.capability(Capability::Float64),
            _ => {}
        }
        self.declare(
            TypeKey::Float(bits),
            Op::TypeFloat,
            vec![Operand::LiteralBit32(bits)],
        )
    }

    /// The 16 bits with the exponents of an `f32` (`SPV_KHR_bfloat16`).
    pub fn type_bfloat(&mut self) -> Word {
        self.capability(Capability::BFloat16TypeKHR);
        self.extensions.insert("SPV_KHR_bfloat16");
        let operands = vec![
            Operand::LiteralBit32(16),
            Operand::FPEncoding(FPEncoding::BFloat16KHR),
        ];
        self.declare(TypeKey::Bfloat, Op::TypeFloat, operands)
    }

    /// A square cooperative matrix; scope, side and use are constants.
    pub fn type_cooperative_matrix(
        &mut self,
        component: Word,
        scope: Word,
        side: Word,
        part: Word,
    ) -> Word {
        let operands = vec![
            Operand::IdRef(component),
            Operand::IdScope(scope),
            Operand::IdRef(side),
            Operand::IdRef(side),
            Operand::IdRef(part),
        ];
        let key = TypeKey::CooperativeMatrix(component, part);
        self.declare(key, Op::TypeCooperativeMatrixKHR, operands)
    }

    /// A vector of 2, 3 or 4.
    pub fn type_vector(&mut self, scalar: Word, lanes: u32) -> Word {
        if lanes == 1 {
            return scalar;
        }
        let operands = vec![Operand::IdRef(scalar), Operand::LiteralBit32(lanes)];
        self.declare(TypeKey::Vector(scalar, lanes), Op::TypeVector, operands)
    }

    /// An array without explicit layout.
    pub fn type_array(&mut self, element: Word, len: u32) -> Word {
        let u32_type = self.type_int(32);
        let length = self.constant(u32_type, u64::from(len), 32);
        let operands = vec![Operand::IdRef(element), Operand::IdRef(length)];
        self.declare(TypeKey::Array(element, len), Op::TypeArray, operands)
    }

    /// A pointer.
    pub fn type_pointer(&mut self, class: StorageClass, pointee: Word) -> Word {
        let operands = vec![Operand::StorageClass(class), Operand::IdRef(pointee)];
        self.declare(TypeKey::Pointer(class, pointee), Op::TypePointer, operands)
    }

    /// A fresh block structure: members with offsets and names. Never shared, because every
    /// use decorates it.
    pub fn type_block(&mut self, name: &str, members: &[(Word, u32, String)]) -> Word {
        let id = self.id();
        let operands = members.iter().map(|m| Operand::IdRef(m.0)).collect();
        let inst = instruction(Op::TypeStruct, None, Some(id), operands);
        self.module.types_global_values.push(inst);
        self.name(id, name);
        self.decorate(id, Decoration::Block, &[]);
        for (index, (_, offset, member)) in members.iter().enumerate() {
            let index = Operand::LiteralBit32(index as u32);
            let name = Operand::LiteralString(member.clone());
            let operands = vec![Operand::IdRef(id), index.clone(), name];
            self.module
                .debug_names
                .push(instruction(Op::MemberName, None, None, operands));
            let offset = Operand::LiteralBit32(*offset);
            let operands = vec![
                Operand::IdRef(id),
                index,
                Operand::Decoration(Decoration::Offset),
                offset,
            ];
            self.module
                .annotations
                .push(instruction(Op::MemberDecorate, None, None, operands));
        }
        id
    }

    /// A fresh block structure around a run-time array of elements.
    pub fn type_runtime_block(&mut self, name: &str, element: Word, stride: u32) -> Word {
        let array = self.id();
        let operands = vec![Operand::IdRef(element)];
        let inst = instruction(Op::TypeRuntimeArray, None, Some(array), operands);
        self.module.types_global_values.push(inst);
        self.decorate(
            array,
            Decoration::ArrayStride,
            &[Operand::LiteralBit32(stride)],
        );
        self.type_block(name, &[(array, 0, "data".to_string())])
    }

    /// A scalar constant of `bits` bits.
    pub fn constant(&mut self, ty: Word, value: u64, bits: u32) -> Word {
        if let Some(&id) = self.constants.get(&(ty, value)) {
            return id;
        }
        let id = self.id();
        let literal = match bits {
            64 => Operand::LiteralBit64(value),
            _ => Operand::LiteralBit32(value as u32),
        };
        let inst = instruction(Op::Constant, Some(ty), Some(id), vec![literal]);
        self.module.types_global_values.push(inst);
        self.constants.insert((ty, value), id);
        id
    }

    /// A `u32` constant.
    pub fn constant_u32(&mut self, value: u32) -> Word {
        let ty = self.type_int(32);
        self.constant(ty, u64::from(value), 32)
    }

    /// A `bool` constant.
    pub fn constant_bool(&mut self, value: bool) -> Word {
        let ty = self.type_bool();
        if let Some(&id) = self.constants.get(&(ty, u64::from(value))) {
            return id;
        }
        let id = self.id();
        let op = if value {
            Op::ConstantTrue
        } else {
            Op::ConstantFalse
        };
        self.module
            .types_global_values
            .push(instruction(op, Some(ty), Some(id), vec![]));
        self.constants.insert((ty, u64::from(value)), id);
        id
    }

    /// A vector constant.
    pub fn constant_vector(&mut self, ty: Word, parts: Vec<Word>) -> Word {
        if let Some(&id) = self.composites.get(&(ty, parts.clone())) {
            return id;
        }
        let id = self.id();
        let operands = parts.iter().map(|&p| Operand::IdRef(p)).collect();
        let inst = instruction(Op::ConstantComposite, Some(ty), Some(id), operands);
        self.module.types_global_values.push(inst);
        self.composites.insert((ty, parts), id);
        id
    }

    /// A module-scope variable.
    pub fn global_variable(&mut self, pointee: Word, class: StorageClass) -> Word {
        let ty = self.type_pointer(class, pointee);
        let id = self.id();
        let operands = vec![Operand::StorageClass(class)];
        self.module.types_global_values.push(instruction(
            Op::Variable,
            Some(ty),
            Some(id),
            operands,
        ));
        let io = matches!(class, StorageClass::Input | StorageClass::Output);
        if io || self.version >= (1, 4) {
            self.interface.push(id);
        }
        id
    }

    /// An input variable that holds a builtin.
    pub fn builtin_variable(&mut self, pointee: Word, builtin: BuiltIn) -> Word {
        let id = self.global_variable(pointee, StorageClass::Input);
        self.decorate(id, Decoration::BuiltIn, &[Operand::BuiltIn(builtin)]);
        id
    }

    /// A variable of the function, at the head of its first block.
    pub fn function_variable(&mut self, pointee: Word) -> Word {
        let ty = self.type_pointer(StorageClass::Function, pointee);
        let id = self.id();
        let operands = vec![Operand::StorageClass(StorageClass::Function)];
        self.variables
            .push(instruction(Op::Variable, Some(ty), Some(id), operands));
        id
    }

    /// Starts a block.
    pub fn begin_block(&mut self, label: Word) {
        debug_assert!(self.current.is_none(), "a block begins after a terminator");
        self.current = Some(dr::Block {
            label: Some(instruction(Op::Label, None, Some(label), vec![])),
            instructions: Vec::new(),
        });
    }

    /// Whether no block is open: what follows cannot be reached.
    pub fn is_terminated(&self) -> bool {
        self.current.is_none()
    }

    fn push(&mut self, inst: Instruction) {
        if let Some(block) = &mut self.current {
            block.instructions.push(inst);
        }
    }

    /// Appends an instruction with a result.
    pub fn op(&mut self, op: Op, ty: Word, operands: &[Word]) -> Word {
        let operands = operands.iter().map(|&w| Operand::IdRef(w)).collect();
        self.op_with(op, ty, operands)
    }

    /// Appends an instruction with a result and any operands.
    pub fn op_with(&mut self, op: Op, ty: Word, operands: Vec<Operand>) -> Word {
        let id = self.id();
        self.push(instruction(op, Some(ty), Some(id), operands));
        id
    }

    /// Appends an instruction without a result.
    pub fn effect(&mut self, op: Op, operands: Vec<Operand>) {
        self.push(instruction(op, None, None, operands));
    }

    /// Appends a call of the extended instruction set `GLSL.std.450`.
    pub fn glsl(&mut self, op: Glsl, ty: Word, operands: &[Word]) -> Word {
        let set = match self.glsl {
            Some(set) => set,
            None => {
                let id = self.id();
                let name = vec![Operand::LiteralString("GLSL.std.450".into())];
                let inst = instruction(Op::ExtInstImport, None, Some(id), name);
                self.module.ext_inst_imports.push(inst);
                self.glsl = Some(id);
                id
            }
        };
        let mut all = vec![
            Operand::IdRef(set),
            Operand::LiteralExtInstInteger(op as u32),
        ];
        all.extend(operands.iter().map(|&w| Operand::IdRef(w)));
        self.op_with(Op::ExtInst, ty, all)
    }

    /// One component of a composite.
    pub fn extract(&mut self, ty: Word, composite: Word, index: u32) -> Word {
        let operands = vec![Operand::IdRef(composite), Operand::LiteralBit32(index)];
        self.op_with(Op::CompositeExtract, ty, operands)
    }

    /// Marks the source position of what follows.
    pub fn line(&mut self, file: Word, line: u32, column: u32) {
        let operands = vec![
            Operand::IdRef(file),
            Operand::LiteralBit32(line),
            Operand::LiteralBit32(column),
        ];
        self.effect(Op::Line, operands);
    }

    fn terminate(&mut self, op: Op, operands: Vec<Operand>) {
        if let Some(mut block) = self.current.take() {
            block
                .instructions
                .push(instruction(op, None, None, operands));
            self.blocks.push(block);
        }
    }

    /// Ends the block with a jump.
    pub fn branch(&mut self, to: Word) {
        self.terminate(Op::Branch, vec![Operand::IdRef(to)]);
    }

    /// Ends the block with a two-way jump.
    pub fn branch_if(&mut self, condition: Word, then_label: Word, else_label: Word) {
        let operands = [condition, then_label, else_label]
            .map(Operand::IdRef)
            .to_vec();
        self.terminate(Op::BranchConditional, operands);
    }

    /// Ends the block and the invocation.
    pub fn ret(&mut self) {
        self.terminate(Op::Return, vec![]);
    }

    /// Ends a block that nothing reaches.
    pub fn unreachable(&mut self) {
        self.terminate(Op::Unreachable, vec![]);
    }

    /// Declares where a selection's ways meet.
    pub fn selection_merge(&mut self, merge: Word) {
        let control = Operand::SelectionControl(SelectionControl::NONE);
        self.effect(Op::SelectionMerge, vec![Operand::IdRef(merge), control]);
    }

    /// Declares a loop's exit and its continue target.
    pub fn loop_merge(&mut self, merge: Word, next: Word, control: LoopControl) {
        let operands = vec![
            Operand::IdRef(merge),
            Operand::IdRef(next),
            Operand::LoopControl(control),
        ];
        self.effect(Op::LoopMerge, operands);
    }

    /// Declares an execution mode of the entry point.
    pub fn execution_mode(&mut self, entry: Word, mode: ExecutionMode, literals: &[u32]) {
        let mut operands = vec![Operand::IdRef(entry), Operand::ExecutionMode(mode)];
        operands.extend(literals.iter().map(|&l| Operand::LiteralBit32(l)));
        self.module
            .execution_modes
            .push(instruction(Op::ExecutionMode, None, None, operands));
    }

    /// Ends the module: wraps the blocks into the entry point and assembles.
    pub fn finish(
        mut self,
        entry: Word,
        name: &str,
        addressing: AddressingModel,
        memory: MemoryModel,
    ) -> Vec<u32> {
        let void = self.type_void();
        let function_type = self.id();
        let operands = vec![Operand::IdRef(void)];
        self.module.types_global_values.push(instruction(
            Op::TypeFunction,
            None,
            Some(function_type),
            operands,
        ));
        self.module.capabilities = self
            .capabilities
            .iter()
            .filter_map(|&c| Capability::from_u32(c))
            .map(|c| instruction(Op::Capability, None, None, vec![Operand::Capability(c)]))
            .collect();
        self.module.extensions = self
            .extensions
            .iter()
            .map(|&e| {
                let name = vec![Operand::LiteralString(e.to_string())];
                instruction(Op::Extension, None, None, name)
            })
            .collect();
        let model = vec![
            Operand::AddressingModel(addressing),
            Operand::MemoryModel(memory),
        ];
        self.module.memory_model = Some(instruction(Op::MemoryModel, None, None, model));
        let mut operands = vec![
            Operand::ExecutionModel(ExecutionModel::GLCompute),
            Operand::IdRef(entry),
            Operand::LiteralString(name.to_string()),
        ];
        operands.extend(self.interface.iter().map(|&v| Operand::IdRef(v)));
        self.module
            .entry_points
            .push(instruction(Op::EntryPoint, None, None, operands));
        if let Some(first) = self.blocks.first_mut() {
            first.instructions.splice(0..0, self.variables);
        }
        let control = Operand::FunctionControl(FunctionControl::NONE);
        self.module.functions.push(dr::Function {
            def: Some(instruction(
                Op::Function,
                Some(void),
                Some(entry),
                vec![control, Operand::IdRef(function_type)],
            )),
            end: Some(instruction(Op::FunctionEnd, None, None, vec![])),
            parameters: Vec::new(),
            blocks: self.blocks,
        });
        let mut header = dr::ModuleHeader::new(self.next_id);
        header.set_version(self.version.0, self.version.1);
        self.module.header = Some(header);
        self.module.assemble()
    }
}

fn instruction(op: Op, ty: Option<Word>, id: Option<Word>, operands: Vec<Operand>) -> Instruction {
    Instruction::new(op, ty, id, operands)
}
