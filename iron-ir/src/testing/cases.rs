//! Describing cases: inputs by generators, outputs by an oracle in `f64`.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::Arc;

use super::Subject;
use super::compare::{Bound, rounded_bits};
use super::formats::{poison_bits, round_to, value_of};
use super::generate::{Generator, draw, seed_of};
use crate::kernel::{Kernel, ParamKind};
use crate::lang::ScalarArgument;
use crate::op::Const;
use crate::types::Scalar;

/// The cases of one test and instance. Only the selected case computes its inputs and oracle.
pub struct Cases {
    subject: Subject,
    seed: u64,
    selected: Option<usize>,
    cases: Vec<Case>,
}

impl Cases {
    /// Lists the cases of a test without computing any.
    pub fn list(subject: &Subject, build: fn(&mut Cases)) -> Vec<Case> {
        Cases::run(subject, build, 0, None)
    }

    /// Computes one case; `None` where there are fewer.
    pub fn compute(
        subject: &Subject,
        build: fn(&mut Cases),
        seed: u64,
        index: usize,
    ) -> Option<Case> {
        Cases::run(subject, build, seed, Some(index))
            .into_iter()
            .nth(index)
    }

    fn run(
        subject: &Subject,
        build: fn(&mut Cases),
        seed: u64,
        selected: Option<usize>,
    ) -> Vec<Case> {
        let mut cases = Cases {
            subject: subject.clone(),
            seed: seed_of(seed, subject.instance.name),
            selected,
            cases: Vec::new(),
        };
        build(&mut cases);
        cases.cases
    }

    /// The scalar type bound to a type parameter of the kernel.
    ///
    /// # Panics
    /// Where the kernel has no such parameter.
    #[track_caller]
    pub fn scalar(&self, parameter: &str) -> Scalar {
        let types = self.subject.instance.types;
        match types.iter().find(|t| t.0 == parameter) {
            Some(found) => found.1,
            None => panic!("the kernel has no type parameter `{parameter}`, it has {types:?}"),
        }
    }

    /// The value of a const parameter of the kernel.
    ///
    /// # Panics
    /// Where the kernel has no such parameter.
    #[track_caller]
    pub fn constant(&self, parameter: &str) -> i64 {
        let consts = self.subject.instance.consts;
        match consts.iter().find(|c| c.0 == parameter) {
            Some(found) => found.1,
            None => panic!("the kernel has no const parameter `{parameter}`, it has {consts:?}"),
        }
    }

    /// Begins a case.
    pub fn case(&mut self, name: impl Into<String>) -> &mut Case {
        let name = name.into();
        let index = self.cases.len();
        self.cases.push(Case {
            seed: seed_of(self.seed, &name),
            name,
            selected: self.selected == Some(index),
            kernel: self.subject.kernel.clone(),
            production: false,
            sampled: true,
            host: Ok(()),
            params: Vec::new(),
            scalars: BTreeMap::new(),
            bound: Bound::default(),
            bounds: BTreeMap::new(),
            expected: BTreeMap::new(),
            problem: None,
        });
        &mut self.cases[index]
    }
}

/// What a test does with a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Read; must not change.
    Input,
    /// Written; poison before.
    Output,
    /// Read and written.
    InOut,
}

/// A tensor argument of a case.
pub struct CaseParam {
    /// The parameter's name.
    pub name: String,
    /// Use.
    pub role: Role,
    /// Extents.
    pub shape: Vec<u64>,
    /// The parameter's type.
    pub scalar: Scalar,
    /// Bits of each element before the launch, in row-major order. Empty unless computed.
    pub bits: Vec<u64>,
    generator: Option<Generator>,
}

/// A scalar argument of a case: `i32`, `u32`, `i64`, `u64`, `usize` or `f32`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalarValue(Const);

impl<S: ScalarArgument> From<S> for ScalarValue {
    fn from(value: S) -> ScalarValue {
        ScalarValue(value.to_const())
    }
}

