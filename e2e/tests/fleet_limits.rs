//! Promise: gateways that share a Redis admit no more together than a limit says, wherever the load is, and hardly less;
//! and a Redis that is killed, hung or slow (fault 26) fails no request and keeps none waiting: each gateway then keeps to
//! its share within a second, and the fleet shares again within a second of the return.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::servers::Redis;
use serin_e2e::tls::Authority;
use serin_e2e::wire::Wire;
use serin_e2e::world::{origins, users_conf};
use serin_e2e::{Conf, Gateway, Origin, wait};
use tokio::task::JoinSet;

/// What is promised within a second gets as long again for whatever else the machine does.
const SOON: Duration = Duration::from_secs(2);
/// A deadline for Redis that only a server which is really gone misses, also beside other tests.
const PATIENT: &str = "100ms";

struct Fleet {
    gateways: Vec<Gateway>,
    origins: Vec<Origin>,
}

impl Fleet {
    /// So many gateways with a rule, which know of each other.
    async fn start(count: usize, redis: Value, rule: Value) -> Self {
        let fleet = Self::launch(count, redis, rule).await;
        fleet.shared(true).await;
        fleet
    }

    async fn launch(count: usize, redis: Value, rule: Value) -> Self {
        let origins = origins(&["v1-a"]).await;
        let mut gateways = vec![];
        for number in 0..count {
            let mut conf = conf(&origins, &redis, &rule);
            conf.bootstrap["node"]["id"] = json!(format!("gw-{number}"));
            gateways.push(Gateway::start(conf).await);
        }
        Self { gateways, origins }
    }

    /// Waits until all gateways share their limits, or none does.
    async fn shared(&self, shared: bool) {
        for gateway in &self.gateways {
            let what = if shared { "limits to be shared" } else { "limits to be local" };
            wait::until(what, || async {
                let limits = limits(gateway).await;
                let replicas = !shared || limits["replicas"] == json!(self.gateways.len());
                (replicas && limits["by"] == if shared { "redis" } else { "local" }).then_some(())
            })
            .await;
        }
    }

    /// The same, and says how long it took.
    async fn soon_shared(&self, shared: bool, since: Instant) -> Duration {
        self.shared(shared).await;
        let took = since.elapsed();
        assert!(took < SOON, "took {took:?}");
        took
    }

    /// How many of so many requests of a user are let through by each gateway, in turn.
    async fn admitted(&self, user: &str, each: usize) -> Vec<usize> {
        let mut admitted = vec![];
        for gateway in &self.gateways {
            admitted.push(admitted_by(gateway, user, each).await);
        }
        admitted
    }
}

fn conf(origins: &[Origin], redis: &Value, rule: &Value) -> Conf {
    let mut conf = users_conf(origins);
    conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    conf.bootstrap["limits"] = json!({"redis": redis});
    conf.service("users")["rate_limits"] = json!([rule]);
    conf
}

/// What `/readyz?verbose` says of the limits.
async fn limits(gateway: &Gateway) -> Value {
    gateway.admin_get("/readyz?verbose").await["documents"]["limits"].clone()
}

/// A number of `/metrics`; 0 if it is not there.
async fn metric(gateway: &Gateway, series: &str) -> f64 {
    let page = Call::get("/metrics").host(&gateway.admin_address().to_string()).to(gateway.admin_address()).await;
    let page = page.expect(200).text();
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |number| number.parse().unwrap())
}

async fn admitted_by(gateway: &Gateway, user: &str, count: usize) -> usize {
    let mut conn = Conn::http1(gateway.http()).await;
    let mut admitted = 0;
    for _ in 0..count {
        match Call::get("/").user(user).on(&mut conn).await.status.as_u16() {
            200 => admitted += 1,
            429 => {}
            other => panic!("{other}"),
        }
    }
    admitted
}

/// 30 at once, and then one in two minutes, which no test waits for.
fn thirty() -> Value {
    json!({"name": "per-user", "key": [{"header": "x-user-id"}], "limit": "30/h", "burst": 30, "scope": "fleet"})
}

