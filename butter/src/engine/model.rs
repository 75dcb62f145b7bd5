//! A model on a device: [`DeviceModel`] implements [`Model`].

mod poison;

pub use poison::StateUsage;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use iron_ir::Scalar;
use iron_runtime::{Backend, Device, Graph as Recording, RecordedLaunch, Tensor};

use super::draws::{DrawInputs, class_of};
use super::exchange::Exchange;
use super::matrix::failed;
use super::pages::{Forgetting, PageTable};
use super::plan::{Activation, PlacedStep, Planner, ProductInputs};
use super::route::{PROMPT_ROWS, Route, has_ahead, has_large_tiles, has_tiles};
use super::rows::{TILES, draws_of, gathered, most_tiles, reach_of, splits_of};
use super::state::{BLOCK_SIZE, BlockTables, CacheShape, CacheType};
use super::step::{Graph, Segments, StepContext, StepKey, StepTiles, UnpackedPages};
use super::tuned::Tuned;
use super::unpacked::row_numbers;
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::model::{
    HeadRow, HiddenFrom, Model, ModelCapacity, ModelError, RowOutput, RowResult, SequenceId,
    StepRow, draw_on_host,
};
use crate::sampler::Draw;
use crate::weights::ModelWeights;

/// Rows of a step whose inputs go up in a small buffer: what decodes.
const SMALL_ROWS: usize = 64;
/// Recorded steps that are kept; the oldest goes first. More than a server of 64 sequences meets
/// while their contexts are of a few lengths.
const MAX_STEPS: usize = 256;

/// How a model is set up on a device.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Type of activations, and of the cache if nothing else is said: `f32`, `f16` or `bf16`.
    pub dtype: Scalar,
    /// What products with packed weights read; other than `Exact` on the CPU alone.
    pub product_inputs: ProductInputs,
    /// Sequences that may be open at once.
    pub max_sequences: usize,
    /// Most rows of one step.
    pub max_step_rows: usize,
    /// Positions of the cache over all sequences; at most the context of each.
    pub cache_positions: usize,
    /// How keys and values are kept.
    pub cache: CacheType,
}

pub(super) struct RecordedStep {
    pub(super) recording: Box<dyn Recording>,
    pub(super) launches: Vec<RecordedLaunch>,
    /// `[outputs, vocab_size]`, in the activations' type.
    logits: Option<Tensor>,
}

/// A model on a device, of any family.
pub struct DeviceModel {
    pub(super) device: Arc<dyn Device>,
    pub(super) config: ModelConfig,
    pub(super) options: EngineOptions,
    pub(super) graph: Graph,
    forgetting: Forgetting,
    pub(super) cache: CacheShape,
    pub(super) zero_slot: u32,
    pub(super) tables: BlockTables,
    /// For steps of few rows, and for all.
    exchanges: [Exchange; 2],
    /// Where the device draws tokens.
    pub(super) draws: Option<DrawInputs>,
    route: Route,
    /// Of rows of packed weights, on a device with matrix units.
    row_numbers: Option<Tensor>,
    arena: Option<Tensor>,
    pub(super) pages: PageTable,
    pub(super) steps: HashMap<StepKey, RecordedStep>,
    step_order: Vec<StepKey>,
    /// Whether prompts are padded to a few lengths.
    pub(super) is_padding: bool,
    /// Whether prompts of several sequences share a step.
    pub(super) shares_prompts: bool,
    /// Steps recorded since it was loaded.
    recordings: u64,
    /// Rows whose hidden states a multi-token head may go on from, by [`HiddenFrom`].
    pub(super) hidden_rows: [Vec<StepRow>; 2],
}

impl DeviceModel {
    /// Uploads a checkpoint and reserves the state of all sequences.
    pub fn load(
        device: Arc<dyn Device>,
        checkpoint: &Checkpoint,
        options: EngineOptions,
    ) -> Result<DeviceModel, ModelError> {
        Self::of_weights(device, &checkpoint.config, &checkpoint.weights, options)
    }

