//! A gateway registers itself, so that whoever is before it finds it, and leaves when it is told to stop.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::conf::{self, Bootstrap, Problems, Registration};
use crate::sources::Lost;
use crate::sources::follow::Backoff;

/// How long leaving may take.
const LEAVE: Duration = Duration::from_secs(2);

/// Where gateways can register.
#[async_trait]
pub(crate) trait Registrar: Send + Sync {
    /// Registers, and stays registered until `leave` says so; then takes the entry out. Fails when it cannot go on: it
    /// does not try again by itself.
    async fn stay(&self, registration: &Registration, leave: &mut watch::Receiver<bool>) -> Result<(), Lost>;
}

/// Returns when it is time to leave.
pub(super) async fn told(leave: &mut watch::Receiver<bool>) {
    // Nobody left who could say so is as good as a word.
    let _ = leave.wait_for(|leave| *leave).await;
}

/// The entries of this gateway in registries.
pub(crate) struct Membership {
    entries: Mutex<Vec<(Registration, Arc<dyn Registrar>)>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    leaving: watch::Sender<bool>,
    /// Whether the entries are another process's by now.
    relieved: Arc<AtomicBool>,
}

/// The registrar of a registry; none if one cannot register there.
fn open(conf: &conf::Registry) -> Result<Option<Arc<dyn Registrar>>, String> {
    match conf {
        #[cfg(feature = "etcd")]
        conf::Registry::Etcd(conf) => Ok(Some(Arc::new(super::etcd::EtcdRegistry::new(conf)?))),
        #[cfg(feature = "nacos")]
        conf::Registry::Nacos(conf) => Ok(Some(Arc::new(super::nacos::NacosRegistry::new(conf)?))),
        _ => Ok(None),
    }
}

impl Membership {
    /// Registers nothing yet.
    ///
    /// # Errors
    /// If a registry cannot be used as it is configured.
    pub(crate) fn new(bootstrap: &Bootstrap) -> Result<Self, Problems> {
        let mut entries = Vec::new();
        for registration in &bootstrap.register {
            let wrong = |problem: String| Problems::whole(&format!("register in {}", registration.registry), problem);
            let conf = bootstrap.registries.get(&registration.registry);
            let registrar = conf.map(open).transpose().map_err(wrong)?.flatten();
            let registrar = registrar.ok_or_else(|| wrong("gateways cannot register there".to_owned()))?;
            entries.push((registration.clone(), registrar));
        }
        Ok(Self {
            entries: Mutex::new(entries),
            tasks: Mutex::default(),
            leaving: watch::channel(false).0,
            relieved: Arc::default(),
        })
    }

    /// Registers from now on.
    pub(crate) fn enlist(&self, runtime: &Handle) {
        let entries = std::mem::take(&mut *self.entries.lock().unwrap_or_else(PoisonError::into_inner));
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for (registration, registrar) in entries {
            let (mut leave, relieved) = (self.leaving.subscribe(), Arc::clone(&self.relieved));
            tasks.push(runtime.spawn(async move {
                let mut backoff = Backoff::default();
                while !*leave.borrow() && !relieved.load(Relaxed) {
                    let began = Instant::now();
                    let Err(lost) = registrar.stay(&registration, &mut leave).await else { return };
                    tracing::error!(registry = %registration.registry, why = %lost, "not registered any more");
                    tokio::select! {
                        () = tokio::time::sleep(backoff.pause(began)) => {}
                        _ = leave.changed() => {}
                    }
                }
            }));
        }
    }

    /// Another process has the entries from now on. What this one has of them lasts as long as it does, so that there is
    /// no gap between the two; but what is lost is not made again, in the place of what the other one made.
    pub(crate) fn relieve(&self) {
        self.relieved.store(true, Relaxed);
    }

    /// Leaves every registry, or gives up after a while.
    pub(crate) async fn leave(&self) {
        self.leaving.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        // Whoever cannot be told finds out by himself: leases run out, and connections end.
        let _ = tokio::time::timeout(LEAVE, futures_util::future::join_all(tasks)).await;
    }
}
