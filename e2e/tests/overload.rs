//! Promise: under more load than a service or the gateway can take, the surplus is refused early with 503 and
//! Retry-After, goodput stays at 90 % of the peak, no instance is blamed, and the admin API answers throughout.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn, Reply};
use serin_e2e::origin::{Behaviour, WORKERS};
use serin_e2e::{World, wait};
use tokio::net::TcpStream;

/// What a request takes that a worker has to itself.
const WORK: Duration = Duration::from_millis(40);
/// What users wait for an answer; a later one is of no use to them.
const PATIENCE: Duration = Duration::from_millis(250);

/// What clients saw.
#[derive(Debug, Default)]
struct Seen {
    /// Answers in time.
    good: u32,
    /// Answers too late.
    late: u32,
    /// Refusals.
    refused: u32,
    other: Vec<String>,
}

/// So many clients, each of which sends a request as soon as the last one is answered, but not faster than one in `gap`.
async fn load(world: &World, clients: u32, gap: Duration, lasts: Duration) -> Seen {
    let (address, end) = (world.http(), Instant::now() + lasts);
    let client = |number: u32| {
        tokio::spawn(async move {
            let mut conn = Conn::http1(address).await;
            let mut next = tokio::time::Instant::now() + gap * number / clients;
            let mut seen = Seen::default();
            while Instant::now() < end {
                tokio::time::sleep_until(next).await;
                let began = Instant::now();
                next = tokio::time::Instant::now() + gap;
                match Call::get("/").user("u").try_on(&mut conn).await {
                    Ok(reply) if reply.status == 200 && began.elapsed() <= PATIENCE => seen.good += 1,
                    Ok(reply) if reply.status == 200 => seen.late += 1,
                    Ok(reply) if is_refusal(&reply) => seen.refused += 1,
                    Ok(reply) => seen.other.push(format!("{}: {}", reply.status, reply.text())),
                    Err(error) => seen.other.push(error.to_string()),
                }
            }
            seen
        })
    };
    let clients: Vec<_> = (0..clients).map(client).collect();
    let mut all = Seen::default();
    for client in clients {
        let seen = client.await.unwrap_or_else(|error| Seen { other: vec![error.to_string()], ..Seen::default() });
        (all.good, all.late, all.refused) = (all.good + seen.good, all.late + seen.late, all.refused + seen.refused);
        all.other.extend(seen.other);
    }
    all
}

