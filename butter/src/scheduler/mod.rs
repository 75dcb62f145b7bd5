//! Many requests on one model.
//!
//! The scheduler alone gives work to the device. Its [`Scheduler::turn`] runs one step with the rows
//! of every request that decodes and pieces of prompts of at most 15 rows, then the other prompts'
//! rows up to a budget, a chunk of each and as many in a step as the model computes together, so that
//! a long prompt delays nobody by more than the budget. It decides without I/O and without a clock
//! of its own; [`SchedulerThread`] turns it on a thread.
//!
//! | promise | how |
//! |---|---|
//! | what is admitted can finish | all positions of a request, its whole answer among them, are reserved when it is admitted |
//! | every sequence is given back exactly once | a [`Lease`](lease::Lease) that only the model can take back, counted on both sides |
//! | a client that is gone frees its room within one turn | a closed channel is seen at the start of the next turn |
//! | company does not change an answer | prompt chunks end at fixed positions, and their rows have the same bits in any company |
//! | a preempted request goes on as if undisturbed | its tokens enter again as they did the first time: the prompt in the same chunks, the answer in rows that decode |
//! | speculation changes no answer | each row's choice is plain decoding's, and stands only while every row before it was right ([`Speculator`]) |
//! | a request that fails fails alone | a step changes all sequences or none, so after a failed one each row is tried by itself |
//!
//! A request that has ended leaves its sequence in a cache until the room is needed; the next that
//! begins with the same tokens and has the same salt goes on from there, as far back as every
//! layer of the model can give its state ([`PrefixReuse`]).

mod core;
mod decode;
pub mod lease;
mod metrics;
mod prefix;
mod request;
mod speculator;
mod thread;

pub use self::core::{Scheduler, SchedulerOptions};
pub use metrics::{BUCKETS, Histogram, SchedulerMetrics};
pub use prefix::PrefixReuse;
pub use request::{Choice, Choose, Event, Failure, Job, Receipt};
pub use speculator::{DraftModels, Speculator};
pub use thread::{Refused, SchedulerThread};