    /// As [`Self::load`], of weights that are at hand.
    pub fn of_weights(
        device: Arc<dyn Device>,
        config: &ModelConfig,
        weights: &ModelWeights,
        options: EngineOptions,
    ) -> Result<DeviceModel, ModelError> {
        iron_corpus::link();
        let config = config.clone();
        let vocab_size = config.vocab_size;
        let (sequences, step_rows) = (options.max_sequences, options.max_step_rows);
        if options.cache == CacheType::F8E4M3 && config.keeps_latents() {
            return Err(ModelError::NoPackedLatents {
                family: config.family.to_owned(),
            });
        }
        let cache = CacheShape::new(&config, &options);
        let graph = Graph::load(&device, &config, weights, options.dtype, &cache)?;
        // A row costs a processor more than a recording is worth, and prompts gain nothing from each
        // other there: four rows share a reading of the weights already.
        let is_padding = device.backend() != Backend::Cpu;
        let mut model = DeviceModel {
            tables: BlockTables::new(&device, &cache)?,
            pages: PageTable::new(
                cache.blocks,
                BLOCK_SIZE,
                sequences,
                cache.blocks_a_sequence,
                cache.snapshots,
            ),
            forgetting: Forgetting {
                ring: config
                    .widest_window()
                    .filter(|_| cache.ring_blocks < cache.blocks_a_sequence)
                    .map(|window| (window, cache.ring_blocks * BLOCK_SIZE)),
                recurrent: config.is_recurrent(),
            },
            zero_slot: cache.zero_slot(),
            cache,
            config,
            options,
            graph,
            exchanges: [
                Exchange::new(&device, step_rows.min(SMALL_ROWS))?,
                Exchange::new(&device, step_rows)?,
            ],
            draws: match device.backend() {
                // A processor's own code draws faster than its kernels.
                Backend::Cpu => None,
                _ => Some(DrawInputs::new(&device, step_rows)?),
            },
            route: Route::of(&*device),
            row_numbers: has_tiles(&*device, options.dtype)
                .then(|| row_numbers(&device, vocab_size))
                .transpose()?,
            device,
            arena: None,
            steps: HashMap::new(),
            step_order: Vec::new(),
            hidden_rows: Default::default(),
            is_padding,
            shares_prompts: is_padding,
            recordings: 0,
        };
        model.compile(step_rows)?;
        Ok(model)
    }

    /// Records a step of each kind: a shape that no kernel has is an error now, and no request
    /// waits for a compiler.
    fn compile(&mut self, step_rows: usize) -> Result<(), ModelError> {
        let prompt_rows = PROMPT_ROWS.min(step_rows);
        let prompt = (prompt_rows, prompt_rows == PROMPT_ROWS);
        let by_tiles = !self.config.attends_by_rows();
        let decoding: &[usize] = match self.route.shares_weights(self.options.dtype) {
            // One of each instance of the products of few rows.
            true => &[64, 32, 16, 1],
            false => &[1],
        };
        let decoding = decoding.iter().filter(|&&rows| rows <= step_rows);
        // The larger arena first: a larger one would drop the steps recorded before.
        for (rows, is_prompt) in [prompt].into_iter().chain(decoding.map(|&n| (n, false))) {
            // Of several splits, so that what joins them is compiled too.
            let reach = if is_prompt && by_tiles { 1 } else { 512 };
            self.recorded(StepKey {
                rows,
                outputs: 1,
                splits: splits_of(reach),
                reach: reach_of(reach),
                prompts: usize::from(is_prompt),
                segments: usize::from(self.forgetting.recurrent),
                is_apart: !is_prompt,
                advances: false,
                pages: self.unpacked_pages(is_prompt, 1),
                draws: None,
                head: None,
            })?;
        }
        let drawing = self.draws.as_ref().map(|_| DrawInputs::kinds());
        for class in drawing.into_iter().flatten() {
            self.recorded(StepKey {
                rows: 1,
                outputs: 1,
                splits: 1,
                reach: reach_of(1),
                prompts: 0,
                segments: usize::from(self.forgetting.recurrent),
                is_apart: true,
                advances: false,
                pages: 0,
                draws: Some(class),
                head: None,
            })?;
        }
        Ok(())
    }

    /// Says whether the device draws the tokens of rows that want [`RowOutput::Drawn`], or the
    /// host of their logits, which gives the same tokens: where it is not said, every device but
    /// the CPU draws.
    pub fn draw_on_device(&mut self, draws: bool) -> Result<(), ModelError> {
        let rows = self.options.max_step_rows;
        self.draws = match draws {
            true => Some(DrawInputs::new(&self.device, rows)?),
            false => None,
        };
        failed(self.device.synchronize())?;
        self.steps.clear();
        self.step_order.clear();
        Ok(())
    }

    /// Whether a layer keeps a state that has no positions.
    pub(super) fn is_recurrent(&self) -> bool {
        self.forgetting.recurrent
    }

    /// Where it runs.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The route that steps take.
    pub fn route(&self) -> Route {
        self.route
    }

    /// Takes another route from the next step on, and compiles its kernels.
    pub fn set_route(&mut self, route: Route) -> Result<(), ModelError> {
        if route == self.route {
            return Ok(());
        }
        self.route = route;
        self.record_anew()
    }

