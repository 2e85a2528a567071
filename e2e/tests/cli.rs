//! Promise: every command of the CLI works against a running gateway, answers JSON on demand, and has telling exit codes.

use serde_json::{Value, json};
use serin_e2e::gateway::{self, binary, write_atomically};
use serin_e2e::{Gateway, World, wait, world};

#[tokio::test]
async fn every_command_answers_json() {
    let world = World::start().await;
    let url = "http://api.example.com/";
    // Command, and the keys that its answer has to have.
    let cases: [(&[&str], &[&str]); 12] = [
        (&["canary", "get", "users"], &[]),
        (&["canary", "preview", "users", "v1=85.5%", "v2=14.5%"], &["moves", "moved"]),
        (&["canary", "set", "users", "v1=85.5%", "v2=14.5%", "--reason", "more"], &["revision"]),
        (&["canary", "abort", "users", "--reason", "it burns"], &["revision"]),
        (&["canary", "resume", "users", "--reason", "it is out"], &["revision"]),
        (&["switch", "balancer", "on", "--service", "users", "--reason", "odd"], &["revision"]),
        (&["switch", "balancer", "off", "--service", "users"], &["revision"]),
        (&["switch", "canary", "on"], &["revision"]),
        (&["explain", "GET", url, "-H", "x-user-id: 7"], &["route", "subset", "pick"]),
        (&["history"], &["entries"]),
        (&["rollback", "2"], &["revision"]),
        (&["instances", "users"], &[]),
    ];
    for (args, keys) in cases {
        let args = [args, &["--json"]].concat();
        let answer = world.gateway.cli(&args).await.expect(0).json();
        for key in keys {
            assert!(answer.to_string().contains(&format!("\"{key}\":")), "{args:?}: no {key} in {answer}");
        }
    }
    let all = world.gateway.cli(&["instances", "--json"]).await.expect(0).json().to_string();
    for origin in &world.origins {
        assert!(all.contains(&origin.address.to_string()), "{all}");
    }
}

#[tokio::test]
async fn commands_do_what_they_say() {
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    let steps: [(&[&str], &str); 7] = [
        (&["canary", "set", "users", "v1=0%", "v2=100%"], "v2"),
        (&["canary", "abort", "users"], "v1"),
        (&["canary", "resume", "users"], "v2"),
        (&["switch", "canary", "on"], "v1"),
        (&["switch", "canary", "off"], "v2"),
        (&["switch", "canary", "on", "--service", "users"], "v1"),
        (&["rollback", "2"], "v2"),
    ];
    for (args, version) in steps {
        let _ = world.gateway.cli(args).await.expect(0);
        assert_eq!(world.version_of("u1").await, version, "after {args:?}");
    }
    let people = world.gateway.cli(&["canary", "get", "users"]).await.expect(0).stdout;
    assert!(people.contains("v2") && people.contains("100"), "{people}");
    let people = world.gateway.cli(&["history"]).await.expect(0).stdout;
    assert!(people.lines().count() >= steps.len(), "{people}");
}

#[tokio::test]
async fn mistakes_exit_with_a_code_and_say_why() {
    let world = World::start().await;
    let nowhere = gateway::free_address();
    let cases: [(&[&str], &str); 9] = [
        (&["canary", "get", "usres"], "usres"),
        (&["canary", "set", "users", "v1=90%", "v2=11%"], "101"),
        (&["canary", "set", "users", "v1=90%", "v9=10%"], "v9"),
        (&["canary", "set", "users", "v1"], "v1"),
        (&["switch", "balancre", "on"], "balancer"),
        (&["switch", "canary", "maybe"], "on"),
        (&["rollback", "99999"], "99999"),
        (&["explain", "GET"], "URL"),
        (&["instances", "nobody"], "nobody"),
    ];
    for (args, part) in cases {
        let done = world.gateway.cli(args).await;
        assert_ne!(done.code, 0, "{args:?}");
        assert!(done.stderr.contains(part), "{args:?} should tell {part}: {done:?}");
        assert!(!done.stderr.contains("panicked"), "{done:?}");
    }
    let admin = format!("http://{nowhere}");
    let usage = world.gateway.cli(&["no-such-command"]).await.code;
    let refused = world.gateway.cli(&["canary", "set", "users", "v1=90%", "v2=11%"]).await.code;
    let unreachable = world.gateway.cli(&["history", "--admin", &admin]).await;
    assert!(unreachable.stderr.contains(&nowhere.to_string()), "{unreachable:?}");
    let codes = std::collections::BTreeSet::from([0, usage, refused, unreachable.code]);
    assert_eq!(codes.len(), 4, "a script can tell them apart: {codes:?}");
}

