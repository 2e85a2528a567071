//! Promise: the rules and dashboards in `conf/` work: promtool and a real Prometheus that scrapes a gateway under load
//! know every expression, and every metric and label that it names.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::{Value, json};
use serin_e2e::book::Page;
use serin_e2e::client::{Call, Conn};
use serin_e2e::prometheus::{Panel, Prometheus, dashboards, names_in, panels, promtool};
use serin_e2e::session::repository;
use serin_e2e::tls::Authority;
use serin_e2e::{World, gateway, wait};
use tempfile::TempDir;

fn conf() -> PathBuf {
    repository().join("conf").canonicalize().unwrap()
}

fn rules() -> PathBuf {
    conf().join("prometheus/serin.rules.yml")
}

/// A gateway of which every part is configured that has metrics.
async fn world() -> (World, TempDir) {
    let dir = gateway::directory();
    let (cert, key) = Authority::new().issue("api.example.com").write(dir.path(), "tls");
    let world = World::with(&["v1-a", "v1-b", "v2-a"], |conf| {
        conf.weights(&[("v1", "60%"), ("v2", "40%")]);
        let users = conf.service("users");
        users["tags"] =
            json!([{"name": "canary", "when": {"header": {"x-traffic-tag": "canary"}}, "subset": "v2", "trust": "any"}]);
        users["balancer"] = json!([{"zone_affinity": {}}, {"p2c": {}}]);
        users["health_check"] = json!({"http": {"path": "/healthz"}, "interval": "200ms", "timeout": "200ms"});
        users["outlier_detection"] = json!({"consecutive_5xx": 1000, "success_rate": "none"});
        users["circuit_breaker"] = json!({"failure_rate": "none"});
        users["concurrency"] = json!({"adaptive": {"min": 10, "max": 2000}});
        users["load_reports"] = json!({});
        users["rate_limits"] = json!([{"name": "all", "limit": "1000000/s"}]);
        let tls = json!({"certificates": [{"cert": cert, "key": key}]});
        conf.listeners().push(json!({"name": "tls", "address": "127.0.0.1:0", "tls": tls}));
    })
    .await;
    (world, dir)
}