/// One case.
pub struct Case {
    /// The author's name for it.
    pub name: String,
    /// Seed of its generators.
    pub seed: u64,
    /// Production size: whole on fast backends, sampled workgroups elsewhere.
    pub production: bool,
    /// Whether sampled workgroups make sense: each writes its own elements.
    pub sampled: bool,
    /// Why the `host` backend cannot run it.
    pub host: Result<(), String>,
    /// Tensor arguments.
    pub params: Vec<CaseParam>,
    /// Scalar arguments by name.
    pub scalars: BTreeMap<String, Const>,
    /// What the oracle expects of each output. Empty unless computed.
    pub expected: BTreeMap<String, Expectation>,
    /// A mistake in the test itself.
    pub problem: Option<String>,
    selected: bool,
    kernel: Arc<Kernel>,
    bound: Bound,
    bounds: BTreeMap<String, Bound>,
}

impl Case {
    /// Gives the case production size.
    pub fn production(&mut self) -> &mut Case {
        self.production = true;
        self
    }

    /// Workgroups depend on each other's results (an atomic sum over the grid): slow backends
    /// skip a production case instead of sampling it, and say so.
    pub fn not_sampled(&mut self) -> &mut Case {
        self.sampled = false;
        self
    }

    /// The `host` backend skips the case and says why: native operators differ from the
    /// specification there (an overflow, a division by zero).
    pub fn not_on_host(&mut self, reason: &str) -> &mut Case {
        self.host = Err(reason.to_owned());
        self
    }

    /// A tensor that is read.
    pub fn input<const R: usize>(
        &mut self,
        name: &str,
        shape: [u64; R],
        generator: impl Into<Generator>,
    ) -> &mut Case {
        self.add(name, Role::Input, &shape, Some(generator.into()))
    }

    /// A tensor that is written; it holds poison before.
    pub fn output<const R: usize>(&mut self, name: &str, shape: [u64; R]) -> &mut Case {
        self.add(name, Role::Output, &shape, None)
    }

    /// A tensor that is read and written.
    pub fn inout<const R: usize>(
        &mut self,
        name: &str,
        shape: [u64; R],
        generator: impl Into<Generator>,
    ) -> &mut Case {
        self.add(name, Role::InOut, &shape, Some(generator.into()))
    }

    fn add(
        &mut self,
        name: &str,
        role: Role,
        shape: &[u64],
        generator: Option<Generator>,
    ) -> &mut Case {
        let param = self.kernel.params.values().find(|p| &*p.name == name);
        match param.map(|p| &p.kind) {
            Some(ParamKind::Tensor(tensor)) => self.params.push(CaseParam {
                name: name.to_owned(),
                role,
                shape: shape.to_vec(),
                scalar: tensor.scalar,
                bits: Vec::new(),
                generator,
            }),
            Some(ParamKind::Scalar(_)) => self.fail(format!("`{name}` is a scalar, not a tensor")),
            None => self.fail(format!("the kernel has no parameter `{name}`")),
        }
        self
    }

    /// A scalar argument. An integer may have any integer type that holds it.
    pub fn scalar(&mut self, name: &str, value: impl Into<ScalarValue>) -> &mut Case {
        let ScalarValue(value) = value.into();
        let param = self.kernel.params.values().find(|p| &*p.name == name);
        match param.map(|p| &p.kind) {
            Some(ParamKind::Scalar(scalar)) => match cast_scalar(value, *scalar) {
                Some(value) => {
                    self.scalars.insert(name.to_owned(), value);
                }
                None => self.fail(format!(
                    "scalar `{name}` is {scalar}, the test gives {} {}",
                    value.scalar,
                    value_of(value.scalar, value.bits)
                )),
            },
            Some(ParamKind::Tensor(_)) => self.fail(format!("`{name}` is a tensor, not a scalar")),
            None => self.fail(format!("the kernel has no parameter `{name}`")),
        }
        self
    }

