//! Promise: the console shows what the gateway does and lets operators flip it, safely, in a real browser. Each test has a
//! gateway with real traffic and a browser of its own, which must not complain of anything.

#![expect(clippy::unwrap_used, reason = "tests may panic in their helpers as well")]

mod browser;

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use serin_e2e::client::{Call, Conn};
use serin_e2e::origin::Behaviour;
use serin_e2e::{World, conf, wait};
use thirtyfour::prelude::*;
use tokio::task::JoinSet;

use self::browser::Browser;

/// Sends `GET /` of many users, about 400 a second, for as long as it lives.
fn load(world: &World) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let http = world.http();
        clients.spawn(async move {
            let mut conn = Conn::http1(http).await;
            let mut pace = tokio::time::interval(Duration::from_millis(10));
            for number in 0.. {
                pace.tick().await;
                let call = Call::get("/").user(format!("u{client}-{}", number % 997));
                if call.try_on(&mut conn).await.is_err() {
                    return;
                }
            }
        });
    }
    clients
}

/// What part of the latest second's requests went to v2, by the chart's legend.
async fn share_of_v2(browser: &Browser) -> Option<f64> {
    let script = r#"
        const entries = [...document.querySelectorAll('[data-chart="requests users"] .legend li')];
        const found = (name) => entries.find((entry) => entry.querySelector(".legend-name").textContent === name);
        const value = (name) => Number(found(name)?.querySelector(".legend-value").textContent.replaceAll(",", ""));
        return value("all") > 0 ? value("v2") / value("all") : null;
    "#;
    browser.run(script, vec![]).await.as_f64()
}

async fn until_v2_has(browser: &Browser, wanted: std::ops::RangeInclusive<f64>) {
    wait::until(format!("v2 to have {wanted:?} of the traffic"), || async {
        share_of_v2(browser).await.filter(|share| wanted.contains(share))
    })
    .await;
}

async fn weights(world: &World) -> Value {
    world.gateway.admin_get("/v1/traffic").await["services"]["users"]["weights"].clone()
}

const V2: &str = "#share-users-v2";
const LIVE: &str = "#live";

#[tokio::test]
async fn a_flip_moves_the_traffic_a_switch_stops_it_and_a_rollback_undoes_it() {
    let _turn = browser::turn().await;
    let world = World::start().await;
    let _load = load(&world);
    let browser = Browser::open(&world.gateway, "service/users").await;
    until_v2_has(&browser, 0.02..=0.25).await;

    browser.fill(V2, "62.50").await;
    let preview = browser.until_says(".moves", "52.50%").await;
    assert!(preview.contains("v1") && preview.contains("v2"), "who moves is shown first: {preview}");
    assert_eq!(weights(&world).await, conf::shares(&[("v1", "90%"), ("v2", "10%")]), "nothing is changed yet");
    browser.fill("#weights-users-reason", "looks good").await;
    browser.press("Apply").await;
    browser.until_says(LIVE, "looks good").await;
    assert_eq!(weights(&world).await, conf::shares(&[("v1", "37.5%"), ("v2", "62.5%")]));
    until_v2_has(&browser, 0.5..=0.75).await;
    browser.until_text(".versions tbody tr:nth-child(2) [data-name=weight]", |text| text == "62.5 %").await;

    browser.click(By::Css("nav a[href='#/switches']")).await;
    browser.click(By::Css("[aria-label='Canary switch for all services']")).await;
    browser.until_says("dialog", "All traffic goes to the stable versions").await;
    browser.fill("#confirm-reason", "errors in v2").await;
    browser.press("Switch on").await;
    browser.until_says(".banner", "Canary switch is on").await;
    browser.until_says(".strip", "canary switch").await;
    browser.go("service/users").await;
    until_v2_has(&browser, 0.0..=0.0).await;

    browser.go("history").await;
    browser.click(By::XPath("//li[.//code='start' and .//span='traffic']//button[starts-with(., 'Roll back')]")).await;
    let diff = browser.until_says("dialog .diff", "90%").await;
    assert!(diff.contains("62.5%") && diff.contains("canary: true"), "{diff}");
    browser.fill("#confirm-reason", "back to before").await;
    browser.press("Roll back").await;
    browser.until_says(LIVE, "rollback to 1").await;
    assert_eq!(weights(&world).await, conf::shares(&[("v1", "90%"), ("v2", "10%")]));
    browser.go("service/users").await;
    until_v2_has(&browser, 0.02..=0.25).await;
    browser.check(&[]).await;
}

