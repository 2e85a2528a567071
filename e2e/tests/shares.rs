//! Promise: a version's share of the traffic is its weight, whatever the number of its instances.

use serde_json::json;
use serin_e2e::client::{Call, Conn};
use serin_e2e::{World, world};

const NINE_AND_TWO: [&str; 11] =
    ["v1-a", "v1-b", "v1-c", "v1-d", "v1-e", "v1-f", "v1-g", "v1-h", "v1-i", "v2-a", "v2-b"];

#[tokio::test]
async fn untagged_traffic_over_9_and_2_instances_is_split_80_to_20() {
    for anonymous in ["random", "by user"] {
        let world = World::with(&NINE_AND_TWO, |conf| {
            conf.service("users")["anonymous"] = json!("random");
            conf.weights(&[("v1", "80%"), ("v2", "20%")]);
        })
        .await;
        let mut conn = Conn::http1(world.http()).await;
        let mut canary = 0_u32;
        for number in 0..2_000 {
            let call = Call::get("/");
            let call = if anonymous == "random" { call } else { call.user(format!("user-{number}")) };
            canary += u32::from(world::version(&call.on(&mut conn).await.origin()) == "v2");
        }
        // Mean 400; three and a half sigma of a binomial with n = 2,000 and p = 0.2 are 63.
        assert!(canary.abs_diff(400) <= 63, "{anonymous}: {canary} of 2,000 went to v2");
        for origin in &world.origins {
            assert!(origin.hits() > 0, "{} got nothing", origin.name);
        }
    }
}

#[tokio::test]
async fn raising_a_weight_moves_nobody_back() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&[("v1", "90%"), ("v2", "10%")]);
    })
    .await;
    let before = world.burst(300).await;
    world.gateway.set_weights(&[("v1", "60%"), ("v2", "40%")]).await;
    let after = world.burst(300).await;
    let moved = |from, to| before.iter().zip(&after).filter(|(b, a)| *b == from && *a == to).count();
    assert_eq!(moved("v2-a", "v1-a"), 0);
    assert!(moved("v1-a", "v2-a").abs_diff(90) <= 28, "30 % of 300 users move: {}", moved("v1-a", "v2-a"));
}