fn at(redis: &Redis) -> Value {
    json!({"url": redis.url(), "deadline": PATIENT})
}

#[derive(Default)]
struct Tally {
    admitted: usize,
    refused: usize,
    times: Vec<Duration>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.refused += other.refused;
        self.times.extend(other.times);
    }

    fn p99(&mut self) -> Duration {
        self.times.sort_unstable();
        self.times[self.times.len() * 99 / 100]
    }
}

/// Sends so many requests a second to each gateway until `end`; nothing but 200 and 429 may come of them.
async fn load(fleet: &Fleet, rates: &[u32], end: Instant) -> Tally {
    const CLIENTS: u32 = 4;
    let mut clients = JoinSet::new();
    for (gateway, rate) in fleet.gateways.iter().zip(rates) {
        for client in 0..CLIENTS {
            let (address, gap) = (gateway.http(), Duration::from_secs(CLIENTS.into()) / *rate);
            clients.spawn(async move {
                let mut conn = Conn::http1(address).await;
                let mut tally = Tally::default();
                let mut due = tokio::time::interval(gap);
                due.reset_after(gap * client / CLIENTS);
                while Instant::now() < end {
                    due.tick().await;
                    let began = Instant::now();
                    match Call::get("/").on(&mut conn).await.status.as_u16() {
                        200 => tally.admitted += 1,
                        429 => tally.refused += 1,
                        other => panic!("{other}"),
                    }
                    tally.times.push(began.elapsed());
                }
                tally
            });
        }
    }
    let mut all = Tally::default();
    while let Some(tally) = clients.join_next().await {
        all.add(tally.unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_under_skewed_load_admit_the_limit() {
    const LIMIT: f64 = 150.0;
    const BURST: f64 = 30.0;
    let redis = Redis::start().await;
    let rule = json!({"name": "all", "limit": "150/s", "burst": 30, "scope": "fleet"});
    let fleet = Fleet::start(3, at(&redis), rule).await;
    let began = Instant::now();
    // 80 %, 15 % and 5 % of three times the limit.
    let tally = load(&fleet, &[360, 68, 22], began + Duration::from_secs(4)).await;
    let took = began.elapsed().as_secs_f64();
    let sent = (tally.admitted + tally.refused) as f64;
    assert!(sent > 1.5 * LIMIT * took, "too little load to tell: {sent} in {took} s");
    let admitted = tally.admitted as f64;
    assert!(admitted <= LIMIT * took * 1.05 + BURST, "{admitted} in {took} s");
    assert!(admitted >= LIMIT * took * 0.9, "{admitted} in {took} s");
    assert_eq!(fleet.origins[0].hits(), tally.admitted as u64, "what is refused goes nowhere");
    let (mut waits, mut fallback) = (0.0, 0.0);
    for gateway in &fleet.gateways {
        waits += metric(gateway, "serin_rate_limit_waits_total").await;
        let of = r#"serin_rate_limit_decisions_total{outcome="fallback",owner="users",rule="all",scope="service"}"#;
        fallback += metric(gateway, of).await;
    }
    assert!(waits < sent * 0.6, "{waits} of {sent} waited");
    assert!(fallback < sent * 0.02, "{fallback} of {sent} were decided locally");
}

#[tokio::test]
async fn a_key_has_one_bucket_in_the_fleet() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(3, at(&redis), thirty()).await;
    assert_eq!(fleet.admitted("anna", 20).await, [20, 10, 0]);
    assert_eq!(fleet.admitted("berta", 12).await, [12, 12, 6]);
    // Clients are told where they stand in the fleet.
    let mut conn = Conn::http1(fleet.gateways[1].http()).await;
    let reply = Call::get("/").user("carla").on(&mut conn).await.expect(200);
    assert_eq!(reply.header("ratelimit-policy"), "\"per-user\";q=30;w=3600");
    assert!(reply.header("ratelimit").starts_with("\"per-user\";r=29;t="), "{}", reply.header("ratelimit"));
    let reply = Call::get("/").user("anna").on(&mut conn).await.expect(429);
    let wait: u64 = reply.header("retry-after").parse().unwrap();
    assert!((100..=120).contains(&wait), "{wait}");
    // And so are operators.
    let question = ["explain", "get", "http://api.example.com/", "-H", "x-user-id:anna"];
    let told = fleet.gateways[2].cli(&question).await.expect(0).stdout;
    assert!(told.contains("per-user of the service: limited, 0 left in the fleet (header x-user-id = anna)"), "{told}");
    let view = fleet.gateways[0].admin_get("/v1/services/users").await;
    assert_eq!(view["rate_limits"][0]["fleet"], json!(true));
    // Redis knows nobody by name, and forgets who has a whole quota again.
    let keys = redis.ask(&["KEYS", "*"]).await;
    assert!(keys.contains("serin:limit:service/users/per-user:") && !keys.contains("anna"), "{keys}");
    // A server that was made to forget the scripts is told again.
    assert!(redis.ask(&["SCRIPT", "FLUSH"]).await.starts_with("+OK"));
    assert_eq!(fleet.admitted("dora", 20).await, [20, 10, 0]);
    assert_eq!(limits(&fleet.gateways[0]).await["lost"], json!(0));
}

#[tokio::test]
async fn a_killed_redis_is_done_without() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(3, at(&redis), thirty()).await;
    let killed = Instant::now();
    redis.kill();
    // Nobody waits for it to be noticed.
    assert!(admitted_by(&fleet.gateways[0], "anna", 20).await >= 10);
    let took = fleet.soon_shared(false, killed).await;
    assert_eq!(fleet.admitted("berta", 30).await, [10, 10, 10], "each has its share");
    assert_eq!(metric(&fleet.gateways[0], "serin_rate_limit_fallback").await, 1.0);
    assert_eq!(metric(&fleet.gateways[0], "serin_source_reachable{source=\"limits\"}").await, 0.0);
    let question = ["explain", "get", "http://api.example.com/", "-H", "x-user-id:berta"];
    let told = fleet.gateways[2].cli(&question).await.expect(0).stdout;
    assert!(told.contains("0 left of this gateway's share, as Redis does not answer"), "{told}");
    assert!(serin_e2e::gateway::is_ready(fleet.gateways[0].admin_address()).await, "readiness does not depend on it");
    redis.revive().await;
    let back = fleet.soon_shared(true, Instant::now()).await;
    assert_eq!(fleet.admitted("carla", 20).await, [20, 10, 0]);
    assert_eq!(metric(&fleet.gateways[0], "serin_rate_limit_fallback").await, 0.0);
    eprintln!("killed: local after {took:?}, shared after {back:?}");
}

#[tokio::test]
async fn a_hung_redis_is_done_without() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(3, at(&redis), thirty()).await;
    for round in 0..2 {
        let hung = Instant::now();
        redis.hang();
        let took = fleet.soon_shared(false, hung).await;
        assert_eq!(fleet.admitted(&format!("berta-{round}"), 30).await, [10, 10, 10], "each has its share");
        redis.resume();
        let back = fleet.soon_shared(true, Instant::now()).await;
        assert_eq!(fleet.admitted(&format!("carla-{round}"), 20).await, [20, 10, 0]);
        eprintln!("hung: local after {took:?}, shared after {back:?}");
    }
}