#[tokio::test]
async fn a_canary_is_flipped_and_aborted_by_keys_alone() {
    let _turn = browser::turn().await;
    let world = World::start().await;
    let browser = Browser::open(&world.gateway, "service/users").await;
    browser.until_says(".weights", "v2").await;
    let focused = "const at = document.activeElement; return at.id || at.textContent.trim()";
    let tab_to = async |wanted: &str| {
        for _ in 0..60 {
            browser.keys(Key::Tab + "").await;
            if browser.run(focused, vec![]).await == wanted {
                return;
            }
        }
        panic!("no way to {wanted} by Tab");
    };
    browser.keys(Key::Tab + "").await;
    assert_eq!(browser.run(focused, vec![]).await, "Skip to the content");
    browser.keys(Key::Enter + "").await;
    assert_eq!(browser.run(focused, vec![]).await, "main");

    tab_to("share-users-v2").await;
    browser.select_all().await;
    browser.keys("33.33").await;
    browser.until_says(".moves", "23.33%").await;
    browser.keys(Key::Up + "").await;
    browser.until_says(".moves", "24.33%").await;
    tab_to("weights-users-reason").await;
    browser.keys("by keys").await;
    browser.keys(Key::Enter + "").await;
    browser.until_says(LIVE, "by keys").await;
    assert_eq!(weights(&world).await, conf::shares(&[("v1", "65.67%"), ("v2", "34.33%")]));

    browser.driver.find(By::Css("[data-chart='requests users'] svg")).await.unwrap().focus().await.unwrap();
    browser.keys(Key::Left + "").await;
    browser.until_says(LIVE, "At ").await;
    browser.until_text(".chart-at.looking", |at| !at.contains("now")).await;

    browser.driver.find(By::Css(".service-actions button")).await.unwrap().focus().await.unwrap();
    browser.keys(Key::Enter + "").await;
    browser.until_says("dialog", "Abort the rollout").await;
    browser.keys(Key::Escape + "").await;
    browser.until_gone("dialog").await;
    assert_eq!(browser.run(focused, vec![]).await, "Abort…", "the focus is where it was");
    browser.keys(Key::Enter + "").await;
    browser.until_says("dialog", "Abort the rollout").await;
    tab_to("confirm-reason").await;
    browser.keys(Key::Enter + "").await;
    browser.until_says(".title-row", "aborted").await;
    assert_eq!(world.gateway.admin_get("/v1/traffic").await["services"]["users"]["abort"], true);
    browser.check(&[]).await;
}

/// What the page reckons with, asked of its own modules.
#[tokio::test]
async fn weights_always_make_a_whole_and_shares_are_exact() {
    let _turn = browser::turn().await;
    let world = World::with(&["v1-a", "v2-a", "v3-a"], |conf| {
        conf.service("users")["subsets"]["v3"] = json!({"version": "v3"});
    })
    .await;
    let browser = Browser::open(&world.gateway, "service/users").await;
    let script = r#"
        const done = arguments[arguments.length - 1];
        (async () => {
            const { rebalance } = await import("/console/weights.js");
            const { hundredths } = await import("/console/format.js");
            const { edits } = await import("/console/diff.js");
            let seed = 7;
            const below = (most) => (seed = (seed * 48271) % 2147483647) % most;
            for (let round = 0; round < 20000; round++) {
                const names = Array.from({ length: 2 + below(6) }, (_, at) => `v${at}`);
                let left = 10000;
                const weights = {};
                names.forEach((name, at) => {
                    weights[name] = at === names.length - 1 ? left : below(3) * below(left + 1) % (left + 1);
                    left -= weights[name];
                });
                const [changed, value] = [names[below(names.length)], below(10001)];
                const after = rebalance(weights, "v0", changed, value);
                const whole = Object.values(after).reduce((sum, weight) => sum + weight, 0);
                const isSound = Object.values(after).every((weight) => Number.isInteger(weight) && weight >= 0);
                if (whole !== 10000 || !isSound || after[changed] !== value) return [weights, changed, value, after];
            }
            const shares = ["0", "100", "12.34", "12,5", "90%", "0.01", "100.01", "1.234", "-1", "x", ""].map(hundredths);
            const diff = edits(["a", "b", "c"], ["a", "c", "d"]).map((edit) => edit.sign + edit.text).join("|");
            return [shares.map((share) => (Number.isNaN(share) ? null : share)), diff];
        })().then(done, (error) => done(String(error)));
    "#;
    let said = browser.driver.execute_async(script, vec![]).await.unwrap().json().clone();
    let shares = json!([0, 10_000, 1_234, 1_250, 9_000, 1, null, null, null, null, null]);
    assert_eq!(said, json!([shares, " a|-b| c|+d"]));

    // Three versions: what v3 gains the stable version gives, to the hundredth.
    browser.fill("#share-users-v3", "0.01").await;
    browser.until_says(".moves", "0.01%").await;
    let shown =
        browser.run("return [...document.querySelectorAll('.weights [inputmode]')].map((f) => f.value)", vec![]);
    assert_eq!(shown.await, json!(["89.99", "10", "0.01"]));
    // What is no share is refused, and not taken for the digits that it begins with; also when the field is left.
    for wrong in ["250", "1e400", "-5", "12.345"] {
        browser.fill("#share-users-v3", wrong).await;
        browser.until_says(".weights [role=alert]", wrong).await;
        browser.until_text(".weights [aria-invalid=true]", |_| true).await;
        let blurred = "document.activeElement.blur(); \
            return [...document.querySelectorAll('.weights [inputmode]')].map((f) => f.value)";
        assert_eq!(browser.run(blurred, vec![]).await, json!(["90", "10", wrong]));
        browser.until_says(".weights [role=alert]", "Nothing is changed").await;
        let disabled = "return document.querySelector('.weights [type=submit]').disabled";
        assert_eq!(browser.run(disabled, vec![]).await, json!(true));
    }
    browser.press("Discard").await;
    browser.until_gone(".weights [role=alert]").await;
    browser.check(&[]).await;
}