    /// Whether the rows of a prompt in a step are padded to a multiple of 16, from 128 on of 64, so
    /// that prompts of many lengths share recorded steps. What is computed for the rows that are
    /// there keeps its bits.
    pub fn set_padding(&mut self, is_padding: bool) {
        self.is_padding = is_padding;
    }

    /// Whether prompts of several sequences in a step run together; otherwise one after the other.
    /// Their results have the same bits either way. Where it is not said, they do everywhere but on
    /// the CPU, where nothing is spared by it.
    pub fn set_sharing_of_prompts(&mut self, shares: bool) {
        self.shares_prompts = shares;
    }

    /// Steps recorded since the model was loaded: a recording is what the first step of its kind
    /// waits for.
    pub fn recordings(&self) -> u64 {
        self.recordings
    }

    /// Drops every recorded step and compiles the first again.
    pub(super) fn record_anew(&mut self) -> Result<(), ModelError> {
        failed(self.device.synchronize())?;
        self.steps.clear();
        self.step_order.clear();
        self.compile(self.options.max_step_rows)
    }

    pub(super) fn exchange(&self, rows: usize) -> &Exchange {
        &self.exchanges[usize::from(rows > self.exchanges[0].max)]
    }

    /// The step of a key, and its logits.
    fn planned(&self, key: StepKey) -> Result<(PlacedStep, Option<Activation>), ModelError> {
        let product_inputs = self.options.product_inputs;
        let mut planner = Planner::new(self.options.dtype, self.route, product_inputs);
        planner.tuned = Tuned::of(&*self.device);
        planner.is_tiled = key.is_prompt() && has_tiles(&*self.device, self.options.dtype);
        planner.attends_by_large_tiles =
            key.is_prompt() && has_large_tiles(&*self.device, self.options.dtype);
        planner.has_ahead = has_ahead(&*self.device);
        planner.most_outputs = self.device.limits().max_grid[0];
        planner.row_numbers = self.row_numbers.clone().filter(|_| planner.is_tiled);
        planner.is_shared = !key.is_prompt() && self.route.shares_weights(self.options.dtype);
        let context = self.context_of(key)?;
        let Exchange {
            inputs, results, ..
        } = self.exchange(key.rows);
        let graph = &self.graph;
        let logits = match key.head {
            None => graph.plan(&mut planner, &context, inputs, results)?,
            Some(from) => graph.plan_head(&mut planner, &context, inputs, results, from)?,
        };
        let is_rounded = planner.has_rounded() || key.head.is_some();
        if product_inputs == ProductInputs::Q8 && !is_rounded {
            return Err(ModelError::NoRoundedProducts {
                backend: self.device.backend().name().to_owned(),
            });
        }
        Ok((planner.place(), logits))
    }

    /// Bytes that the key-value caches of all layers take, and their recurrent states.
    pub fn state_bytes(&self) -> (u64, u64) {
        self.graph.state_bytes()
    }

    /// Checks a step against the open sequences; gives the length of each after it.
    pub(super) fn check(
        &self,
        rows: &[StepRow],
    ) -> Result<BTreeMap<SequenceId, usize>, ModelError> {
        if rows.len() > self.options.max_step_rows {
            let max = self.options.max_step_rows;
            return Err(ModelError::Rows {
                rows: rows.len(),
                max,
            });
        }
        let mut lengths = BTreeMap::new();
        for row in rows {
            let sequence = self.pages.get(row.sequence)?;
            let length = lengths.entry(row.sequence).or_insert(sequence.length);
            if row.token as usize >= self.config.vocab_size {
                let vocab_size = self.config.vocab_size;
                return Err(ModelError::Token {
                    token: row.token,
                    vocab_size,
                });
            }
            if row.position as usize != *length {
                let (sequence, length, position) = (row.sequence, *length, row.position);
                return Err(ModelError::Position {
                    sequence,
                    length,
                    position,
                });
            }
            *length += 1;
            if *length > sequence.capacity {
                let (needed, capacity) = (*length, sequence.capacity);
                return Err(ModelError::Capacity {
                    sequence: row.sequence,
                    needed,
                    capacity,
                });
            }
        }
        Ok(lengths)
    }