/// With the deadline that is the default; 50 ms is ten times as much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_redis_is_done_without() {
    let redis = Redis::start().await;
    let wire = Wire::to(redis.address).await;
    let fleet = Fleet::start(3, json!(format!("redis://{}", wire.address)), thirty()).await;
    let slow = Instant::now();
    // In each direction: 50 ms in all.
    wire.delay(Duration::from_millis(25));
    let took = fleet.soon_shared(false, slow).await;
    assert_eq!(fleet.admitted("berta", 30).await, [10, 10, 10], "each has its share");
    wire.delay(Duration::ZERO);
    let back = fleet.soon_shared(true, Instant::now()).await;
    // Beside other tests an answer may be late now and then; a whole user in a row is not.
    let number = std::sync::atomic::AtomicUsize::new(0);
    wait::until("a user to be shared", || async {
        let user = format!("carla-{}", number.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        (fleet.admitted(&user, 20).await == [20, 10, 0]).then_some(())
    })
    .await;
    eprintln!("slow: local after {took:?}, shared after {back:?}");
}

/// What requests wait for while Redis comes and goes, under load, with the deadline that is the default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_do_not_feel_it() {
    const LASTS: Duration = Duration::from_millis(1_500);
    let redis = Redis::start().await;
    let wire = Wire::to(redis.address).await;
    let rule = json!({"name": "all", "limit": "100/s", "burst": 20, "scope": "fleet"});
    let fleet = Fleet::start(2, json!(format!("redis://{}", wire.address)), rule).await;
    let run = || async { load(&fleet, &[100, 50], Instant::now() + LASTS).await };
    let calm = run().await.p99();
    let mut seen = vec![("calm", calm)];
    // In each direction: 50 ms in all.
    wire.delay(Duration::from_millis(25));
    seen.push(("slow", run().await.p99()));
    wire.delay(Duration::ZERO);
    fleet.shared(true).await;
    redis.hang();
    seen.push(("hung", run().await.p99()));
    redis.resume();
    fleet.shared(true).await;
    redis.kill();
    seen.push(("killed", run().await.p99()));
    redis.revive().await;
    fleet.shared(true).await;
    eprintln!("p99 of requests: {seen:?}");
    for (what, p99) in seen {
        assert!(p99 < calm + Duration::from_millis(100), "{what}: {p99:?}, otherwise {calm:?}");
    }
}

