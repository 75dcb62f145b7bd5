//! A thin language-model engine over Iron's kernels.
//!
//! Which part do you want?
//!
//! | to … | use |
//! |---|---|
//! | open a GGUF file or a Hugging Face folder | [`checkpoint::Checkpoint`] |
//! | turn text or a chat into ids, and ids into text | [`tokenizer`], [`chat`] |
//! | run a request on a model | [`generate::Generator`] |
//! | run many requests on one model at once | [`scheduler`] |
//! | serve them over HTTP | [`serve`] |
//! | let a smaller model or the text propose its tokens | [`speculate`] |
//! | run a checkpoint on a device | [`engine::DeviceModel`] |
//! | measure a model or the shape of one | [`mod@bench`], [`shapes`] |
//! | score a text | [`perplexity`] |
//! | fetch a model from a hub, or find one that was fetched | [`hub`] |
//! | put another execution below the engine | [`model::Model`] |
//! | read tensors of a file | [`catalogue`], [`gguf`], [`safetensors`] |
//!
//! Four types carry a model: [`config::ModelConfig`] (every key is used, listed
//! as irrelevant, or a load error), [`weights::ModelWeights`] (immutable,
//! mapped), the state that a [`model::Model`] keeps for each sequence, and the
//! step that it runs. A family of models is one file in `families`, which reads
//! a config and takes the tensors; the blocks that it is made of stand once.
//!
//! Wrong input of any kind is a typed error of one line that names the file, the
//! field and both values; nothing is allocated from an unchecked length.

pub mod bench;
pub mod catalogue;
pub mod chat;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod engine;
mod families;
pub mod generate;
pub mod gguf;
pub mod hub;
mod json;
pub mod model;
pub mod perplexity;
mod quote;
pub mod rope;
pub mod safetensors;
pub mod sampler;
pub mod scheduler;
pub mod serve;
pub mod shapes;
pub mod speculate;
pub mod stop;
pub mod tokenizer;
pub mod weights;
