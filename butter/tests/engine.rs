//! The request loop over a scripted model: streaming, stop strings, limits,
//! failures and the reuse of a conversation's state.

mod support {
    pub mod gguf_writer;
}

use butter::generate::{Answer, FinishReason, GenerateError, Generator, Request};
use butter::gguf::GgufFile;
use butter::model::{Model, ModelError, RowOutput, RowResult, SequenceId, StepRow};
use butter::sampler::{Sampler, SamplingParameters};
use butter::tokenizer::Tokenizer;
use proptest::prelude::*;
use support::gguf_writer::Writer;

const VOCABULARY: usize = 259;
const END: u32 = 256;

/// A model whose next token depends on the position alone.
struct Scripted {
    /// The token that follows position `i`.
    next: Vec<u32>,
    context: usize,
    max_step_rows: usize,
    /// The token of each open sequence's positions.
    open: Vec<(SequenceId, Vec<u32>)>,
    rows_run: usize,
    /// Positions whose logits are not finite, and those at which a step fails.
    poisoned: Vec<usize>,
    failing: Option<usize>,
}

impl Scripted {
    /// After a prompt of `prompt` tokens comes `answer`, then the end.
    fn new(prompt: usize, answer: &[u32]) -> Self {
        let mut next = vec![0; prompt - 1];
        next.extend(answer);
        next.push(END);
        Self {
            next,
            context: 64,
            max_step_rows: 4,
            open: Vec::new(),
            rows_run: 0,
            poisoned: Vec::new(),
            failing: None,
        }
    }
}

impl Model for Scripted {
    fn vocab_size(&self) -> usize {
        VOCABULARY
    }

    fn context_length(&self) -> usize {
        self.context
    }

    fn max_step_rows(&self) -> usize {
        self.max_step_rows
    }

    fn open_sequence(&mut self, capacity: usize) -> Result<SequenceId, ModelError> {
        assert!(
            capacity <= self.context,
            "more than the context is reserved"
        );
        let sequence = SequenceId(self.open.len() as u32);
        self.open.push((sequence, Vec::new()));
        Ok(sequence)
    }

    fn truncate_sequence(
        &mut self,
        sequence: SequenceId,
        length: usize,
    ) -> Result<usize, ModelError> {
        let state = self.open.iter_mut().find(|(open, _)| *open == sequence);
        let (_, held) = state.ok_or(ModelError::UnknownSequence(sequence))?;
        held.truncate(length);
        Ok(held.len())
    }

    fn close_sequence(&mut self, sequence: SequenceId) {
        self.open.retain(|(open, _)| *open != sequence);
    }

    fn step(&mut self, rows: &[StepRow]) -> Result<Vec<RowResult>, ModelError> {
        assert!(rows.len() <= self.max_step_rows);
        let mut results = Vec::new();
        for row in rows {
            let position = row.position as usize;
            if self.failing == Some(position) {
                return Err(ModelError::Device("the device was lost".to_owned()));
            }
            let (_, held) = self
                .open
                .iter_mut()
                .find(|(open, _)| *open == row.sequence)
                .expect("open");
            assert_eq!(held.len(), position, "rows continue their sequence");
            held.push(row.token);
            self.rows_run += 1;
            let next = self.next.get(position).copied().unwrap_or(END);
            let poisoned = self.poisoned.contains(&position);
            match row.output {
                RowOutput::Nothing => {}
                RowOutput::Greedy if poisoned => {
                    results.push(RowResult::Failed("logit of token 7 is NaN".to_owned()));
                }
                RowOutput::Greedy => results.push(RowResult::Token(next)),
                RowOutput::Drawn => unreachable!("the default of `step_drawing` asks for logits"),
                RowOutput::Logits => {
                    let mut logits = vec![f32::NEG_INFINITY; VOCABULARY];
                    logits[next as usize] = if poisoned { f32::NAN } else { 1.0 };
                    results.push(RowResult::Logits(logits));
                }
            }
        }
        Ok(results)
    }
}

fn tokenizer() -> Tokenizer {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, Writer::llama().file()).expect("written");
    Tokenizer::from_gguf(&GgufFile::open(&path).expect("opens")).expect("builds")
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt_ids: prompt.to_vec(),
        max_tokens,
        sampler: Sampler::greedy(),
        stop_tokens: vec![END],
        stop_strings: Vec::new(),
    }
}