#[tokio::test]
async fn a_rule_may_refuse_everything_without_redis() {
    let redis = Redis::start().await;
    let mut rule = thirty();
    rule["fail_closed"] = json!(true);
    let fleet = Fleet::start(1, at(&redis), rule).await;
    assert_eq!(fleet.admitted("anna", 3).await, [3]);
    redis.kill();
    fleet.shared(false).await;
    let reply = Call::get("/").user("anna").to(fleet.gateways[0].http()).await.expect(429);
    assert_eq!(reply.header("retry-after"), "1");
    // The kill switch of all limits is above it.
    let _ = fleet.gateways[0].cli(&["switch", "limits", "on", "--reason", "redis"]).await.expect(0);
    assert_eq!(fleet.admitted("anna", 3).await, [3]);
}

/// A gateway starts without Redis, and shares as soon as it is there.
#[tokio::test]
async fn a_gateway_starts_without_redis() {
    let redis = Redis::start().await;
    redis.kill();
    let mut place = at(&redis);
    place["replicas"] = json!(5);
    let fleet = Fleet::launch(1, place, thirty()).await;
    assert_eq!(fleet.admitted("anna", 10).await, [6], "a share of as many as the document says");
    let status = limits(&fleet.gateways[0]).await;
    assert_eq!((&status["reachable"], &status["by"], &status["replicas"]), (&json!(false), &json!("local"), &json!(5)));
    assert!(status["problem"].is_string(), "{status}");
    redis.revive().await;
    wait::until("limits to be shared", || async { (limits(&fleet.gateways[0]).await["by"] == "redis").then_some(()) })
        .await;
    assert_eq!(fleet.admitted("berta", 40).await, [30]);
}

