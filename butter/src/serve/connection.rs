//! Sockets: how many, how long, and when they end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep};

use super::ServerState;
use super::options::{ServeOptions, duration};

/// What a connection over the limit is told.
const TOO_MANY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 99\r\n\r\n{\"error\":{\"message\":\"too many connections\",\"type\":\"server_error\",\"param\":null,\"code\":\"overloaded\"}}";

/// Connections at once while the server ends, whose requests are refused.
const LATE_CONNECTIONS: usize = 64;
/// How long a listener rests that found no descriptor.
pub const PAUSE: Duration = Duration::from_millis(20);
/// How long requests that did not end in time have to take the news.
const FAREWELL: Duration = Duration::from_secs(2);

/// Accepts connections until `stop` is set. Then what runs may end within the drain timeout,
/// while new requests are told that the server ends; what still runs afterwards is told, too.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    state: Arc<ServerState>,
    mut stop: watch::Receiver<bool>,
) {
    let most = state.options.max_connections;
    let places = Arc::new(Semaphore::new(most));
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, _)) = accepted else {
            // No descriptor is left, or the client is gone already: a moment later is another try.
            sleep(PAUSE).await;
            continue;
        };
        greet(socket, &places, &router, &state, Some(stop.clone()));
    }
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let late = Arc::new(Semaphore::new(LATE_CONNECTIONS));
    let limit = duration(state.options.drain_timeout);
    let in_time = {
        let drained = tokio::time::timeout(limit, places.acquire_many(all));
        let mut drained = std::pin::pin!(drained);
        loop {
            tokio::select! {
                drained = drained.as_mut() => break drained.is_ok(),
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => greet(socket, &late, &router, &state, None),
                    Err(_) => sleep(PAUSE).await,
                },
            }
        }
    };
    drop(listener);
    if !in_time {
        tracing::warn!("some requests did not end within the drain timeout");
        state.engine.scheduler.end();
        let _ = tokio::time::timeout(FAREWELL, places.acquire_many(all)).await;
    }
    // A late request's refusal is on its way out.
    let _ = tokio::time::timeout(FAREWELL, late.acquire_many(LATE_CONNECTIONS as u32)).await;
}

/// Answers a connection if there is a place, else refuses it. Without `stop` it has one request.
fn greet(
    socket: TcpStream,
    places: &Arc<Semaphore>,
    router: &Router,
    state: &Arc<ServerState>,
    stop: Option<watch::Receiver<bool>>,
) {
    match places.clone().try_acquire_owned() {
        Ok(place) => {
            tokio::spawn(answer(socket, place, router.clone(), state.clone(), stop));
        }
        Err(_) => {
            tokio::spawn(refuse(socket));
        }
    }
}

/// Tells a connection that there is no place for it.
pub async fn refuse(mut socket: TcpStream) {
    let _ = socket.write_all(TOO_MANY.as_bytes()).await;
    let _ = socket.shutdown().await;
}

async fn answer(
    socket: TcpStream,
    place: OwnedSemaphorePermit,
    router: Router,
    state: Arc<ServerState>,
    stop: Option<watch::Receiver<bool>>,
) {
    state.http.connections.fetch_add(1, Relaxed);
    converse(socket, router, &state.options, stop).await;
    state.http.connections.fetch_sub(1, Relaxed);
    drop(place);
}

/// Answers the requests of a connection: one without `stop`, else all until then.
pub async fn converse(
    socket: TcpStream,
    router: Router,
    options: &ServeOptions,
    stop: Option<watch::Receiver<bool>>,
) {
    let _ = socket.set_nodelay(true);
    let stalled = duration(options.write_timeout);
    let io = Stalling {
        inner: TokioIo::new(socket),
        limit: stalled,
        waiting: None,
    };
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .keep_alive(stop.is_some())
        .header_read_timeout(duration(options.head_timeout))
        .max_buf_size(64 << 10);
    let connection = builder.serve_connection(io, TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stopped(stop) => None,
    };
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// When the server is told to end; never without `stop`.
async fn stopped(stop: Option<watch::Receiver<bool>>) {
    match stop {
        Some(mut stop) => {
            let _ = stop.wait_for(|stop| *stop).await;
        }
        None => std::future::pending().await,
    }
}

/// A socket whose writes fail when its other side takes nothing for a while.
struct Stalling<T> {
    inner: T,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<T> Stalling<T> {
    /// Starts the clock when a write waits, and stops it when one goes on.
    fn watch<R>(
        &mut self,
        poll: Poll<io::Result<R>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<R>> {
        if poll.is_ready() {
            self.waiting = None;
            return poll;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| {
            let end = Instant::now().checked_add(limit);
            Box::pin(match end {
                Some(end) => tokio::time::sleep_until(end),
                None => sleep(Duration::from_secs(1 << 30)),
            })
        });
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: Read + Unpin> Read for Stalling<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for Stalling<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(poll, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write_vectored(context, buffers);
        self.watch(poll, context)
    }
}

#[cfg(test)]
mod tests {
    use super::TOO_MANY;

    #[test]
    fn the_refusal_is_as_long_as_it_says() {
        let (head, body) = TOO_MANY.split_once("\r\n\r\n").expect("a head");
        let length = format!("content-length: {}", body.len());
        assert!(head.contains(&length), "{}", body.len());
        let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(json["error"]["code"], "overloaded");
    }
}
