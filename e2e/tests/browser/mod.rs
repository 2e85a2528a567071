//! A real Chromium, driven through its own driver. It ends with its handle, and `check` says what it complained of.

#![expect(clippy::panic, reason = "a test that cannot go on says why")]

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use serin_e2e::gateway::{self, free_address};
use serin_e2e::{Gateway, wait};
use tempfile::TempDir;
use thirtyfour::common::log::LoggingPrefsLogLevel;
use thirtyfour::prelude::*;
use tokio::sync::{Mutex, MutexGuard};

/// One browser at a time is enough for a small machine.
static TURN: Mutex<()> = Mutex::const_new(());

/// Waits for its turn.
pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// A browser with one page.
pub(crate) struct Browser {
    /// What drives it.
    pub(crate) driver: WebDriver,
    process: Child,
    home: String,
    /// What the browser writes, which goes with it.
    _scratch: TempDir,
}

impl Browser {
    /// Starts a browser on a view of the console of a gateway.
    pub(crate) async fn open(gateway: &Gateway, view: &str) -> Self {
        Self::sized(gateway, view, 1280, 900).await
    }

    /// Like [`Browser::open`] with a page of this size in pixels.
    pub(crate) async fn sized(gateway: &Gateway, view: &str, width: u32, height: u32) -> Self {
        let address = free_address();
        let scratch = gateway::directory();
        let process = Command::new("chromedriver")
            .arg(format!("--port={}", address.port()))
            .env("TMPDIR", scratch.path())
            .env("HOME", scratch.path())
            // The browser is of the same group, and ends with it even if its driver is gone.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver: {error} (e2e/setup.sh installs it)"));
        let mut browser = Starting(Some(process));
        let driver = start(address).await;
        let process = browser.0.take().unwrap();
        let home = format!("http://{}", gateway.admin_address());
        let browser = Self { driver, process, home, _scratch: scratch };
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        browser.driver.cdp().send_raw("Emulation.setDeviceMetricsOverride", metrics).await.unwrap();
        browser.go(view).await;
        browser
    }

    /// Opens a view, as a person who types its address.
    pub(crate) async fn go(&self, view: &str) {
        self.driver.goto(format!("{}/console/#/{view}", self.home)).await.unwrap();
    }

    /// What a script answers.
    pub(crate) async fn run(&self, script: &str, args: Vec<Value>) -> Value {
        self.driver.execute(script, args).await.unwrap().json().clone()
    }

    /// Text of the first element that a selector finds, as it is shown.
    pub(crate) async fn text(&self, selector: &str) -> Option<String> {
        let script = "return document.querySelector(arguments[0])?.innerText ?? null";
        self.run(script, vec![json!(selector)]).await.as_str().map(str::to_owned)
    }

    /// Waits until the text of an element is as wanted.
    pub(crate) async fn until_text(&self, selector: &str, wanted: impl Fn(&str) -> bool) -> String {
        wait::until(format!("the text of {selector}"), || async {
            self.text(selector).await.filter(|text| wanted(text))
        })
        .await
    }

    /// Waits until an element contains a text.
    pub(crate) async fn until_says(&self, selector: &str, text: &str) -> String {
        let start = std::time::Instant::now();
        loop {
            let now = self.text(selector).await;
            match now {
                Some(now) if now.contains(text) => return now,
                now if start.elapsed() > wait::DEADLINE => panic!("{selector} never said {text:?}, but {now:?}"),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Waits until nothing is found by a selector.
    pub(crate) async fn until_gone(&self, selector: &str) {
        wait::until(format!("{selector} to be gone"), || async { self.text(selector).await.is_none().then_some(()) })
            .await;
    }

    /// Clicks on an element, once it is there and can be clicked on.
    pub(crate) async fn click(&self, by: By) {
        wait::until(format!("a click on {by:?}"), || async {
            self.driver.find(by.clone()).await.ok()?.click().await.ok()
        })
        .await;
    }

    /// Clicks on the button with this text.
    pub(crate) async fn press(&self, text: &str) {
        self.click(By::XPath(format!("//button[normalize-space()='{text}']"))).await;
    }

    /// Replaces what a field holds, by keys.
    pub(crate) async fn fill(&self, selector: &str, text: &str) {
        self.click(By::Css(selector)).await;
        self.select_all().await;
        self.keys(text).await;
    }

    /// Selects all of the field that has the focus.
    pub(crate) async fn select_all(&self) {
        let chord = self.driver.action_chain().key_down(Key::Control).send_keys("a").key_up(Key::Control);
        chord.perform().await.unwrap();
    }

    /// Presses keys one after the other, wherever the focus is.
    pub(crate) async fn keys(&self, keys: impl Into<TypingData>) {
        self.driver.action_chain().send_keys(keys).perform().await.unwrap();
    }

    /// Fails the test if the page broke its own policy, complained, or asked another origin for something. Answers with
    /// one of these statuses are meant to be.
    pub(crate) async fn check(&self, statuses: &[u16]) {
        for entry in self.driver.get_log("browser").await.unwrap() {
            let is_meant = statuses.iter().any(|status| entry.message.contains(&format!("status of {status} ")));
            assert!(is_meant, "{}: {}", entry.level, entry.message);
        }
        for entry in self.driver.get_log("performance").await.unwrap() {
            let event: Value = serde_json::from_str(&entry.message).unwrap();
            let Some(url) = event["message"]["params"]["request"]["url"].as_str() else { continue };
            assert!(url.starts_with(&self.home) || url.starts_with("data:"), "a request left for {url}");
        }
    }
}

/// Ends the driver of a browser that does not start.
struct Starting(Option<Child>);

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            end(child);
        }
    }
}

/// Ends a driver and its browser.
fn end(driver: &mut Child) {
    let group = format!("-{}", driver.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
    let _ = driver.wait();
}

async fn start(address: SocketAddr) -> WebDriver {
    wait::until("chromedriver to accept", || async { tokio::net::TcpStream::connect(address).await.ok() }).await;
    let mut wanted = DesiredCapabilities::chrome();
    for arg in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"] {
        wanted.add_arg(arg).unwrap();
    }
    for kind in ["browser", "performance"] {
        wanted.set_logging_prefs(kind.to_owned(), LoggingPrefsLogLevel::All).unwrap();
    }
    WebDriver::new(format!("http://{address}"), wanted).await.unwrap()
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The handle would end its session itself, and block for that.
        let _ = self.driver.clone().leak();
        end(&mut self.process);
    }
}
