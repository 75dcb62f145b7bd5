//! A server while its model loads: it lives, is not ready and says how far it is, refuses everything
//! else, and hands its port over.

mod support {
    pub mod gguf_writer;
    pub mod http;
    pub mod mock;
}

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use butter::checkpoint::Checkpoint;
use butter::engine::{CacheType, DeviceModel, EngineOptions, ProductInputs};
use butter::serve::Server;
use butter::serve::loading::{LoadProgress, Loading};
use butter::serve::options::Layer;
use iron_runtime::Backend;
use support::http::{CHAT, Reply};

fn asked(address: SocketAddr, head: &str, body: &[u8]) -> Reply {
    let mut socket = TcpStream::connect(address).expect("connects");
    let limit = Some(Duration::from_secs(30));
    socket.set_read_timeout(limit).expect("a limit");
    let length = body.len();
    let head = format!("{head} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    socket.write_all(head.as_bytes()).expect("written");
    socket.write_all(body).expect("written");
    Reply::read(socket)
}

#[test]
fn a_server_says_how_far_its_model_is_loaded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models/llama/bf16");
    let checkpoint = Checkpoint::open(&path).expect("opens");
    let progress = Arc::new(LoadProgress::new(vec![checkpoint.catalogue.progress()]));
    let layer = Layer {
        port: Some(0),
        max_body_bytes: Some(1 << 16),
        api_keys: Some(vec!["key".to_owned()]),
        ..Layer::default()
    };
    let options = layer.resolve().expect("valid");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let listener = runtime.block_on(Server::bind(&options)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let loading = runtime.block_on(async { Loading::start(listener, &options, progress.clone()) });
    // Orchestrators have no keys.
    assert_eq!(asked(address, "GET /health/live", b"").status, 200);
    let ready = || {
        let reply = asked(address, "GET /health/ready", b"");
        assert_eq!(reply.error(), (503, "loading".to_owned(), String::new()));
        let progress = &reply.json()["progress"];
        let number = |name: &str| progress[name].as_u64().expect("a number");
        (number("bytes_read"), number("bytes"))
    };
    let total = checkpoint.catalogue.bytes() as u64;
    assert_eq!(ready(), (0, total));
    for (head, body) in [
        (format!("POST {CHAT}"), &b"{\"model\": \"x\"}"[..]),
        ("POST /v1/completions".to_owned(), &[b'x'; 3 << 20]),
        ("GET /".to_owned(), b""),
        ("DELETE /nowhere".to_owned(), b""),
        ("POST /health/ready".to_owned(), b"not json"),
    ] {
        let reply = asked(address, &head, body);
        assert_eq!(reply.error().1, "loading", "{head}");
        assert_eq!(reply.status, 503, "{head}");
        assert!(reply.head.contains("retry-after: 2"), "{}", reply.head);
        assert!(
            reply.json()["error"]["message"]
                .as_str()
                .expect("text")
                .contains("MiB")
        );
    }
    let device = iron_runtime::open(Backend::Cpu).expect("the processor");
    let engine = EngineOptions {
        dtype: iron_ir::Scalar::F32,
        product_inputs: ProductInputs::Exact,
        max_sequences: 1,
        max_step_rows: 16,
        cache_positions: 128,
        cache: CacheType::Activations,
    };
    DeviceModel::load(device, &checkpoint, engine).expect("loads");
    // All of them, and some maybe more than once.
    assert_eq!(ready(), (total, total));
    progress.weights_are_there();
    let reply = asked(address, "GET /health/ready", b"");
    assert!(reply.body.contains("kernels"), "{}", reply.body);
    // One that is slow delays nobody, and the port goes over to the server.
    let mut slow = TcpStream::connect(address).expect("connects");
    slow.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
        .expect("written");
    assert_eq!(asked(address, "GET /health/live", b"").status, 200);
    let listener = runtime.block_on(loading.end()).expect("comes back");
    assert_eq!(listener.local_addr().expect("an address"), address);
    slow.write_all(b"123456789").expect("written");
    assert_eq!(Reply::read(slow).status, 503);
}