    /// How far every output may lie from the oracle. Without one, a float must be the nearest
    /// value of its type, and an integer exact.
    pub fn bound(&mut self, bound: Bound) -> &mut Case {
        self.bound = bound;
        self
    }

    /// How far one output may lie from the oracle.
    pub fn bound_of(&mut self, output: &str, bound: Bound) -> &mut Case {
        self.bounds.insert(output.to_owned(), bound);
        self
    }

    /// The bound of an output.
    pub fn bound_for(&self, output: &str) -> Bound {
        *self.bounds.get(output).unwrap_or(&self.bound)
    }

    /// Ends the case with its oracle, which computes every output from the values that the
    /// kernel sees.
    pub fn expect(&mut self, oracle: impl FnOnce(&Inputs, &mut Expected)) {
        if !self.selected {
            return;
        }
        self.check_arguments();
        if self.problem.is_some() {
            return;
        }
        self.generate(usize::MAX);
        let tensors = self.params.iter().filter(|p| p.role != Role::Output);
        let inputs = Inputs {
            tensors: tensors
                .map(|p| (p.name.clone(), InputValues::new(p.scalar, p.bits.clone())))
                .collect(),
        };
        let outputs = self.params.iter().filter(|p| p.role != Role::Input);
        let mut expected = Expected {
            outputs: outputs
                .map(|p| (p.name.clone(), (p.scalar, p.bits.len())))
                .collect(),
            set: BTreeMap::new(),
            untouched: Vec::new(),
            problem: None,
        };
        oracle(&inputs, &mut expected);
        for (name, indices) in std::mem::take(&mut expected.untouched) {
            match expected.set.get_mut(&name) {
                Some(expectation) => expectation.untouched = indices,
                None => expected.fail(format!("`{name}` has untouched elements but no values")),
            }
        }
        let unset = |name: &&String| !expected.set.contains_key(*name);
        if let Some(missing) = expected.outputs.keys().find(unset).cloned() {
            expected.fail(format!("the oracle sets nothing for output `{missing}`"));
        }
        if let Some(problem) = expected.problem {
            self.fail(problem);
        }
        self.expected = expected.set;
    }

    fn check_arguments(&mut self) {
        let kernel = self.kernel.clone();
        for param in kernel.params.values() {
            let given = match param.kind {
                ParamKind::Tensor(_) => {
                    self.params.iter().filter(|p| p.name == *param.name).count()
                }
                ParamKind::Scalar(_) => usize::from(self.scalars.contains_key(&*param.name)),
            };
            match given {
                0 => self.fail(format!(
                    "the test gives nothing for parameter `{}`",
                    param.name
                )),
                1 => {}
                _ => self.fail(format!(
                    "the test gives parameter `{}` {given} times",
                    param.name
                )),
            }
        }
    }

    /// Computes the bits; only the first `distinct` elements of a tensor are computed, the others
    /// repeat them.
    fn generate(&mut self, distinct: usize) {
        let mut problem = None;
        for param in &mut self.params {
            let seed = seed_of(self.seed, &param.name);
            let count = param.shape.iter().product::<u64>() as usize;
            let scalar = param.scalar;
            let mask = u64::MAX >> (64 - scalar.bits());
            let fill = |element: &dyn Fn(usize) -> u64| -> Vec<u64> {
                let mut bits: Vec<u64> = (0..count.min(distinct)).map(element).collect();
                while bits.len() < count {
                    bits.extend_from_within(0..distinct.min(count - bits.len()));
                }
                bits
            };
            param.bits = match &param.generator {
                None => vec![poison_bits(scalar); count],
                Some(Generator::Floats(f)) => fill(&|i| round_to(scalar, f.at(seed, i))),
                Some(Generator::Ints(f)) if scalar == Scalar::Bool || scalar.is_float() => {
                    fill(&|i| round_to(scalar, f.at(seed, i) as f64))
                }
                // Of a packed type, the bits.
                Some(Generator::Ints(f)) => fill(&|i| f.at(seed, i) as u64 & mask),
                Some(Generator::Random) => {
                    let mask = if scalar == Scalar::Bool { 1 } else { mask };
                    fill(&|i| draw(seed, i as u64) & mask)
                }
                Some(Generator::Values(values)) if values.len() == count => {
                    values.iter().map(|&x| round_to(scalar, x)).collect()
                }
                Some(Generator::Bits(bits)) if bits.len() == count => {
                    bits.iter().map(|b| b & mask).collect()
                }
                Some(Generator::Values(values)) => {
                    problem = Some((param.name.clone(), count, values.len()));
                    Vec::new()
                }
                Some(Generator::Bits(bits)) => {
                    problem = Some((param.name.clone(), count, bits.len()));
                    Vec::new()
                }
            };
        }
        if let Some((name, count, given)) = problem {
            self.fail(format!(
                "`{name}` has {count} elements, the test gives {given}"
            ));
        }
    }