/// Sends requests of every kind until it is told to stop.
fn load(world: &World) -> (Arc<AtomicBool>, tokio::task::JoinHandle<()>) {
    let (stop, address) = (Arc::new(AtomicBool::new(false)), world.http());
    let told = Arc::clone(&stop);
    let task = tokio::spawn(async move {
        let mut conn = Conn::http1(address).await;
        for number in (0..).take_while(|_| !told.load(Relaxed)) {
            let path = if number % 5 == 0 { "/status/500" } else { "/" };
            let mut call = Call::get(path).user(format!("u{}", number % 97));
            if number % 7 == 0 {
                call = call.header("x-traffic-tag", "canary");
            }
            let _ = call.on(&mut conn).await;
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    });
    (stop, task)
}

#[test]
fn promtool_finds_nothing_wrong_with_the_rules() {
    let dir = conf().join("prometheus");
    for args in [["check", "rules", "serin.rules.yml"], ["test", "rules", "serin.rules.test.yml"]] {
        let done = promtool(&args, "", &dir);
        assert!(done.as_ref().is_ok_and(|text| text.contains("SUCCESS")), "{done:?}");
    }
}

#[tokio::test]
async fn promtool_finds_nothing_wrong_with_the_metrics() {
    let (world, _certificates) = world().await;
    let _ = world.send(Call::get("/").user("u1")).await.expect(200);
    let page = world.gateway.metrics().await.0;
    let done = promtool(&["check", "metrics"], &page, &conf());
    assert_eq!(done.as_deref().map(str::trim), Ok(""));
}

/// An expression as Grafana would send it.
fn filled_in(expression: &str) -> String {
    let values = [("$__rate_interval", "5s"), ("$service", ".*"), ("$subset", ".*"), ("$upstream", ".*")];
    values.iter().fold(expression.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// All that is asked in dashboards, by where.
fn asked() -> Vec<(String, String)> {
    let mut asked = vec![];
    for (path, dashboard) in dashboards(&conf()) {
        for Panel { name, json } in panels(&path, &dashboard) {
            let targets = json["targets"].as_array().into_iter().flatten();
            asked.extend(targets.map(|target| (name.clone(), filled_in(target["expr"].as_str().unwrap()))));
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if let Some(query) = variable["query"]["query"].as_str() {
                let (series, label) = query.strip_prefix("label_values(").unwrap().rsplit_once(", ").unwrap();
                let label = label.trim_end_matches(')');
                let name = format!("{}: ${}", path.display(), variable["name"]);
                asked.push((name, filled_in(&format!("count by ({label}) ({series})"))));
            }
        }
    }
    asked
}

/// What is wrong with the names in an expression.
async fn unknown(prometheus: &Prometheus, expression: &str, known: &BTreeSet<String>) -> Vec<String> {
    let (metrics, labels) = names_in(expression);
    let mut allowed = BTreeSet::new();
    for metric in metrics.iter().filter(|metric| known.contains(*metric)) {
        allowed.extend(prometheus.labels(metric).await);
    }
    metrics.difference(known).chain(labels.difference(&allowed)).cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_answers_every_question_of_dashboards_and_rules() {
    let (world, _certificates) = world().await;
    let (stop, task) = load(&world);
    let prometheus = Prometheus::start(&[world.gateway.admin_address()], &rules()).await;
    // Something of everything: a flip, a reload and a refused document.
    world.gateway.set_weights(&[("v1", "50%"), ("v2", "50%")]).await;
    let mut routing = world.gateway.conf.routing.clone();
    routing["services"]["users"]["salt"] = json!("another");
    world.gateway.write_routing(&routing);
    let recorded = "serin:errors:ratio_rate5m > 0 and on () (serin_config_applied_total{document=\"routing\"} > 0)";
    wait::until("a recorded error rate", || async { prometheus.query(recorded).await.unwrap().first().cloned() }).await;
    let rules = all_rules(&prometheus).await;
    let recorded = |rule: &&Value| rule["type"] == "recording";
    let recorded: Vec<_> = rules.iter().filter(recorded).filter_map(|rule| rule["name"].as_str()).collect();
    let known = wait::until("every recorded series", || async {
        let known = prometheus.names().await;
        recorded.iter().all(|name| known.contains(*name)).then_some(known)
    })
    .await;
    let mut wrong = vec![];
    for (place, expression) in asked() {
        let unknown = unknown(&prometheus, &expression, &known).await;
        if !unknown.is_empty() {
            wrong.push(format!("{place}: nothing is called {unknown:?}: {expression}"));
        }
        let answered = async || match prometheus.query(&expression).await {
            Ok(series) => {
                if series.is_empty() {
                    Err("no data".to_owned())
                } else {
                    Ok(())
                }
            }
            Err(error) => Err(error),
        };
        // What needs two samples may need a moment.
        let mut answer = answered().await;
        for _ in 0..30 {
            if answer.is_ok() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            answer = answered().await;
        }
        wrong.extend(answer.err().map(|problem| format!("{place}: {problem}: {expression}")));
    }
    for rule in &rules {
        let expression = rule["query"].as_str().unwrap();
        let unknown = unknown(&prometheus, expression, &known).await;
        if !unknown.is_empty() || rule["health"] != "ok" {
            wrong.push(format!("{}: {unknown:?}, {}: {expression}", rule["name"], rule["lastError"]));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));

    world.gateway.write_routing(&json!({"services": {}, "routs": []}));
    wait::until("the alert of the refused document", || async {
        let alerts = prometheus.query("ALERTS{alertname=\"SerinConfigRefused\", document=\"routing\"}").await.unwrap();
        alerts.first().cloned()
    })
    .await;
    stop.store(true, Relaxed);
    task.await.unwrap();
}

async fn all_rules(prometheus: &Prometheus) -> Vec<Value> {
    wait::until("every rule to be evaluated", || async {
        let groups = prometheus.get("rules", &[]).await.unwrap();
        let rules: Vec<Value> = groups["groups"]
            .as_array()?
            .iter()
            .flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default())
            .collect();
        (rules.len() > 20 && rules.iter().all(|rule| rule["health"] != "unknown")).then_some(rules)
    })
    .await
}

#[test]
fn dashboards_are_sound() {
    let mut uids = BTreeSet::new();
    for (path, dashboard) in dashboards(&conf()) {
        let file = path.display();
        assert!(uids.insert(dashboard["uid"].as_str().unwrap().to_owned()), "{file}: the uid is taken");
        assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36, "{file}");
        let variables: Vec<_> =
            dashboard["templating"]["list"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
        assert!(variables.contains(&&json!("datasource")) && variables.contains(&&json!("service")), "{file}");
        let panels = panels(&path, &dashboard);
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel.json["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "{file}: ids of panels are not unique");
        let mut taken = BTreeSet::new();
        for Panel { name, json } in &panels {
            let side = |key: &str| json["gridPos"][key].as_u64().unwrap();
            assert!(side("x") + side("w") <= 24, "{name} is off the grid");
            for x in side("x")..side("x") + side("w") {
                for y in side("y")..side("y") + side("h") {
                    assert!(taken.insert((x, y)), "{name} overlaps another panel");
                }
            }
            if json["type"] == "row" {
                continue;
            }
            assert!(json["fieldConfig"]["defaults"]["unit"].is_string(), "{name} has no unit");
            assert_eq!(json["datasource"]["uid"], "${datasource}", "{name}");
            let targets = json["targets"].as_array().unwrap();
            assert!(!targets.is_empty() && targets.iter().all(|target| target["expr"].is_string()), "{name}");
        }
    }
    assert!(uids.len() >= 4);
}

#[test]
fn every_alert_has_a_runbook_that_is_there() {
    let text = std::fs::read_to_string(rules()).unwrap();
    let alerts: Vec<_> = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let runbooks: Vec<_> = text.lines().filter_map(|line| line.trim().strip_prefix("runbook: ")).collect();
    assert_eq!(alerts.len(), runbooks.len());
    for runbook in runbooks {
        let (page, anchor) = runbook.split_once('#').unwrap();
        let page = Page::read(&repository().join(page));
        assert!(page.anchors().iter().any(|known| known == anchor), "{runbook}");
    }
    let page = std::fs::read_to_string(repository().join("docs/src/metrics-and-alerts.md")).unwrap();
    let tests = std::fs::read_to_string(conf().join("prometheus/serin.rules.test.yml")).unwrap();
    for alert in alerts {
        assert!(page.contains(&format!("`{alert}`")), "{alert} is not explained");
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts:\n")), "{alert} fires in no test");
    }
}