    fn context_of(&self, key: StepKey) -> Result<StepContext<'_>, ModelError> {
        let rows = key.rows as u64;
        let inputs = &self.exchange(key.rows).inputs;
        let part = |tensor: &Tensor, length: u64| failed(tensor.slice(0, 0..length));
        let n = key.segments as u64;
        let segments = match n {
            0 => None,
            n => Some(Segments {
                of: part(&inputs.segment_of, rows)?,
                starts: part(&inputs.segment_starts, n + 1)?,
                from: part(&inputs.state_from, n)?,
                to: part(&inputs.state_to, n)?,
            }),
        };
        let tiles = |i: usize| {
            let size = TILES[i];
            let count = most_tiles(key.rows, key.prompts, size) as u64;
            Ok::<_, ModelError>(StepTiles {
                size: size as u64,
                rows: part(&inputs.tile_rows[i], count)?,
                places: match key.prompts {
                    0 | 1 => None,
                    _ => Some(part(&inputs.tile_places[i], rows)?),
                },
            })
        };
        let tiles = match key.is_prompt() {
            true => Some([tiles(0)?, tiles(1)?]),
            false => None,
        };
        let unpacked = match key.pages as u64 {
            0 => None,
            pages => Some(UnpackedPages {
                full: part(&self.tables.prompt_full, pages)?,
                window: part(&self.tables.prompt_window, self.tables.ring() as u64)?,
            }),
        };
        let draws = match (key.draws, &self.draws) {
            (Some(class), Some(inputs)) => Some(inputs.of_step(key.outputs, class)?),
            _ => None,
        };
        Ok(StepContext {
            key,
            segments,
            tiles,
            unpacked,
            draws,
            positions: failed(inputs.positions.slice(0, 0..rows))?,
            sequences: failed(inputs.sequences.slice(0, 0..rows))?,
            tables: &self.tables,
            norm_eps: self.config.norm_eps,
        })
    }

    /// Runs all rows without moving any sequence's state; [`Prepared::commit`] moves it.
    pub fn prepare(&mut self, rows: &[StepRow]) -> Result<Prepared<'_>, ModelError> {
        self.prepare_drawing(rows, &[])
    }

    /// As [`Self::prepare`], where the device draws the tokens of rows that want it, by one of
    /// `draws` each, in order.
    fn prepare_drawing(
        &mut self,
        rows: &[StepRow],
        draws: &[Draw],
    ) -> Result<Prepared<'_>, ModelError> {
        let draw_of = draws_of(rows, draws)?;
        let mut lengths = BTreeMap::new();
        let mut results = Vec::new();
        if !rows.is_empty() {
            lengths = self.check(rows)?;
            if self.forgetting.recurrent {
                for id in lengths.keys() {
                    self.pages.reserve_state(*id)?;
                }
            }
            let (gathered, order) = gathered(rows);
            let mut found = Vec::new();
            let mut begun = false;
            self.hidden_rows = Default::default();
            for mut part in self.parts_of(&gathered)? {
                let wanted = part.places.iter().map(|&i| order[i]);
                let wanted = wanted.filter(|&i| rows[i].output != RowOutput::Nothing);
                let wanted: Vec<usize> = wanted.collect();
                let drawn = wanted.iter().map(|&i| draw_of[i]).collect();
                self.begin_part(&mut part, drawn)?;
                if !std::mem::replace(&mut begun, true) {
                    for (id, length) in &lengths {
                        self.pages.get_mut(*id)?.begin(*length);
                    }
                }
                if let (true, Some(last)) = (part.rows.len() > part.real, part.rows.last()) {
                    // Those rows are written, and no part of the sequence.
                    let end = last.position as usize + 1;
                    self.pages.get_mut(last.sequence)?.overwrite(end);
                }
                let results = self.replayed(part.key, part.real_rows())?;
                if self.graph.head.is_some() {
                    self.hidden_rows[HiddenFrom::Model as usize] = part.real_rows().to_vec();
                }
                found.extend(wanted.into_iter().zip(results));
            }
            found.sort_by_key(|(i, _)| *i);
            results = found.into_iter().map(|(_, result)| result).collect();
        }
        Ok(Prepared {
            pages: &mut self.pages,
            lengths,
            results,
        })
    }

    /// Plays a recorded step whose inputs are written; the results of its rows.
    pub(super) fn replayed(
        &self,
        key: StepKey,
        rows: &[StepRow],
    ) -> Result<Vec<RowResult>, ModelError> {
        let step = &self.steps[&key];
        failed(step.recording.replay())?;
        failed(self.device.synchronize())?;
        let exchange = self.exchange(key.rows);
        exchange.read(rows, step.logits.as_ref(), self.config.vocab_size)
    }

    /// The recorded step of a key. A larger arena drops every recording, whose addresses it
    /// would leave behind.
    pub(super) fn recorded(&mut self, key: StepKey) -> Result<(), ModelError> {
        if self.steps.contains_key(&key) {
            return Ok(());
        }
        let (placed, logits) = self.planned(key)?;
        let needed = placed.arena_bytes();
        if self.arena.as_ref().is_none_or(|a| a.elements() < needed) {
            failed(self.device.synchronize())?;
            self.steps.clear();
            self.step_order.clear();
            self.arena = None;
            self.arena = Some(failed(Tensor::empty(&self.device, Scalar::U8, &[needed]))?);
        }
        let Some(arena) = &self.arena else {
            return Err(ModelError::Device("the activation arena is missing".into()));
        };
        let launches = placed.record(&self.device, arena)?;
        let logits = logits
            .map(|logits| placed.tensor(arena, &logits))
            .transpose()?;
        let recording = failed(self.device.record(&launches))?;
        self.recordings += 1;
        if self.step_order.len() >= MAX_STEPS {
            let oldest = self.step_order.remove(0);
            self.steps.remove(&oldest);
        }
        let step = RecordedStep {
            recording,
            launches,
            logits,
        };
        self.steps.insert(key, step);
        self.step_order.push(key);
        Ok(())
    }
}

