//! Promise: an HTTP/2 client that floods a connection with frames that cost more than they carry is told to calm down and
//! cut off; memory stays where it was and everybody else is served.

use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::frames::{
    self, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, PING, PRIORITY, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, frame,
};
use serin_e2e::{World, wait};

/// Memory that a gateway may keep of an attack, in KiB: buffers that were needed once, and noise.
const KEPT: u64 = 24 << 10;

async fn world() -> World {
    World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await
}

/// HEADERS of a request whose body is to come.
fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &frames::request("POST", "/sink", &[]))
}

/// Floods a new connection; the gateway has to calm it down, to count it, and to serve somebody else throughout.
async fn calms_down(world: &World, limit: &str, flood: Vec<u8>) {
    let counted =
        || async { world.gateway.metrics().await.sum("serin_edge_refused_total", &[&format!("limit=\"{limit}\"")]) };
    let (mut other, before) = (Conn::h2c(world.http()).await, counted().await);
    let code = Frames::start(world.http(), &[]).await.flood(flood).await;
    assert_eq!(code, Some(ENHANCE_YOUR_CALM), "{limit}");
    assert_eq!(counted().await, before + 1.0, "{limit}");
    let _ = Call::get("/").on(&mut other).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_reset() {
    let world = world().await;
    let reset =
        |nth: u32| [frames::get(2 * nth + 1, "/hold"), frame(RST_STREAM, 0, 2 * nth + 1, &[0, 0, 0, 8])].concat();
    calms_down(&world, "max_resets", (0..1_000).flat_map(reset).collect()).await;
    let most = u64::from(100_u32) + 1;
    assert!(world.origins[0].hits() <= most, "{} requests came through", world.origins[0].hits());
    let in_flight =
        || async { (world.gateway.metrics().await.sum("serin_requests_in_flight", &[]) == 0.0).then_some(()) };
    wait::until("nothing in flight", in_flight).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_and_settings() {
    let world = world().await;
    calms_down(&world, "max_pings", frame(PING, 0, 0, &[7; 8]).repeat(20_000)).await;
    calms_down(&world, "max_settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0]).repeat(2_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_without_anything_in_them() {
    let world = world().await;
    let empty = frame(DATA, 0, 1, b"");
    calms_down(&world, "max_empty_frames", [post(1), empty.repeat(1_000)].concat()).await;
    calms_down(&world, "max_empty_frames", frame(PRIORITY, 0, 1, &[0; 5]).repeat(1_000)).await;
    calms_down(&world, "max_empty_frames", frame(77, 0, 0, b"unknown").repeat(1_000)).await;
}

/// The codec's own limit is in the way of this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_without_an_end() {
    let world = world().await;
    let before = world.gateway.rss_kib();
    let begin = frame(HEADERS, END_STREAM, 1, &frames::request("GET", "/", &[]));
    let more = frame(CONTINUATION, 0, 1, &frames::block(&[("x-more", &"y".repeat(200))]));
    for flood in [more.repeat(20_000), frame(CONTINUATION, 0, 1, b"").repeat(20_000)] {
        let code = Frames::start(world.http(), &[]).await.flood([&begin[..], &flood].concat()).await;
        assert_eq!(code, Some(ENHANCE_YOUR_CALM));
    }
    assert!(world.gateway.rss_kib() < before + KEPT, "from {before} to {} KiB", world.gateway.rss_kib());
    let _ = world.send(Call::get("/")).await.expect(200);
}

/// A field of 4 KB that the table remembers, and a block of references to it: 16 KB that unpack to 60 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bomb_of_references() {
    let world = world().await;
    let _ = world.send(Call::get("/")).await.expect(200);
    let before = world.gateway.rss_kib();
    let mut remember = frames::request("GET", "/", &[]);
    let value = "b".repeat(4_000);
    // A literal with incremental indexing: the same as one without, but for its first byte.
    let mut field = frames::block(&[("a", &value)]);
    field[0] = 0x40;
    remember.extend(field);
    let mut bomb = frames::request("GET", "/", &[]);
    bomb.extend([0xbe].repeat(15_000));
    let heads = |stream, block: &[u8]| frame(HEADERS, END_HEADERS | END_STREAM, stream, block);
    let mut last = None;
    for _ in 0..20 {
        let mut conn = Frames::start(world.http(), &[]).await;
        conn.send(&heads(1, &remember)).await.unwrap();
        for nth in 1..=20 {
            // Whatever becomes of the connection, it must not cost memory.
            if conn.send(&heads(2 * nth + 1, &bomb)).await.is_err() {
                break;
            }
        }
        last = conn.find(|frame| frame.stream == 3 || frame.kind == frames::GOAWAY).await;
    }
    let grown = world.gateway.rss_kib().saturating_sub(before);
    assert!(grown < KEPT, "{grown} KiB, the last answer was {last:?}");
    assert_eq!(world.gateway.metrics().await.sum("serin_requests_total", &["code=\"5xx\""]), 0.0);
    let _ = world.send(Call::get("/")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_keeps_calm_is_not_cut_off() {
    let world = World::with(&["v1-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
        conf.bootstrap["limits"] = json!({"h2": {"max_pings": "50/s", "max_resets": "50/s"}});
    })
    .await;
    let mut conn = Frames::start(world.http(), &[]).await;
    for round in 0..3 {
        for nth in 0..15 {
            let stream = 2 * (round * 15 + nth) + 1;
            let reset = frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
            let window = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]);
            let sent = [frame(PING, 0, 0, &[7; 8]), frames::get(stream, "/hold"), reset, window].concat();
            conn.send(&sent).await.unwrap();
        }
    }
    conn.send(&frames::get(1_001, "/")).await.unwrap();
    let answer = conn.find(|frame| frame.stream == 1_001 || frame.kind == frames::GOAWAY).await.unwrap();
    assert_eq!(answer.kind, HEADERS, "{answer:?}");
}
