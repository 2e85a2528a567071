//! Measured: 10,000 instances of 1,000 services. Run by hand, as it takes a while and a quiet machine: `make scale`. The bar
//! for one change to be in force is 50 ms, with a release build.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use std::time::{Duration, Instant};

use serde_json::json;
use serin_e2e::servers::Etcd;
use serin_e2e::{Conf, Gateway, wait};

const SERVICES: usize = 1_000;
const INSTANCES: usize = 10;
const CHANGES: usize = 100;
/// How long a change may take to be in force.
const BAR: Duration = Duration::from_millis(50);

fn key(service: usize, instance: usize) -> String {
    format!("/serin/instances/s{service}/{instance}")
}

fn value(service: usize, instance: usize, weight: u32) -> String {
    let address = format!("10.{}.{}.{}:80", service / 250, service % 250, instance + 1);
    json!({"address": address, "labels": {"version": "v1"}, "weight": weight}).to_string()
}

/// CPU time that a process has used.
fn cpu(gateway: &Gateway) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", gateway.pid())).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

async fn shows(gateway: &Gateway, service: usize, weight: u32) -> Option<()> {
    let page = gateway.admin_get(&format!("/v1/services/s{service}")).await;
    (page["instances"][0]["weight"] == weight).then_some(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute and a quiet machine"]
async fn ten_thousand_instances() {
    let etcd = Etcd::start().await;
    let all: Vec<_> = (0..SERVICES)
        .flat_map(|service| (0..INSTANCES).map(move |instance| (key(service, instance), value(service, instance, 100))))
        .collect();
    etcd.put_all(&all).await;
    let mut conf = Conf::empty();
    for service in 0..SERVICES {
        let name = format!("s{service}");
        conf = conf.with_service(&name, json!({"registry": {"from": "e"}}));
    }
    conf.bootstrap["registries"] = json!({"e": {"etcd": {"endpoints": [etcd.endpoint()]}}});
    conf.bootstrap["state_dir"] = json!("state");
    let began = Instant::now();
    let gateway = Gateway::start(conf).await;
    println!("start to ready with {} instances: {:?}, {} MiB", all.len(), began.elapsed(), gateway.rss_kib() / 1_024);
    let mut times = vec![];
    for change in 0..CHANGES {
        let (service, weight) = (change * 7 % SERVICES, 101 + change as u32);
        // Longer than changes are gathered, so that each is on its own.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let began = Instant::now();
        etcd.put(&key(service, 0), value(service, 0, weight)).await;
        wait::until("the change", || shows(&gateway, service, weight)).await;
        times.push(began.elapsed());
    }
    times.sort();
    let (median, late, worst) = (times[CHANGES / 2], times[CHANGES * 99 / 100 - 1], times[CHANGES - 1]);
    println!("one change, from before its write to etcd to in force: p50 {median:?}, p99 {late:?}, worst {worst:?}");
    println!("the bar of 50 ms is {}", if late <= BAR { "held" } else { "missed" });
    // What the gateway itself took of that, from its log.
    let output = gateway.output();
    let took = output.lines().filter(|line| line.contains("instances in force"));
    let took: Vec<_> = took.filter_map(|line| line.split("took=").nth(1)?.split_whitespace().next()).collect();
    println!("of which the build: {}", took[took.len().saturating_sub(5)..].join(", "));
    let builds = |output: &str| output.matches("instances in force").count();
    let (before, idle) = (builds(&gateway.output()), cpu(&gateway));
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    for change in 0..2_000 {
        ticks.tick().await;
        let service = change % SERVICES;
        etcd.put(&key(service, 0), value(service, 0, 300 + change as u32)).await;
    }
    let (took, used) = (began.elapsed(), cpu(&gateway) - idle);
    wait::until("the last change", || shows(&gateway, 999, 300 + 1_999)).await;
    println!(
        "{:.0} changes/s: {:.1} % of a core, {} builds, {} MiB",
        2_000.0 / took.as_secs_f64(),
        100.0 * used.as_secs_f64() / took.as_secs_f64(),
        builds(&gateway.output()) - before,
        gateway.rss_kib() / 1_024
    );
}