    fn fail(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }
}

/// The constant as `scalar`, where it holds the value.
fn cast_scalar(value: Const, scalar: Scalar) -> Option<Const> {
    if value.scalar == scalar {
        return Some(value);
    }
    if !value.scalar.is_int() || !scalar.is_int() {
        return None;
    }
    let wide = match value.scalar {
        Scalar::I32 => i128::from(value.bits as u32 as i32),
        Scalar::I64 => i128::from(value.bits as i64),
        _ => i128::from(value.bits),
    };
    let (fits, bits) = match scalar {
        Scalar::I32 => (i32::try_from(wide).is_ok(), wide as u32 as u64),
        Scalar::U32 => (u32::try_from(wide).is_ok(), wide as u64),
        Scalar::I64 => (i64::try_from(wide).is_ok(), wide as u64),
        _ => (u64::try_from(wide).is_ok(), wide as u64),
    };
    fits.then_some(Const { scalar, bits })
}

struct InputValues {
    scalar: Scalar,
    bits: Vec<u64>,
    floats: OnceCell<Vec<f64>>,
    ints: OnceCell<Vec<i64>>,
}

impl InputValues {
    fn new(scalar: Scalar, bits: Vec<u64>) -> InputValues {
        InputValues {
            scalar,
            bits,
            floats: OnceCell::new(),
            ints: OnceCell::new(),
        }
    }
}

/// The values that the kernel sees, in row-major order: `inputs["x"]` is `[f64]`. Those of an
/// in-out tensor are the ones before the launch.
pub struct Inputs {
    tensors: BTreeMap<String, InputValues>,
}

impl Inputs {
    #[track_caller]
    fn get(&self, name: &str) -> &InputValues {
        match self.tensors.get(name) {
            Some(values) => values,
            None => panic!("the case has no input `{name}`"),
        }
    }

    /// The values of an integer tensor; a `u64` beyond `i64` wraps. A packed element gives its
    /// bits.
    #[track_caller]
    pub fn ints(&self, name: &str) -> &[i64] {
        let values = self.get(name);
        values.ints.get_or_init(|| {
            let int = |&bits: &u64| match values.scalar {
                Scalar::I8 => i64::from(bits as i8),
                Scalar::I16 => i64::from(bits as i16),
                Scalar::I32 => i64::from(bits as i32),
                scalar if scalar.is_float() => value_of(scalar, bits) as i64,
                _ => bits as i64,
            };
            values.bits.iter().map(int).collect()
        })
    }

    /// The bits of each element.
    #[track_caller]
    pub fn bits(&self, name: &str) -> &[u64] {
        &self.get(name).bits
    }
}

impl Index<&str> for Inputs {
    type Output = [f64];
    #[track_caller]
    fn index(&self, name: &str) -> &[f64] {
        let values = self.get(name);
        values.floats.get_or_init(|| {
            let scalar = values.scalar;
            values.bits.iter().map(|&b| value_of(scalar, b)).collect()
        })
    }
}

