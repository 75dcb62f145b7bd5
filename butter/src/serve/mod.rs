//! `butter serve`: OpenAI's HTTP API over a [`SchedulerThread`](crate::scheduler::SchedulerThread).
//!
//! | to … | look at |
//! |---|---|
//! | see which fields a request may have, and what each does | `request.rs`, `messages.rs` |
//! | see how an answer becomes JSON or server-sent events | `answer.rs`, `stitch.rs` |
//! | set a limit, a key, a timeout | [`options::ServeOptions`] |
//! | read `/metrics` | [`metrics`] |
//! | start a server in a program or a test | [`Server::start`] |
//! | see what is answered while a model loads | [`loading`] |
//!
//! Requests are checked whole before the scheduler sees them. The device is stepped by the
//! scheduler's thread alone; sockets, JSON, templates and grammars run beside it.

pub mod access;
pub mod answer;
pub mod chooser;
mod connection;
pub mod engine;
pub mod error;
pub mod fields;
pub mod grammar;
pub mod loading;
mod messages;
pub mod metrics;
pub mod options;
mod rebase;
pub mod request;
mod routes;
pub mod stitch;
pub mod tool_call;
pub mod xml_call;
mod xml_grammar;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use access::Access;
use engine::Engine;
use metrics::HttpMetrics;
use options::ServeOptions;

/// What all connections share.
pub struct ServerState {
    /// The model.
    pub engine: Arc<Engine>,
    /// The settings.
    pub options: ServeOptions,
    /// Keys and rates.
    access: Access,
    /// Counts of the HTTP side.
    http: HttpMetrics,
    /// Whether new requests are refused because the server ends.
    draining: AtomicBool,
    /// Places for requests that are read at once, each of which keeps a core busy.
    readers: Arc<Semaphore>,
}

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    state: Arc<ServerState>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens and answers until it is stopped.
    pub async fn start(engine: Engine, options: ServeOptions) -> std::io::Result<Server> {
        let listener = Self::bind(&options).await?;
        Self::start_on(listener, engine, options)
    }

    /// Takes the port, before a model is loaded for it; [`loading::Loading`] answers on it by then.
    pub async fn bind(options: &ServeOptions) -> std::io::Result<TcpListener> {
        TcpListener::bind((options.host.as_str(), options.port)).await
    }

    /// Answers on a port that was taken before.
    pub fn start_on(
        listener: TcpListener,
        engine: Engine,
        options: ServeOptions,
    ) -> std::io::Result<Server> {
        let address = listener.local_addr()?;
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        let state = Arc::new(ServerState {
            engine: Arc::new(engine),
            access: Access::new(options.api_keys.clone(), options.rate_limit),
            http: HttpMetrics::default(),
            draining: AtomicBool::new(false),
            readers: Arc::new(Semaphore::new(cores)),
            options,
        });
        let (stop, stopped) = watch::channel(false);
        let router = routes::router(state.clone());
        let task = tokio::spawn(connection::serve(listener, router, state.clone(), stopped));
        Ok(Server {
            address,
            state,
            stop,
            task,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its connections share.
    pub fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    /// Refuses new requests, lets those that run end within the drain timeout, tells the others
    /// that it ends, and ends.
    pub async fn stop(self) {
        self.state.draining.store(true, Relaxed);
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}