#[tokio::test]
async fn exit_codes_are_documented() {
    let help = gateway::cli(&["--help"]).await.expect(0).stdout.to_lowercase();
    assert!(help.contains("exit code"), "{help}");
    for command in ["run", "check", "schema", "demo", "explain", "canary", "switch", "history", "rollback", "instances"]
    {
        assert!(help.contains(command), "no {command} in\n{help}");
        let _ = gateway::cli(&[command, "--help"]).await.expect(0);
    }
    assert!(gateway::cli(&["--version"]).await.expect(0).stdout.contains("serin"));
}

#[tokio::test]
async fn a_token_is_read_from_its_file() {
    let dir = gateway::directory();
    write_atomically(&dir.path().join("token"), "a-token-for-the-tests\n");
    let origins = world::origins(&["v1-a", "v2-a"]).await;
    let mut conf = world::users_conf(&origins);
    conf.bootstrap["admin"]["token_file"] = json!("token");
    let gateway = Gateway::start_in(dir, conf).await;
    let token = gateway.dir().join("token").to_string_lossy().into_owned();
    let without = gateway.cli(&["history"]).await;
    assert_ne!(without.code, 0);
    assert!(without.stderr.contains("401") || without.stderr.contains("token"), "{without:?}");
    let _ = gateway.cli(&["history", "--token-file", &token]).await.expect(0);
}

#[tokio::test]
async fn the_schema_describes_the_documents() {
    let schema = gateway::cli(&["schema"]).await.expect(0).json().to_string();
    for name in ["listeners", "trusted_proxies", "services", "user_key", "balancer", "routes", "weights", "switches"] {
        assert!(schema.contains(name), "the schema knows no {name}");
    }
    assert!(schema.contains("json-schema.org"), "it says which schema language it is in");
}

#[tokio::test]
async fn the_demo_serves_what_it_prints() {
    // The demo has fixed ports; where one is taken, by a demo of somebody else, this test cannot tell anything.
    let [http, admin] = [8080, 9901].map(|port| std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    for address in [http, admin] {
        assert!(std::net::TcpListener::bind(address).is_ok(), "{address} has to be free for the demo");
    }
    let dir = gateway::directory();
    let output = std::fs::File::create(dir.path().join("out")).unwrap();
    let mut demo = tokio::process::Command::new(binary())
        .arg("demo")
        .current_dir(dir.path())
        .stdin(std::process::Stdio::null())
        .stdout(output)
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let told = wait::until("four lines to try", || async {
        let told = std::fs::read_to_string(dir.path().join("out")).unwrap_or_default();
        (told.lines().filter(|line| line.contains("curl ")).count() >= 4).then_some(told)
    })
    .await;
    wait::until("the demo to be ready", || async { gateway::is_ready(admin).await.then_some(()) }).await;
    for line in told.lines().filter(|line| line.contains("curl ")) {
        let command = &line[line.find("curl ").unwrap()..];
        let tried =
            std::process::Command::new("sh").args(["-c", &format!("{command} --fail-with-body")]).output().unwrap();
        assert!(tried.status.success(), "{command}: {}", String::from_utf8_lossy(&tried.stdout));
    }
    let ended = std::process::Command::new("kill").args(["-INT", &demo.id().unwrap().to_string()]).status().unwrap();
    assert!(ended.success());
    let ended = tokio::time::timeout(wait::DEADLINE, demo.wait()).await.expect("Ctrl-C to end it").unwrap();
    assert!(ended.code().is_some() || !ended.success(), "{ended}");
    assert!(std::net::TcpListener::bind(http).is_ok(), "nothing is left behind");
}

#[tokio::test]
async fn canary_get_shows_the_state() {
    let world = World::start().await;
    let _ = world.gateway.cli(&["canary", "abort", "users"]).await.expect(0);
    let state: Value = world.gateway.cli(&["canary", "get", "users", "--json"]).await.expect(0).json();
    let state = state.to_string();
    for part in ["\"abort\":true", "90%", "10%"] {
        assert!(state.contains(part), "no {part} in {state}");
    }
}