/// What an oracle expects of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    values: ExpectedValues,
    untouched: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq)]
enum ExpectedValues {
    Floats(Vec<f64>),
    Ints(Vec<i64>),
    Bits(Vec<u64>),
}

impl Expectation {
    /// Reals, which the comparison rounds.
    pub fn floats(values: Vec<f64>) -> Expectation {
        Expectation::of(ExpectedValues::Floats(values))
    }

    fn of(values: ExpectedValues) -> Expectation {
        Expectation {
            values,
            untouched: Vec::new(),
        }
    }

    /// Number of elements.
    fn len(&self) -> usize {
        match &self.values {
            ExpectedValues::Floats(v) => v.len(),
            ExpectedValues::Ints(v) => v.len(),
            ExpectedValues::Bits(v) => v.len(),
        }
    }

    /// The value of an element.
    pub fn value(&self, scalar: Scalar, index: usize) -> f64 {
        match &self.values {
            ExpectedValues::Floats(v) => v[index],
            ExpectedValues::Ints(v) => v[index] as f64,
            ExpectedValues::Bits(v) => value_of(scalar, v[index]),
        }
    }

    /// The bits of an element, rounded to the output's type.
    pub fn bits(&self, scalar: Scalar, index: usize) -> u64 {
        match &self.values {
            ExpectedValues::Floats(v) => rounded_bits(scalar, v[index]),
            ExpectedValues::Ints(v) if scalar.is_float() => rounded_bits(scalar, v[index] as f64),
            ExpectedValues::Ints(v) => v[index] as u64 & (u64::MAX >> (64 - scalar.bits())),
            ExpectedValues::Bits(v) => v[index],
        }
    }

    /// Whether the element must keep what it held.
    pub fn is_untouched(&self, index: usize) -> bool {
        self.untouched.binary_search(&index).is_ok()
    }
}

/// What the oracle expects of the outputs.
pub struct Expected {
    outputs: BTreeMap<String, (Scalar, usize)>,
    set: BTreeMap<String, Expectation>,
    untouched: Vec<(String, Vec<usize>)>,
    problem: Option<String>,
}

impl Expected {
    /// The values of an output in row-major order, not rounded.
    pub fn set(&mut self, output: &str, values: Vec<f64>) {
        self.put(output, Expectation::floats(values));
    }

    /// The values of an integer output.
    pub fn set_ints(&mut self, output: &str, values: Vec<i64>) {
        self.put(output, Expectation::of(ExpectedValues::Ints(values)));
    }

    /// The bits of an output.
    pub fn set_bits(&mut self, output: &str, bits: Vec<u64>) {
        self.put(output, Expectation::of(ExpectedValues::Bits(bits)));
    }

    /// Elements that must hold what they held before the launch, whatever was set.
    pub fn untouched(&mut self, output: &str, mut indices: Vec<usize>) {
        indices.sort_unstable();
        self.untouched.push((output.to_owned(), indices));
    }

    /// The values as the output's type holds them, for an oracle that continues from a
    /// rounding point of the contract.
    #[track_caller]
    pub fn rounded(&self, output: &str, values: &[f64]) -> Vec<f64> {
        let Some(&(scalar, _)) = self.outputs.get(output) else {
            panic!("the case has no output `{output}`");
        };
        let round = |&x: &f64| value_of(scalar, round_to(scalar, x));
        values.iter().map(round).collect()
    }

