//! Promise: instances come from DNS records, which are asked for again when they expire; a server that fails, is silent or
//! talks nonsense takes nothing away (fault 12).

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

#[path = "registry/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use common::from;
use serde_json::{Value, json};
use serin_e2e::servers::{Dns, Mood, Record};
use serin_e2e::{Gateway, Origin, wait};

const NAME: &str = "users.internal";

async fn gateway(dns: &Dns, registry: Value) -> Gateway {
    let registries = json!({"d": {"dns": {"servers": [dns.address.to_string()], "min_ttl": "100ms", "max_ttl": "1s"}}});
    let mut conf = from(registries, registry);
    // DNS knows no labels.
    let users = conf.service("users").as_object_mut().unwrap();
    users.remove("subsets");
    users.remove("stable");
    conf.traffic["services"] = json!({});
    Gateway::start(conf).await
}

/// Waits until the instances are these.
async fn has(gateway: &Gateway, addresses: &[String]) {
    let wanted: BTreeSet<_> = addresses.iter().cloned().collect();
    wait::until(format!("{addresses:?}"), || async {
        let page = gateway.admin_get("/v1/services/users").await;
        let address = |instance: &Value| instance["address"].as_str().unwrap().to_owned();
        let seen: BTreeSet<_> = page["instances"].as_array().unwrap().iter().map(address).collect();
        (seen == wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_followed_and_what_fails_takes_nothing_away() {
    let dns = Dns::start(0).await;
    let origin = Origin::start_everywhere("v1-a").await;
    let port = origin.address.port();
    let ip = |last| Record::A(Ipv4Addr::new(127, 0, 0, last));
    let at = |last: u8| format!("127.0.0.{last}:{port}");
    dns.set(NAME, vec![ip(1)]);
    let gateway = gateway(&dns, json!({"from": "d", "service": NAME, "port": port})).await;
    has(&gateway, &[at(1)]).await;
    let _ = serin_e2e::Call::get("/").to(gateway.http()).await.expect(200);
    dns.set(NAME, vec![ip(1), ip(2), ip(3)]);
    has(&gateway, &[at(1), at(2), at(3)]).await;
    dns.set(NAME, vec![ip(2), ip(3)]);
    has(&gateway, &[at(2), at(3)]).await;
    for mood in [Mood::Failing, Mood::Mad, Mood::Silent] {
        dns.set_mood(mood);
        wait::until(format!("{mood:?} to be noticed"), || async {
            let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["d"].clone();
            status["failing"][NAME].is_string().then_some(())
        })
        .await;
        has(&gateway, &[at(2), at(3)]).await;
        dns.set_mood(Mood::Good);
        wait::until(format!("{mood:?} to be over"), || async {
            let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["d"].clone();
            (status["failing"].is_null() && status["reachable"] == true).then_some(())
        })
        .await;
    }
    // A name that is gone is an empty list, which is held back.
    dns.set(NAME, vec![]);
    wait::until("it to be held back", || async {
        let status = gateway.admin_get("/readyz?verbose").await["documents"]["registries"]["d"].clone();
        (status["held"][0]["service"] == NAME).then_some(())
    })
    .await;
    has(&gateway, &[at(2), at(3)]).await;
    gateway.restart().await;
    has(&gateway, &[at(2), at(3)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_records_have_ports_weights_and_priorities() {
    let dns = Dns::start(1).await;
    let origin = Origin::start("v1-a").await;
    let name = "_http._tcp.users.internal";
    let port = origin.address.port();
    dns.set("one.internal", vec![Record::A(Ipv4Addr::LOCALHOST)]);
    dns.set("two.internal", vec![Record::A(Ipv4Addr::new(127, 0, 0, 2))]);
    let srv = |priority, weight, target: &str| Record::Srv(priority, weight, port, target.to_owned());
    dns.set(name, vec![srv(1, 10, "one.internal"), srv(1, 30, "two.internal"), srv(2, 10, "none.internal")]);
    let gateway = gateway(&dns, json!({"from": "d", "service": name})).await;
    has(&gateway, &[format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}")]).await;
    let page = gateway.admin_get("/v1/services/users").await;
    let weights: Vec<_> =
        page["instances"].as_array().unwrap().iter().map(|instance| instance["weight"].clone()).collect();
    assert_eq!(weights, [json!(10), json!(30)], "{page}");
    // Asked for again when the records expire, and not more often.
    let (before, began) = (dns.asked(), std::time::Instant::now());
    dns.set(name, vec![srv(1, 10, "one.internal")]);
    has(&gateway, &[format!("127.0.0.1:{port}")]).await;
    let asked = dns.asked() - before;
    let most = 8 * (began.elapsed().as_secs() + 2);
    assert!(asked <= most, "{asked} questions in {:?}", began.elapsed());
}
