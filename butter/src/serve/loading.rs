//! The server before its model is there: it lives, it is not ready, and says how far it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::connection::{self, converse, refuse};
use super::error::{ApiError, json_response};
use super::options::{ServeOptions, duration};
use super::routes::{live, read_bytes};
use crate::catalogue::ReadProgress;

/// Connections at once, each of which has one request.
const CONNECTIONS: usize = 64;
/// Seconds after which a client may come again.
const RETRY_AFTER: u64 = 2;

/// How far a model is loaded.
#[derive(Default, Debug)]
pub struct LoadProgress {
    checkpoints: Vec<ReadProgress>,
    has_weights: AtomicBool,
}

impl LoadProgress {
    /// Of the checkpoints that are loaded; none where weights are random.
    pub fn new(checkpoints: Vec<ReadProgress>) -> LoadProgress {
        LoadProgress {
            checkpoints,
            has_weights: AtomicBool::new(false),
        }
    }

    /// Bytes of tensors that were read, and of all.
    pub fn bytes(&self) -> (u64, u64) {
        let all = self.checkpoints.iter().map(ReadProgress::bytes);
        let (read, total) = all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        match self.has_weights.load(Relaxed) {
            // Some tensors may serve nothing.
            true => (total, total),
            false => (read, total),
        }
    }

    /// Says that all weights are on their device; what is left is to compile kernels and try them.
    pub fn weights_are_there(&self) {
        self.has_weights.store(true, Relaxed);
    }

    /// Whether [`Self::weights_are_there`] was said.
    pub fn has_weights(&self) -> bool {
        self.has_weights.load(Relaxed)
    }

    fn message(&self) -> String {
        let (read, total) = self.bytes();
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let how_far = match (self.has_weights(), total) {
            (true, _) => "its weights are there, its kernels are tried".to_owned(),
            (false, 0) => "its weights are made".to_owned(),
            (false, _) => format!(
                "{:.1} of {:.1} MiB of weights were read",
                mebibytes(read),
                mebibytes(total)
            ),
        };
        format!("the model is loading: {how_far}")
    }
}

/// A server without a model, on the port of the one to come.
pub struct Loading {
    stop: watch::Sender<bool>,
    task: JoinHandle<TcpListener>,
}

impl Loading {
    /// Answers on a port that was taken.
    pub fn start(
        listener: TcpListener,
        options: &ServeOptions,
        progress: Arc<LoadProgress>,
    ) -> Loading {
        let (stop, stopped) = watch::channel(false);
        let options = Arc::new(options.clone());
        let router = Router::new()
            .route("/health/live", get(live))
            .fallback(not_ready)
            .with_state((progress, options.clone()));
        let task = tokio::spawn(accept(listener, router, options, stopped));
        Loading { stop, task }
    }

    /// Stops answering; gives the port back, on which clients that come meanwhile wait.
    pub async fn end(self) -> std::io::Result<TcpListener> {
        let _ = self.stop.send(true);
        self.task.await.map_err(std::io::Error::other)
    }
}

async fn accept(
    listener: TcpListener,
    router: Router,
    options: Arc<ServeOptions>,
    mut stop: watch::Receiver<bool>,
) -> TcpListener {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return listener,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(connection::PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tokio::spawn(refuse(socket));
            continue;
        };
        let (router, options) = (router.clone(), options.clone());
        tokio::spawn(async move {
            converse(socket, router, &options, None).await;
            drop(place);
        });
    }
}

/// The answer to everything but the question whether the process lives.
async fn not_ready(
    State((progress, options)): State<(Arc<LoadProgress>, Arc<ServeOptions>)>,
    request: Request,
) -> Response<Body> {
    let is_probe = request.uri().path() == "/health/ready";
    // Whoever still sends would not hear the answer.
    let body = read_bytes(request, options.max_body_bytes);
    let _ = tokio::time::timeout(duration(options.body_timeout), body).await;
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let error = ApiError::new(status, progress.message()).code("loading");
    let mut object = error.object();
    if is_probe {
        let (read, total) = progress.bytes();
        object["status"] = "loading".into();
        object["progress"] = json!({"bytes_read": read, "bytes": total});
    }
    let mut response = json_response(status, &object);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}