#[tokio::test]
async fn of_two_operators_at_once_the_second_sees_what_the_first_did() {
    let _turn = browser::turn().await;
    let world = World::start().await;
    let (ada, bob) =
        (Browser::open(&world.gateway, "service/users").await, Browser::open(&world.gateway, "service/users").await);
    for (browser, name, share) in [(&ada, "ada", "20"), (&bob, "bob", "40")] {
        browser.fill(V2, share).await;
        browser.until_says(".moves", "of users move").await;
        browser.fill("#weights-users-who", name).await;
        browser.fill("#weights-users-reason", &format!("{name} says so")).await;
    }
    ada.press("Apply").await;
    ada.until_says(LIVE, "ada says so").await;
    bob.until_says(".outcome", "Revision 1 was in force when you began").await;
    bob.press("Apply").await;
    let told = bob.until_says("dialog", "Somebody else was faster").await;
    for fact in ["revision 2 is in force", "by ada", "ada says so", "v2: 10%", "v2: 20%", "v2 40%"] {
        assert!(told.contains(fact), "{fact} is not in {told}");
    }
    assert_eq!(weights(&world).await, conf::shares(&[("v1", "80%"), ("v2", "20%")]), "ada's change stands");
    bob.press("Apply mine to revision 2").await;
    ada.until_says(LIVE, "bob says so").await;
    assert_eq!(weights(&world).await, conf::shares(&[("v1", "60%"), ("v2", "40%")]));
    let entries = world.gateway.admin_get("/v1/history?limit=3").await["entries"].clone();
    let facts = |at: usize| [entries[at]["by"].clone(), entries[at]["outcome"].clone()];
    assert_eq!([facts(0), facts(1), facts(2)], [["bob", "applied"], ["bob", "refused"], ["ada", "applied"]]);
    ada.check(&[]).await;
    bob.check(&[412]).await;
}