/// Passwords are in files or in the environment, and nobody is told them.
#[tokio::test]
async fn passwords_are_never_shown() {
    const PASSWORD: &str = "correct-horse-battery";
    let redis = Redis::with_password(PASSWORD).await;
    let origins = origins(&["v1-a"]).await;
    for by_file in [true, false] {
        let dir = serin_e2e::gateway::directory();
        std::fs::write(dir.path().join("redis.password"), format!("{PASSWORD}\n")).unwrap();
        let mut place = at(&redis);
        let key = if by_file { "password_file" } else { "password_env" };
        place[key] = json!(if by_file { "redis.password" } else { "REDIS_PASSWORD" });
        let conf = conf(&origins, &place, &thirty()).with_env("REDIS_PASSWORD", PASSWORD);
        let fleet = Fleet { gateways: vec![Gateway::start_in(dir, conf).await], origins: vec![] };
        fleet.shared(true).await;
        assert_eq!(fleet.admitted(key, 40).await, [30]);
        // A wrong one is told by the server, at the next connection.
        let gateway = &fleet.gateways[0];
        if by_file {
            std::fs::write(gateway.dir().join("redis.password"), "wrong-horse").unwrap();
            redis.kill();
            fleet.shared(false).await;
            redis.revive().await;
            wait::until("the password to be refused", || async {
                (metric(gateway, "serin_redis_failures_total{kind=\"auth\"}").await > 0.0).then_some(())
            })
            .await;
        }
        let mut said = gateway.output();
        for path in ["/v1/config", "/readyz?verbose"] {
            said += &gateway.admin_get(path).await.to_string();
        }
        assert!(!said.contains("horse"), "{said}");
    }
}

/// Over TLS, with an authority that is configured, and with nobody else's.
#[tokio::test]
async fn redis_is_reached_over_tls() {
    let (ours, others) = (Authority::new(), Authority::new());
    let certificates = serin_e2e::gateway::directory();
    let (cert, key) = ours.issue("localhost").write(certificates.path(), "redis");
    let redis = Redis::with_tls(&cert, &key).await;
    let origins = origins(&["v1-a"]).await;
    for (authority, trusted) in [(&ours, true), (&others, false)] {
        let dir = serin_e2e::gateway::directory();
        std::fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
        let place = json!({"url": format!("rediss://{}", redis.tls), "ca": "ca.pem", "deadline": PATIENT});
        let gateway = Gateway::start_in(dir, conf(&origins, &place, &thirty())).await;
        wait::until("the server to be tried", || async {
            let limits = limits(&gateway).await;
            let tried = limits["problem"].as_str().is_none_or(|problem| problem != "not connected yet");
            (tried && (limits["by"] == "redis") == trusted).then_some(())
        })
        .await;
        if trusted {
            assert_eq!(admitted_by(&gateway, "anna", 40).await, 30);
            assert!(redis.ask(&["DBSIZE"]).await.starts_with(":2"), "the user's bucket, and the gateways");
        } else {
            let told = limits(&gateway).await["problem"].to_string();
            assert!(told.contains("certificate"), "{told}");
        }
    }
}

#[tokio::test]
async fn mistakes_are_told_with_their_place() {
    let origins = origins(&["v1-a"]).await;
    let check = async |change: &dyn Fn(&mut Conf)| {
        let mut conf = conf(&origins, &json!("redis://127.0.0.1:6379"), &thirty());
        change(&mut conf);
        let dir = serin_e2e::gateway::directory();
        for (name, document) in [("serin", &conf.bootstrap), ("routing", &conf.routing), ("traffic", &conf.traffic)] {
            std::fs::write(dir.path().join(format!("{name}.yaml")), serde_json::to_string_pretty(document).unwrap())
                .unwrap();
        }
        let told = serin_e2e::gateway::cli(&["check", &dir.path().join("serin.yaml").to_string_lossy()]).await;
        format!("{}{}", told.stdout, told.stderr)
    };
    let told = check(&|conf| conf.bootstrap["limits"] = json!({})).await;
    assert!(
        told.contains("services.users.rate_limits[0].scope: `fleet` needs a server that all gateways share"),
        "{told}"
    );
    let told = check(&|conf| conf.bootstrap["limits"]["redis"] = json!("redis://me:hunter2@127.0.0.1")).await;
    assert!(told.contains("limits.redis: has a user or a password in it") && !told.contains("hunter2"), "{told}");
    let told = check(&|conf| conf.service("users")["rate_limits"][0]["scope"] = json!("flet")).await;
    assert!(told.contains("did you mean `fleet`?"), "{told}");
}