/// Runs a request; the streamed text must be the answer's.
fn run(model: &mut Scripted, request: &Request) -> Result<Answer, GenerateError> {
    let tokenizer = tokenizer();
    let mut streamed = String::new();
    let answer =
        Generator::new(model).run(request, Some(&tokenizer), &mut |text| streamed += text)?;
    assert_eq!(streamed, answer.text);
    Ok(answer)
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

// E01
#[test]
fn an_emoji_of_four_tokens_streams_whole() {
    let answer = bytes("a🦊!");
    let mut model = Scripted::new(1, &answer);
    let result = run(&mut model, &request(&[1], 50)).expect("runs");
    assert_eq!(
        (result.text.as_str(), result.finish_reason),
        ("a🦊!", FinishReason::Stop)
    );
    assert_eq!(result.token_ids, answer);
    let cut = run(&mut Scripted::new(1, &answer), &request(&[1], 3)).expect("runs");
    assert_eq!(
        (cut.text.as_str(), cut.finish_reason),
        ("a\u{fffd}", FinishReason::Length)
    );
}

// E03
#[test]
fn stop_strings_end_the_text_before_them_even_at_the_last_token() {
    let answer = bytes("one # two ##! three");
    for max_tokens in [13, 50] {
        let mut stopping = request(&[1], max_tokens);
        stopping.stop_strings = vec!["##!".to_owned(), "zzz".to_owned()];
        let result = run(&mut Scripted::new(1, &answer), &stopping).expect("runs");
        assert_eq!(
            (result.text.as_str(), result.finish_reason),
            ("one # two ", FinishReason::Stop)
        );
    }
    let mut missed = request(&[1], 12);
    missed.stop_strings = vec!["##!".to_owned()];
    let result = run(&mut Scripted::new(1, &answer), &missed).expect("runs");
    assert_eq!(
        (result.text.as_str(), result.finish_reason),
        ("one # two ##", FinishReason::Length)
    );
}

// E26
#[test]
fn limits_clip_the_answer_or_refuse_the_prompt() {
    let answer = vec![u32::from(b'x'); 100];
    for (prompt, max_tokens, expected) in [
        (1, 0, Ok(0)),
        (1, 5, Ok(5)),
        (60, 1_000_000_000, Ok(4)),
        (63, 9, Ok(1)),
        (64, 1, Err(64)),
        (65, 1, Err(65)),
    ] {
        let mut model = Scripted::new(prompt, &answer);
        let result = run(&mut model, &request(&vec![1; prompt], max_tokens));
        match (result, expected) {
            (Ok(result), Ok(tokens)) => {
                assert_eq!(result.token_ids.len(), tokens);
                assert_eq!(result.finish_reason, FinishReason::Length);
            }
            (Err(error), Err(prompt_tokens)) => {
                assert_eq!(
                    error,
                    GenerateError::PromptTooLong {
                        prompt_tokens,
                        context_length: 64
                    }
                );
            }
            (result, expected) => panic!("{prompt}: {result:?}, expected {expected:?}"),
        }
        assert!(model.open.is_empty());
    }
    let mut model = Scripted::new(1, &answer);
    assert_eq!(
        run(&mut model, &request(&[], 1)).unwrap_err(),
        GenerateError::EmptyPrompt
    );
    let error = run(&mut model, &request(&[1, 259], 1)).unwrap_err();
    assert_eq!(
        error,
        GenerateError::Token {
            token: 259,
            place: 1,
            vocab_size: 259
        }
    );
    assert_eq!(model.rows_run, 0);
}

// E29
#[test]
fn logits_that_are_not_finite_end_the_answer_with_an_error() {
    let warm = SamplingParameters {
        temperature: 0.7,
        ..SamplingParameters::default()
    };
    let warm = Sampler::new(warm, VOCABULARY).expect("in range");
    for sampler in [Sampler::greedy(), warm] {
        let mut model = Scripted::new(2, &bytes("abcdef"));
        model.poisoned = vec![4];
        let mut request = request(&[1, 2], 50);
        request.sampler = sampler;
        let result = run(&mut model, &request).expect("runs");
        assert_eq!(
            (result.text.as_str(), result.finish_reason),
            ("abc", FinishReason::Error)
        );
        assert!(result.error.is_some_and(|error| error.contains("NaN")));
    }
}

#[test]
fn a_failed_step_releases_the_sequence_and_the_next_request_runs() {
    let tokenizer = tokenizer();
    for failing in [0, 3, 6, 8] {
        let mut model = Scripted::new(6, &bytes("abcdef"));
        model.failing = Some(failing);
        let error = run(&mut model, &request(&[1; 6], 50)).unwrap_err();
        assert!(error.to_string().contains("the device was lost"));
        assert!(model.open.is_empty(), "failing at {failing}");
        model.failing = None;
        let result = Generator::new(&mut model)
            .run(&request(&[1; 6], 50), Some(&tokenizer), &mut |_| {})
            .expect("runs");
        assert_eq!(result.text, "abcdef");
    }
}

#[test]
fn a_conversation_computes_only_what_is_new_and_answers_as_if_afresh() {
    let mut model = Scripted::new(6, &bytes("abcdef"));
    let mut generator = Generator::new(&mut model).reserving(1000);
    let first = generator
        .run(&request(&[1; 6], 3), None, &mut |_| {})
        .expect("runs");
    assert_eq!(
        (first.stats.reused_tokens, first.token_ids),
        (0, bytes("abc"))
    );
    // The prompt goes on behind the answer, whose last token never entered.
    let longer = [&[1; 6][..], &bytes("abc"), &[2, 2]].concat();
    let second = generator
        .run(&request(&longer, 2), None, &mut |_| {})
        .expect("runs");
    assert_eq!(
        (second.stats.reused_tokens, second.stats.prompt_tokens),
        (8, 11)
    );
    // A prompt that departs early reuses up to there, the same one all but its last.
    let departing = [&[1; 4][..], &[9; 5]].concat();
    let third = generator
        .run(&request(&departing, 1), None, &mut |_| {})
        .expect("runs");
    assert_eq!(third.stats.reused_tokens, 4);
    let again = generator
        .run(&request(&departing, 1), None, &mut |_| {})
        .expect("runs");
    assert_eq!(
        (again.stats.reused_tokens, again.token_ids),
        (8, third.token_ids)
    );
    drop(generator);
    assert!(model.open.is_empty());
}

// E09
#[test]
fn the_answer_does_not_depend_on_how_the_prompt_is_chunked() {
    let answers: Vec<Answer> = (1..=9)
        .map(|max_step_rows| {
            let mut model = Scripted::new(7, &bytes("hello"));
            model.max_step_rows = max_step_rows;
            run(&mut model, &request(&[1, 2, 3, 4, 5, 6, 7], 50)).expect("runs")
        })
        .collect();
    assert!(answers.iter().all(|answer| answer.text == "hello"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // E01, E03: the same text, and the same stop, however the answer's tokens split it; and what
    // streams is the answer, which `run` checks.
    #[test]
    fn the_text_does_not_depend_on_how_tokens_split_it(
        text in "[abc é🦊]{0,12}",
        stops in prop::collection::vec("[abcé🦊]{1,3}", 0..3),
        joined in prop::collection::vec(any::<bool>(), 12),
    ) {
        let bytes = bytes(&text);
        // Tokens 257 and 258 are `ab` and `abc`; each place takes one or the bytes.
        let mut merged = Vec::new();
        let mut rest = &bytes[..];
        while let Some((&byte, tail)) = rest.split_first() {
            let wanted = joined[merged.len() % joined.len()];
            let whole = [(&b"abc"[..], 258), (b"ab", 257)].into_iter().find(|(text, _)| {
                wanted && rest.len() >= text.len()
                    && rest.iter().zip(*text).all(|(a, b)| *a == u32::from(*b))
            });
            match whole {
                Some((text, token)) => {
                    merged.push(token);
                    rest = &rest[text.len()..];
                }
                None => {
                    merged.push(byte);
                    rest = tail;
                }
            }
        }
        let answer = |tokens: &[u32]| {
            let mut stopping = request(&[1], 60);
            stopping.stop_strings.clone_from(&stops);
            let answer = run(&mut Scripted::new(1, tokens), &stopping).expect("runs");
            (answer.text, answer.finish_reason)
        };
        let found = answer(&bytes);
        prop_assert_eq!(&found, &answer(&merged));
        let ends = stops.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| at + stop.len()));
        match ends.min() {
            // The first stop to end ends the answer; the longest that ends there is cut off.
            Some(end) => {
                let cut = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
                let cut = cut.map(String::len).max().unwrap_or(0);
                prop_assert_eq!(&found.0, &text[..end - cut]);
            }
            None => prop_assert_eq!(&found.0, &text),
        }
    }
}