#[tokio::test]
async fn what_was_refused_is_shown_and_stays_text() {
    const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>";
    let _turn = browser::turn().await;
    let world = World::with(&["v1-a", "v2-a"], |conf| {
        conf.instances("users")[0]["labels"]["note"] = json!(HOSTILE);
    })
    .await;
    let patch = serin_e2e::admin::with_json(
        "PATCH",
        "/v1/traffic/services/users",
        &json!({"weights": {"v1": "50%", "v2": "40%"}, "reason": HOSTILE}),
    );
    let _ = world.gateway.admin(patch.header("x-serin-operator", HOSTILE)).await.expect(422);
    let browser = Browser::open(&world.gateway, "history").await;
    let entry = browser.until_says(".entry.refused", "add up to 90%").await;
    assert!(entry.contains(HOSTILE) && entry.contains("127.0.0.1"), "{entry}");

    let mut routing = world.gateway.conf.routing.clone();
    routing["services"]["users"]["stabel"] = json!(HOSTILE);
    world.gateway.write_routing(&routing);
    let told = browser.until_says(".refused-document", "unknown key `stabel`").await;
    assert!(told.contains("Revision 1 stays in force"), "{told}");
    browser.go("overview").await;
    browser.until_says(".refused-document", "The routing document was refused").await;
    browser.until_says(".strip", "routing refused").await;

    // A flip that the console itself asks for and that the gateway refuses: back to a version that is gone.
    world.gateway.set_weights(&[("v1", "100%"), ("v2", "0%")]).await;
    let mut routing = world.gateway.conf.routing.clone();
    routing["services"]["users"]["subsets"] = json!({"v1": {"version": "v1"}});
    let traffic = json!({"revision": 9, "services": {"users": {"weights": {"v1": "100%"}}}});
    world.gateway.write_traffic(&traffic);
    wait::until("the traffic document", || async { (world.gateway.traffic_revision().await == 9).then_some(()) }).await;
    world.gateway.write_routing(&routing);
    browser.until_gone(".refused-document").await;
    browser.go("history").await;
    browser.click(By::XPath("//li[.//code='start' and .//span='traffic']//button[starts-with(., 'Roll back')]")).await;
    browser.press("Roll back").await;
    browser.until_says("dialog .note.bad", "v2").await;
    browser.keys(Key::Escape + "").await;

    for view in ["instances", "service/users", "switches", "overview", "explain"] {
        browser.go(view).await;
        browser
            .until_says(
                "#main",
                match view {
                    "explain" => "Explain",
                    "history" => "start",
                    _ => "users",
                },
            )
            .await;
    }
    browser.fill("textarea[name=headers]", &format!("x-user-id: {HOSTILE}\nuser-agent: {HOSTILE}")).await;
    browser.fill("input[name=url]", &format!("/a?b={}", "%3Cimg%20src=x%3E")).await;
    browser.press("Explain").await;
    browser.until_says(".way", HOSTILE).await;
    let markup = "return document.querySelectorAll('#app img, #app b b, #app script').length";
    assert_eq!(browser.run(markup, vec![]).await, 0);
    assert_ne!(browser.driver.title().await.unwrap(), "owned");
    browser.check(&[422]).await;
}

#[tokio::test]
async fn the_token_is_asked_for_and_kept_for_the_tab_only() {
    const TOKEN: &str = "0123456789abcdef";
    let _turn = browser::turn().await;
    let dir = serin_e2e::gateway::directory();
    std::fs::write(dir.path().join("token"), TOKEN).unwrap();
    let origins = serin_e2e::world::origins(&["v1-a", "v2-a"]).await;
    let mut conf = serin_e2e::world::users_conf(&origins);
    conf.bootstrap["admin"]["token_file"] = json!("token");
    let gateway = serin_e2e::Gateway::start_in(dir, conf).await;
    let browser = Browser::open(&gateway, "overview").await;
    browser.until_says("dialog", "asks for a token").await;
    assert!(!browser.text("#app").await.unwrap().contains("users"), "no data without the token");
    browser.fill("dialog input", "not the token at all").await;
    browser.click(By::Css("dialog button.primary")).await;
    browser.until_says("dialog [role=alert]", "one word").await;
    browser.fill("dialog input", "fedcba9876543210").await;
    browser.keys(Key::Enter + "").await;
    browser.until_says("dialog [role=alert]", "does not take this token").await;
    browser.fill("dialog input", TOKEN).await;
    browser.keys(Key::Enter + "").await;
    browser.until_says(".service", "users").await;
    let kept = browser.run("return [{...sessionStorage}, {...localStorage}, document.cookie]", vec![]).await;
    assert_eq!(kept[0]["serin.token"], TOKEN);
    assert!(!kept[1].to_string().contains(TOKEN) && kept[2] == "", "{kept}");
    browser.driver.refresh().await.unwrap();
    browser.until_says(".service", "users").await;
    browser.check(&[401]).await;
}