    /// Keeps the first problem: later ones follow from it.
    fn fail(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    fn put(&mut self, output: &str, expectation: Expectation) {
        match self.outputs.get(output) {
            None => self.fail(format!("the oracle sets `{output}`, which is no output")),
            Some(&(_, count)) if count != expectation.len() => self.fail(format!(
                "the oracle gives {} elements of `{output}`, which has {count}",
                expectation.len()
            )),
            Some(_) => {
                self.set.insert(output.to_owned(), expectation);
            }
        }
    }
}

/// The benches of one function and instance.
pub struct Benches {
    cases: Cases,
    costs: Vec<(u64, u64)>,
}

/// Distinct elements of a tensor of a bench; the rest repeats them, so that a gigabyte is quickly
/// made.
const DISTINCT: usize = 1 << 20;

/// A bench: arguments as in [`Case`], and what one launch costs.
pub struct Bench<'a> {
    case: &'a mut Case,
    cost: &'a mut (u64, u64),
}

impl Benches {
    /// Describes the benches; `selected` computes its inputs.
    pub fn compute(
        subject: &Subject,
        build: fn(&mut Benches),
        seed: u64,
        selected: Option<usize>,
    ) -> Vec<(Case, u64, u64)> {
        // The same values for every instance with these element types: they can be compared.
        let types: Vec<&str> = subject.instance.types.iter().map(|t| t.1.name()).collect();
        let mut benches = Benches {
            cases: Cases {
                subject: subject.clone(),
                seed: seed_of(seed, &types.join("-")),
                selected,
                cases: Vec::new(),
            },
            costs: Vec::new(),
        };
        build(&mut benches);
        let mut all: Vec<_> = benches
            .cases
            .cases
            .into_iter()
            .zip(benches.costs)
            .map(|(case, (bytes, flops))| (case, bytes, flops))
            .collect();
        if let Some((case, ..)) = selected.and_then(|i| all.get_mut(i)) {
            case.check_arguments();
            if case.problem.is_none() {
                case.generate(DISTINCT);
            }
        }
        all
    }

    /// The scalar type bound to a type parameter of the kernel.
    #[track_caller]
    pub fn scalar(&self, parameter: &str) -> Scalar {
        self.cases.scalar(parameter)
    }

    /// The value of a const parameter of the kernel.
    #[track_caller]
    pub fn constant(&self, parameter: &str) -> i64 {
        self.cases.constant(parameter)
    }

    /// Begins a bench.
    pub fn bench(&mut self, name: impl Into<String>) -> Bench<'_> {
        self.costs.push((0, 0));
        let index = self.costs.len() - 1;
        Bench {
            case: self.cases.case(name),
            cost: &mut self.costs[index],
        }
    }
}

impl Bench<'_> {
    /// As [`Case::input`].
    pub fn input<const R: usize>(
        self,
        name: &str,
        shape: [u64; R],
        generator: impl Into<Generator>,
    ) -> Self {
        self.case.input(name, shape, generator);
        self
    }
    /// As [`Case::output`].
    pub fn output<const R: usize>(self, name: &str, shape: [u64; R]) -> Self {
        self.case.output(name, shape);
        self
    }
    /// As [`Case::inout`].
    pub fn inout<const R: usize>(
        self,
        name: &str,
        shape: [u64; R],
        generator: impl Into<Generator>,
    ) -> Self {
        self.case.inout(name, shape, generator);
        self
    }
    /// As [`Case::scalar`].
    pub fn scalar(self, name: &str, value: impl Into<ScalarValue>) -> Self {
        self.case.scalar(name, value);
        self
    }
    /// Bytes that one launch must move at least.
    pub fn bytes(self, bytes: u64) -> Self {
        self.cost.0 = bytes;
        self
    }
    /// Floating-point operations of one launch.
    pub fn flops(self, flops: u64) -> Self {
        self.cost.1 = flops;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_problem_of_an_oracle_is_the_one_told() {
        let mut expected = Expected {
            outputs: BTreeMap::from([("y".to_owned(), (Scalar::F32, 3))]),
            set: BTreeMap::new(),
            untouched: Vec::new(),
            problem: None,
        };
        expected.set("y", vec![1.0]);
        expected.set("z", vec![1.0]);
        assert_eq!(
            expected.problem.as_deref(),
            Some("the oracle gives 1 elements of `y`, which has 3")
        );
    }
}
