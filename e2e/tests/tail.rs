//! Promise: decisions can be watched as they happen, filtered, without holding a request up, across a restart.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may panic in their helpers as well")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::gateway::binary;
use serin_e2e::{World, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// `serin tail` as it runs; it ends with its handle.
struct Tail {
    child: Child,
    lines: Receiver<String>,
    notes: Receiver<String>,
}

impl Tail {
    /// Starts it and waits until it listens.
    async fn start(world: &World, args: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .arg("tail")
            .args(args)
            .env("SERIN_ADMIN", format!("http://{}", world.gateway.admin_address()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = read(child.stdout.take().unwrap());
        let notes = read(child.stderr.take().unwrap());
        let tail = Self { child, lines, notes };
        let began = Instant::now();
        while !tail.is_heard(world).await {
            assert!(began.elapsed() < wait::DEADLINE, "nobody listens");
        }
        tail
    }

    /// Whether a request shows; those of this user are passed over afterwards.
    async fn is_heard(&self, world: &World) -> bool {
        let call = Call::get("/probe").user("anna").header("x-traffic-tag", "canary");
        let _ = world.send(call).await;
        self.lines.recv_timeout(Duration::from_millis(50)).is_ok()
    }

    /// The next line that is of no probe.
    fn next(&self) -> String {
        loop {
            let line = self.lines.recv_timeout(wait::DEADLINE).expect("a line");
            if !line.contains("/probe") {
                return line;
            }
        }
    }

    fn next_json(&self) -> Value {
        let line = self.next();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (lines, received) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    received
}

async fn start() -> World {
    World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.bootstrap["drain"] = json!({"readiness": "100ms", "idle": "100ms", "timeout": "60s"});
        conf.service("users")["tags"] =
            json!([{"name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2", "trust": "any"}]);
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_are_shown_as_they_happen() {
    let world = start().await;
    let (people, all) = (Tail::start(&world, &[]).await, Tail::start(&world, &["--json"]).await);
    let only = Tail::start(&world, &["--json", "--service", "users", "--subset", "v2"]).await;
    let anna = Tail::start(&world, &["--json", "--user", "anna"]).await;
    let _ = world.send(Call::get("/one").user("berta")).await.expect(200);
    let _ = world.send(Call::get("/status/503").user("anna").header("x-traffic-tag", "canary")).await.expect(503);
    let line = people.next();
    for part in [" 200 ", " ms  GET api.example.com/one -> users/v1 at 127.0.0.1:", "(bucket, bucket "] {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
    assert!(people.next().contains("(tag canary"));
    let first = all.next_json();
    let wanted =
        json!({"method": "GET", "path": "/one", "status": 200, "service": "users", "subset": "v1", "attempts": 1});
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(first[key], *value, "{key} in {first}");
    }
    assert_eq!(first["bucket"].as_str().unwrap().len(), 16, "{first}");
    assert!(!first.to_string().contains("berta"), "the user's key is nobody's business: {first}");
    for tail in [&only, &anna] {
        let line = tail.next_json();
        assert_eq!((&line["status"], &line["subset"], &line["tag"]), (&json!(503), &json!("v2"), &json!("canary")));
    }
}

#[tokio::test]
async fn who_asks_for_what_is_not_there_is_told() {
    let world = start().await;
    for (query, part) in [("service=usres", "usres"), ("subset=v9", "v9"), ("service=users&subset=v9", "v9")] {
        let reply = world.gateway.admin(Call::get(&format!("/v1/tail?{query}"))).await.expect(404);
        assert!(reply.text().contains(part), "{}", reply.text());
    }
    let failed = world.gateway.cli(&["tail", "--service", "usres"]).await.expect(1);
    assert!(failed.stderr.contains("usres"), "{failed:?}");
}

/// Opens a stream of all decisions, which nobody reads for now.
async fn slow_reader(world: &World) -> TcpStream {
    let (status, stream) = tail_status(world).await;
    assert_eq!(status, 200);
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_no_request_up_and_is_told_what_he_lost() {
    let world = start().await;
    let mut stream = slow_reader(&world).await;
    let (mut conn, path) = (Conn::http1(world.http()).await, format!("/{}", "path".repeat(1_500)));
    let began = Instant::now();
    let mut requests = 0;
    while requests % 100 != 0 || world.gateway.metrics().await.sum("serin_tail_dropped_total", &[]) < 10.0 {
        let sent = Instant::now();
        let _ = Call::get(&path).on(&mut conn).await.expect(200);
        assert!(sent.elapsed() < wait::DEADLINE, "a reader who sleeps held a request up");
        requests += 1;
        assert!(requests < 5_000 && began.elapsed() < Duration::from_secs(60), "nothing was dropped");
    }
    let (mut text, mut buffer) = (String::new(), vec![0; 64 << 10]);
    let began = Instant::now();
    while !text.contains("{\"dropped\": ") {
        assert!(began.elapsed() < wait::DEADLINE, "no word of what was lost");
        match tokio::time::timeout(Duration::from_millis(100), stream.read(&mut buffer)).await {
            Ok(read) => text.push_str(&String::from_utf8_lossy(&buffer[..read.unwrap()])),
            Err(_) => drop(Call::get("/more").on(&mut conn).await.expect(200)),
        }
    }
}

#[tokio::test]
async fn a_reader_who_leaves_leaves_nothing_behind() {
    let world = start().await;
    for _ in 0..40 {
        drop(slow_reader(&world).await);
    }
    // There are 32 places: all are free again once the gateway has seen that the readers are gone.
    let mut held = vec![];
    for _ in 0..32 {
        let next = wait::until("a place", || async {
            let reply = tokio::time::timeout(Duration::from_millis(500), tail_status(&world)).await;
            reply.ok().filter(|(status, _)| *status == 200).map(|(_, stream)| stream)
        });
        held.push(next.await);
    }
    assert_eq!(tail_status(&world).await.0, 503);
}

async fn tail_status(world: &World) -> (u16, TcpStream) {
    let mut stream = TcpStream::connect(world.gateway.admin_address()).await.unwrap();
    let request = format!("GET /v1/tail HTTP/1.1\r\nhost: {}\r\n\r\n", world.gateway.admin_address());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    (String::from_utf8_lossy(&head[9..]).parse().unwrap(), stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_goes_on_after_a_restart_and_ends_by_ctrl_c() {
    let world = start().await;
    let mut tail = Tail::start(&world, &["--json"]).await;
    world.gateway.restart().await;
    let note = tail.notes.recv_timeout(wait::DEADLINE).expect("a note");
    assert!(note.contains("waiting for it to come back"), "{note}");
    let note = tail.notes.recv_timeout(wait::DEADLINE).expect("a note");
    assert!(note.contains("listening again"), "{note}");
    let _ = world.send(Call::get("/again")).await.expect(200);
    assert_eq!(tail.next_json()["path"], "/again");
    let killed = Command::new("kill").args(["-INT", &tail.child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    wait::until("its end", || {
        let ended = tail.child.try_wait().unwrap();
        async move { ended }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_stream_does_not_keep_the_gateway_from_stopping() {
    let world = start().await;
    let _tail = Tail::start(&world, &["--json"]).await;
    let pid = world.gateway.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let began = Instant::now();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    wait::until("the gateway to end", || async { (state().is_empty() || state().contains(") Z ")).then_some(()) })
        .await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_with_whoever_reads_it() {
    let world = start().await;
    let mut shell = Command::new("sh")
        .args(["-c", "\"$0\" tail --json | head -n 1"])
        .arg(binary())
        .env("SERIN_ADMIN", format!("http://{}", world.gateway.admin_address()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = read(shell.stdout.take().unwrap());
    let began = Instant::now();
    while lines.recv_timeout(Duration::from_millis(50)).is_err() {
        assert!(began.elapsed() < wait::DEADLINE, "no line came");
        let _ = world.send(Call::get("/probe").user("anna")).await;
    }
    // Nothing happens any more that it could notice it by.
    let ended = wait::until("the tail to end", || std::future::ready(shell.try_wait().unwrap())).await;
    assert!(ended.success());
}
