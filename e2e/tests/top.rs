//! Promise: `serin top` shows the live numbers in a terminal of 80x24 and up, and leaves the terminal as it was.

use std::path::Path;

use serin_e2e::client::{Call, Conn};
use serin_e2e::gateway::binary;
use serin_e2e::{World, wait};

#[tokio::test]
async fn it_prints_one_plain_table_or_json() {
    let world = World::start().await;
    let mut conn = Conn::http1(world.http()).await;
    for _ in 0..20 {
        let _ = Call::get("/").on(&mut conn).await.expect(200);
    }
    wait::until("the requests to show", || async {
        let json = world.gateway.cli(&["top", "--json"]).await.expect(0).json();
        let rate = json["live"]["services"]["users"]["subsets"]["v1"]["requests_per_second"].as_f64();
        rate.is_some_and(|rate| rate > 0.0).then_some(())
    })
    .await;
    let text = world.gateway.cli(&["top", "--once"]).await.expect(0).stdout;
    let v1 = text.lines().find(|line| line.starts_with("  v1")).unwrap_or_else(|| panic!("{text}"));
    assert!(v1.contains("90%") && v1.contains("100%") && v1.contains("ms"), "{text}");
    assert!(text.contains("traffic revision 1") && !text.contains('\u{1b}'), "{text}");
    // What is no terminal gets the same.
    assert!(world.gateway.cli(&["top"]).await.expect(0).stdout.starts_with("SERVICE"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_on_a_terminal_and_leaves_it_as_it_was() {
    let world = World::start().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/top.py");
    let admin = format!("http://{}", world.gateway.admin_address());
    let run = tokio::process::Command::new("python3").arg(script).arg(binary()).arg(admin).kill_on_drop(true).output();
    let done = tokio::time::timeout(wait::DEADLINE * 3, run).await.expect("it to end").unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