impl Model for DeviceModel {
    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn context_length(&self) -> usize {
        self.config.context_length
    }

    fn max_step_rows(&self) -> usize {
        self.options.max_step_rows
    }

    fn open_sequence(&mut self, capacity: usize) -> Result<SequenceId, ModelError> {
        let id = self.pages.open(capacity)?;
        let sequence = self.pages.get(id)?;
        let row = self.tables.assign(sequence.slot, &sequence.blocks);
        if let Err(error) = row {
            self.pages.close(id);
            return Err(error);
        }
        Ok(id)
    }

    fn truncate_sequence(
        &mut self,
        sequence: SequenceId,
        length: usize,
    ) -> Result<usize, ModelError> {
        let layers = self.forgetting;
        Ok(self.pages.get_mut(sequence)?.truncate(length, layers))
    }

    fn reusable_length(&self, sequence: SequenceId, length: usize) -> usize {
        let held = self.pages.get(sequence);
        held.map_or(0, |held| held.clone().truncate(length, self.forgetting))
    }

    fn resize_sequence(&mut self, sequence: SequenceId, capacity: usize) -> Result<(), ModelError> {
        let before = self.pages.get(sequence)?.capacity;
        self.pages.resize(sequence, capacity)?;
        let resized = self.pages.get(sequence)?;
        let written = self.tables.assign(resized.slot, &resized.blocks);
        if written.is_err() {
            self.pages.resize(sequence, before)?;
        }
        written
    }

    fn capacity(&self) -> ModelCapacity {
        ModelCapacity {
            sequences: self.options.max_sequences,
            positions: self.pages.positions(),
            block: BLOCK_SIZE,
            recurrent: self.forgetting.recurrent,
            prompts: self.most_prompts(),
        }
    }

    fn close_sequence(&mut self, sequence: SequenceId) {
        self.pages.close(sequence);
    }

    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        Ok(self.prepare(rows)?.commit())
    }

    fn step_drawing(
        &mut self,
        rows: &[StepRow],
        draws: &[Draw],
    ) -> Result<Vec<RowResult>, ModelError> {
        if self.draws.is_none() || class_of(draws).is_none() {
            return draw_on_host(self, rows, draws);
        }
        Ok(self.prepare_drawing(rows, draws)?.commit())
    }

    fn head_step(&mut self, rows: &[HeadRow]) -> Result<Vec<RowResult>, ModelError> {
        self.head_step_on_device(rows)
    }

    fn advance(
        &mut self,
        rows: &[StepRow],
        steps: usize,
    ) -> Result<Vec<Vec<RowResult>>, ModelError> {
        self.advance_on_device(rows, steps)
    }
}

/// A step that has run and has not joined its sequences. Dropping it abandons it: every
/// sequence is as it was.
#[must_use = "a step that is not committed leaves no trace"]
pub struct Prepared<'m> {
    pages: &'m mut PageTable,
    lengths: BTreeMap<SequenceId, usize>,
    results: Vec<RowResult>,
}

impl Prepared<'_> {
    /// One result for each row that wanted one, in the rows' order.
    pub fn results(&self) -> &[RowResult] {
        &self.results
    }

    /// Moves the state of every sequence of the step, together.
    pub fn commit(self) -> Vec<RowResult> {
        for (id, length) in self.lengths {
            if let Ok(sequence) = self.pages.get_mut(id) {
                sequence.commit(length);
            }
        }
        self.results
    }
}