#[tokio::test]
async fn every_view_fits_a_phone_and_explain_draws_the_way() {
    let _turn = browser::turn().await;
    let world = World::with(&["v1-a", "v1-b", "v1-c", "v2-a"], |conf| {
        conf.service("users")["outlier_detection"] = json!({"consecutive_5xx": 3, "base_ejection": "60s"});
        conf.service("users")["retry"] = json!({"attempts": 1});
        conf.weights(&[("v1", "100%"), ("v2", "0%")]);
    })
    .await;
    world.origin("v1-c").set(Behaviour::Status(500));
    let _load = load(&world);
    let address = world.origin("v1-c").address.to_string();
    let browser = Browser::sized(&world.gateway, "instances", 360, 780).await;
    let row = wait::until("the ejected instance", || async {
        let script = "return [...document.querySelectorAll('tbody tr')].find((row) => row.innerText.includes(arguments[0]))?.innerText";
        let text = browser.run(script, vec![json!(address)]).await.as_str()?.to_owned();
        text.contains("ejected by consecutive_5xx").then_some(text)
    })
    .await;
    assert!(row.contains("0 / 100"), "{row}");
    for theme in ["light", "dark"] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        browser.driver.cdp().send_raw("Emulation.setEmulatedMedia", media).await.unwrap();
        for view in ["overview", "service/users", "instances", "history", "switches", "explain"] {
            browser.go(view).await;
            browser
                .until_says(
                    "#main",
                    match view {
                        "explain" => "Explain",
                        "history" => "start",
                        _ => "users",
                    },
                )
                .await;
            let widths = browser
                .run(
                    "const page = document.documentElement; return [page.scrollWidth - page.clientWidth, innerWidth]",
                    vec![],
                )
                .await;
            assert_eq!(widths, json!([0, 360]), "{view} in {theme}");
        }
    }
    browser.fill("input[name=url]", "http://api.example.com/users/7").await;
    browser.fill("textarea[name=headers]", "x-user-id: anna").await;
    browser.press("Explain").await;
    let way = browser.until_says(".way", "Pick").await;
    for station in ["Request", "Route", "Tag", "Bucket", "Version", "Narrows", "healthy", "by round robin"] {
        assert!(way.contains(station), "{station} is not in {way}");
    }
    let widths = browser
        .run("const page = document.documentElement; return [page.scrollWidth - page.clientWidth, innerWidth]", vec![])
        .await;
    assert_eq!(widths, json!([0, 360]), "with an explanation");
    browser.check(&[]).await;
}

#[tokio::test]
async fn a_gateway_that_is_gone_is_said_to_be_and_the_last_numbers_stay() {
    let _turn = browser::turn().await;
    let world = World::start().await;
    let browser = Browser::open(&world.gateway, "overview").await;
    browser.until_says(".service", "users").await;
    let ended = Command::new("kill").args(["-KILL", &world.gateway.pid().to_string()]).status().unwrap();
    assert!(ended.success());
    browser.until_says(".banner", "The gateway does not answer").await;
    assert!(browser.text(".service").await.unwrap().contains("users"));
    assert_eq!(browser.run("return document.getElementById('main').className", vec![]).await, "stale");
    browser.until_says(".strip", "lost").await;
    world.gateway.restart().await;
    browser.until_gone(".banner").await;
    browser.until_says(".strip", "live").await;
    // The browser says so too, of each request that had nobody to answer it.
    let refused = browser.driver.get_log("browser").await.unwrap();
    assert!(refused.iter().all(|entry| entry.message.contains("ERR_")), "{refused:?}");
    browser.check(&[]).await;
}

#[tokio::test]
async fn a_ramp_is_started_paused_and_aborted() {
    let _turn = browser::turn().await;
    let world = World::start().await;
    let _load = load(&world);
    let browser = Browser::open(&world.gateway, "service/users").await;
    browser.click(By::Css(".ramp-new summary")).await;
    for (field, text) in [("steps", "25%, 50%, 100%"), ("every", "10m"), ("min", "50")] {
        browser.fill(&format!(".ramp-new input[name={field}]"), text).await;
    }
    browser.fill(".ramp-new textarea", "success_rate >= 90%").await;
    browser.press("Start…").await;
    browser.until_says("dialog", "25%, 50%, 100%, a step every 10m").await;
    browser.fill("#confirm-reason", "carefully").await;
    browser.press("Start").await;
    let shown = browser.until_says(".ramp-now", "running").await;
    assert!(shown.contains("success_rate >= 90%"), "{shown}");
    browser.until_says(".ramp-steps [aria-current=step]", "25%").await;
    assert_eq!(weights(&world).await, conf::shares(&[("v1", "75%"), ("v2", "25%")]));
    browser.until_says(".guards", "holds").await;
    for (verb, state) in [("Pause", "paused"), ("Resume", "running"), ("Abort", "aborted")] {
        browser.click(By::XPath(format!("//div[@class='ramp-now']//button[.='{verb}…']"))).await;
        browser.until_says("dialog h2", verb).await;
        browser.press(verb).await;
        browser.until_says(".ramp-now", state).await;
    }
    until_v2_has(&browser, 0.0..=0.0).await;
    browser.check(&[]).await;
}