fn is_refusal(reply: &Reply) -> bool {
    reply.status == 503 && reply.header("retry-after") == "1"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_three_times_the_capacity_goodput_stays() {
    let world = World::with(&["v1-a"], |conf| {
        conf.service("users")["concurrency"] = json!({"adaptive": {"min": 4, "max": 500}});
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    world.origins[0].set(Behaviour::Work(WORK));
    // As many clients as workers: the peak.
    let peak = load(&world, WORKERS, Duration::ZERO, Duration::from_secs(3)).await;
    assert!(peak.refused == 0 && peak.other.is_empty(), "{peak:?}");
    // Three times as many requests, by clients that would make a queue of half a second.
    let (clients, capacity) = (100, f64::from(WORKERS) / WORK.as_secs_f64());
    let gap = Duration::from_secs_f64(f64::from(clients) / (3.0 * capacity));
    load(&world, clients, gap, Duration::from_secs(4)).await;
    let seen = load(&world, clients, gap, Duration::from_secs(3)).await;
    // What it would be without: nobody is refused, and everybody is served too late.
    world.gateway.set_switch("limits", true, None).await;
    load(&world, clients, gap, Duration::from_secs(1)).await;
    let without = load(&world, clients, gap, Duration::from_secs(2)).await;
    world.gateway.set_switch("limits", false, None).await;
    println!("peak {peak:?}, overloaded {seen:?}, without a limit {without:?}");
    assert!(without.refused == 0 && without.good < without.late, "{without:?}");
    assert!(seen.other.is_empty(), "{seen:?}");
    assert!(seen.refused > seen.good, "it was no overload: {seen:?}");
    assert!(f64::from(seen.good) >= 0.9 * f64::from(peak.good), "{seen:?}, at the peak {peak:?}");

    let metrics = world.gateway.metrics().await;
    assert_eq!(metrics.sum("serin_upstream_requests_total", &["code=\"5xx\""]), 0.0, "no instance is blamed");
    assert!(metrics.sum("serin_concurrency_refused_total", &["service=\"users\""]) >= f64::from(seen.refused));
    let limit = metrics.sum("serin_concurrency_limit", &["service=\"users\""]);
    assert!((4.0..90.0).contains(&limit), "{limit}");
    let shown = world.gateway.explain("GET", "http://api.example.com/", &[]).await;
    assert_eq!((&shown["concurrency"]["limit"], &shown["concurrency"]["in_flight"]), (&json!(limit as u64), &json!(0)));
    let view = world.gateway.admin_get("/v1/services/users").await;
    assert_eq!(view["concurrency"], shown["concurrency"]);
    let text = world.gateway.cli(&["instances"]).await.expect(0).stdout;
    assert!(text.contains(&format!("concurrency limit {limit}")), "{text}");
}

#[tokio::test]
async fn who_is_over_the_concurrency_limit_keeps_his_connection() {
    let world = World::with(&["v1-a"], |conf| {
        conf.service("users")["concurrency"] = json!({"adaptive": {"min": 2, "max": 2}});
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    let held = hold(&world, 2).await;
    let mut conn = Conn::http1(world.http()).await;
    for _ in 0..3 {
        assert!(is_refusal(&Call::get("/").on(&mut conn).await));
    }
    let mut grpc = Conn::h2c(world.http()).await;
    let call = Call::post("/a.B/C", "").header("content-type", "application/grpc");
    assert_eq!(call.on(&mut grpc).await.header("grpc-status"), "14");
    let shown = world.gateway.explain("GET", "http://api.example.com/", &[]).await;
    assert_eq!((&shown["answer"]["status"], &shown["concurrency"]["in_flight"]), (&json!(503), &json!(2)));
    world.gateway.set_switch("limits", true, None).await;
    let _ = Call::get("/").on(&mut conn).await.expect(200);
    world.gateway.set_switch("limits", false, None).await;
    assert!(is_refusal(&Call::get("/").on(&mut conn).await));
    world.origins[0].release();
    for held in held {
        let _ = held.await.unwrap().expect(200);
    }
    let _ = Call::get("/").on(&mut conn).await.expect(200);
    let log = world.gateway.access_log(1).await;
    assert!(log.iter().any(|line| line["error"] == "concurrency_limit"), "{log:?}");
}

/// Starts so many requests that wait for the origin to release them, and waits until they are there.
async fn hold(world: &World, count: u64) -> Vec<tokio::task::JoinHandle<Reply>> {
    let address = world.http();
    let held = (0..count).map(|_| tokio::spawn(async move { Call::get("/hold").to(address).await })).collect();
    wait::until("requests that are held", || async { (world.origins[0].hits() == count).then_some(()) }).await;
    held
}

async fn shedding(overload: Value) -> World {
    World::with(&["v1-a"], |conf| {
        conf.bootstrap["overload"] = overload;
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await
}

/// What `/readyz?verbose` says of a resource, or null.
async fn status(world: &World, resource: &str) -> Value {
    let ready = world.gateway.admin_get("/readyz?verbose").await;
    let mut all = ready["overload"].as_array().cloned().unwrap_or_default().into_iter();
    all.find(|status| status["resource"] == resource).unwrap_or_default()
}

#[tokio::test]
async fn too_many_requests_in_flight_are_shed() {
    let world = shedding(json!({"in_flight": 2})).await;
    let held = hold(&world, 2).await;
    let mut conn = Conn::http1(world.http()).await;
    for _ in 0..3 {
        assert!(is_refusal(&Call::get("/").on(&mut conn).await), "on a connection that is kept");
    }
    assert_eq!(
        status(&world, "in_flight").await,
        json!({
            "resource": "in_flight", "used": 2, "limit": 2, "shedding": true,
        })
    );
    assert_eq!(world.gateway.metrics().await.sum("serin_shed_total", &["resource=\"in_flight\""]), 3.0);
    world.origins[0].release();
    for held in held {
        let _ = held.await.unwrap().expect(200);
    }
    let _ = Call::get("/").on(&mut conn).await.expect(200);
    let log = world.gateway.access_log(4).await;
    assert!(log.iter().any(|line| line["error"] == "overload" && line["status"] == 503), "{log:?}");
}

#[tokio::test]
async fn without_memory_everything_is_shed_and_the_admin_api_answers() {
    let world = shedding(json!({"memory": "1MiB"})).await;
    wait::until("shedding", || async { (status(&world, "memory").await["shedding"] == true).then_some(()) }).await;
    let reply = world.send(Call::get("/")).await;
    assert!(is_refusal(&reply) && reply.header("connection") == "close", "{reply:?}");
    assert_eq!(world.origins[0].hits(), 0);
    let metrics = world.gateway.metrics().await;
    assert_eq!(metrics.sum("serin_shedding", &["resource=\"memory\""]), 1.0);
    assert!(metrics.sum("serin_resource_used", &["resource=\"memory\""]) > f64::from(1 << 20));
    world.gateway.set_switch("canary", true, None).await;
}

/// Fault 28, as far as it is shed: descriptors become short, and then there are enough again.
#[tokio::test]
async fn descriptors_that_become_short_are_shed_until_there_are_enough() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let most: f64 = line.split_whitespace().next().unwrap().parse().unwrap();
    // Some 150 descriptors, of which a gateway without connections has about 40.
    let share = format!("{:.2}%", (150.0 / most * 100.0).max(0.01));
    let world = shedding(json!({"descriptors": share})).await;
    let mut kept = Conn::http1(world.http()).await;
    let _ = Call::get("/").on(&mut kept).await.expect(200);
    let used = status(&world, "descriptors").await;
    let room = used["limit"].as_u64().unwrap() - used["used"].as_u64().unwrap();
    let mut idle = vec![];
    for _ in 0..room + 10 {
        idle.push(TcpStream::connect(world.http()).await.unwrap());
    }
    wait::until("shedding", || async { (status(&world, "descriptors").await["shedding"] == true).then_some(()) }).await;
    assert!(is_refusal(&Call::get("/").on(&mut kept).await), "who has a connection is told");
    let mut another = Conn::http1(world.http()).await;
    let refused = Call::get("/").try_on(&mut another).await;
    assert!(refused.is_err(), "a new connection is closed: {refused:?}");
    drop(idle);
    wait::until("enough", || async { (status(&world, "descriptors").await["shedding"] == false).then_some(()) }).await;
    let _ = world.send(Call::get("/")).await.expect(200);
}
