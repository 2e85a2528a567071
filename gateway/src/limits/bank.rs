//! The bank of a fleet's limits, as requests see it: they order leases of it, and wait for them no longer than a deadline.
//! What talks to Redis is in `redis.rs`, on a thread of its own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use serin_core::limit::{self, Ask, Fleet, Hold, Leases, Limiter, Prepared, Subject};
use smallvec::SmallVec;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};

use crate::conf::{Bootstrap, Redis};
use crate::telemetry::metrics::{BankMetrics, Metrics};
use crate::telemetry::names::LIMITS;

/// Orders that may be under way. One that finds no room is as good as one without an answer.
const ORDERS: usize = 8_192;
/// Why the bank cannot be reached before anybody tried.
const FRESH: &str = "not connected yet";

/// The bank.
pub struct Bank {
    /// What is known of the fleet.
    pub(super) fleet: Arc<Fleet>,
    /// What its keys begin with.
    pub(super) prefix: String,
    /// How long a request waits.
    pub(super) deadline: Duration,
    /// Counters.
    pub(super) metrics: BankMetrics,
    orders: mpsc::Sender<Order>,
    answered: Notify,
    server: String,
    problem: Mutex<Option<String>>,
    lost: AtomicU64,
    all: Arc<Metrics>,
}

/// An order of a lease.
pub(super) struct Order {
    /// What Redis calls the rule; its keys begin with it.
    pub(super) rule: Arc<str>,
    /// Where the lease goes.
    pub(super) leases: Arc<Leases>,
    /// What is ordered.
    pub(super) ask: Ask,
}

/// What a rate limit has of the bank.
#[derive(Clone)]
pub struct Account {
    bank: Arc<Bank>,
    rule: Arc<str>,
    leases: Arc<Leases>,
}

/// What a request has of its limits, by their positions; none of those that nobody shares, and of those that the bank
/// said nothing of in time.
pub type Holds = SmallVec<[Option<Hold>; 4]>;

/// What a request has to wait for.
pub struct Claim {
    /// Position of the limit.
    pub(crate) at: usize,
    account: Account,
    claim: limit::Claim,
}

/// What a request has of one limit.
pub(crate) enum Standing {
    /// All that it needs to be judged.
    Known(Option<Hold>),
    /// Nothing yet.
    Later(Claim),
}

/// How the server of a fleet's limits stands.
#[derive(Serialize, JsonSchema)]
pub struct BankStatus {
    /// Where it is.
    pub redis: String,
    /// Whether it answers in time.
    pub reachable: bool,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Who decides: `redis`, or `local`: each gateway by its share.
    pub by: &'static str,
    /// Gateways that share the limits, as far as it was last known.
    pub replicas: u32,
    /// How often it was lost.
    pub lost: u64,
}

/// The bank with the thread that talks to it.
pub struct BankService {
    /// The bank.
    pub bank: Arc<Bank>,
    runtime: Option<Runtime>,
}

impl BankService {
    /// The bank that is configured, if one is. It is not there before it was reached.
    ///
    /// # Errors
    /// If a file of authorities or of a password cannot be read, or the binary was built without Redis.
    pub fn open(bootstrap: &Bootstrap, node: &str, metrics: &Arc<Metrics>) -> Result<Option<Self>, String> {
        let Some(place) = &bootstrap.limits.redis else { return Ok(None) };
        let conf = place.server();
        let (orders, taken) = mpsc::channel(ORDERS);
        let bank = Arc::new(Bank::new(&conf, orders, metrics));
        let runtime = start(&conf, node, &bank, taken)?;
        Ok(Some(Self { bank, runtime: Some(runtime) }))
    }
}

impl Drop for BankService {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropped plainly it would wait, which it must not do where it may be dropped.
            runtime.shutdown_background();
        }
    }
}

#[cfg(feature = "redis")]
fn start(conf: &Redis, node: &str, bank: &Arc<Bank>, orders: mpsc::Receiver<Order>) -> Result<Runtime, String> {
    let driver = super::redis::Driver::new(conf, node, Arc::clone(bank), orders)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("limits").enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.spawn(driver.run());
    Ok(runtime)
}

#[cfg(not(feature = "redis"))]
fn start(_: &Redis, _: &str, _: &Arc<Bank>, _: mpsc::Receiver<Order>) -> Result<Runtime, String> {
    Err(crate::sources::left_out("redis"))
}

impl Bank {
    fn new(conf: &Redis, orders: mpsc::Sender<Order>, metrics: &Arc<Metrics>) -> Self {
        let bank = Self {
            fleet: Arc::new(Fleet::new(conf.replicas)),
            prefix: conf.prefix.clone(),
            deadline: conf.deadline.duration(),
            metrics: metrics.bank(),
            orders,
            answered: Notify::new(),
            server: conf.url.to_string(),
            problem: Mutex::new(Some(FRESH.to_owned())),
            lost: AtomicU64::new(0),
            all: Arc::clone(metrics),
        };
        bank.metrics.fallback.set(1);
        bank.metrics.replicas.set(bank.fleet.replicas().into());
        bank
    }

    /// An account for the rule called `rule`, with what it has leased.
    pub(crate) fn account(self: &Arc<Self>, rule: &str, leases: &Arc<Leases>) -> Account {
        let rule = format!("{}:limit:{rule}", self.prefix).into();
        Account { bank: Arc::clone(self), rule, leases: Arc::clone(leases) }
    }

    /// What is known of the fleet.
    pub(crate) fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> BankStatus {
        let reachable = self.fleet.is_up();
        BankStatus {
            redis: self.server.clone(),
            reachable,
            problem: self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            by: if reachable { "redis" } else { "local" },
            replicas: self.fleet.replicas(),
            lost: self.lost.load(Relaxed),
        }
    }

    /// It answers in time.
    pub(super) fn found(&self) {
        self.set(None);
        self.fleet.set_up(true);
        tracing::info!(redis = self.server, replicas = self.fleet.replicas(), "limits of the fleet are shared");
    }

    /// It does not.
    pub(super) fn lost(&self, why: &str) {
        let was_up = self.fleet.is_up();
        self.fleet.set_up(false);
        self.answered.notify_waiters();
        if was_up {
            self.lost.fetch_add(1, Relaxed);
        }
        if was_up || self.problem.lock().unwrap_or_else(PoisonError::into_inner).as_deref() == Some(FRESH) {
            tracing::error!(redis = self.server, why, "limits of the fleet are local: each gateway keeps to its share");
        }
        self.set(Some(why.to_owned()));
    }

    fn set(&self, problem: Option<String>) {
        self.all.sources.reachable(LIMITS, problem.is_none());
        self.metrics.fallback.set(problem.is_some().into());
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Some orders were answered.
    pub(super) fn answered(&self) {
        self.answered.notify_waiters();
    }

    /// Waits until all claims are decided, the deadline is over, or the bank is lost.
    async fn wait(&self, mut claims: SmallVec<[Claim; 1]>, holds: &mut Holds) {
        let end = tokio::time::Instant::now() + self.deadline;
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            // From here on, before the look, so that no answer is missed.
            answered.as_mut().enable();
            let now = Instant::now();
            claims.retain(|Claim { at, account, claim }| {
                let (hold, ask) = match account.leases.recheck(claim, now) {
                    Ok((hold, ask)) => (Some(hold), ask),
                    Err(ask) => (None, ask),
                };
                ask.into_iter().for_each(|ask| account.order(ask));
                holds[*at] = hold;
                hold.is_none()
            });
            let decided = claims.is_empty() || !self.fleet.is_up();
            if decided || tokio::time::timeout_at(end, answered).await.is_err() {
                return;
            }
        }
    }
}

impl Account {
    /// Spends what a request needs of the limit at a position, and asks for what it lacks.
    pub(crate) fn prepare(&self, at: usize, limiter: &Limiter, subject: &Subject<'_>, now: Instant) -> Standing {
        match limiter.prepare(subject, now) {
            Prepared::Alone => Standing::Known(None),
            Prepared::Now(hold, ask) => {
                ask.into_iter().for_each(|ask| self.order(ask));
                Standing::Known(Some(hold))
            }
            Prepared::Later(claim, ask) => {
                ask.into_iter().for_each(|ask| self.order(ask));
                Standing::Later(Claim { at, account: self.clone(), claim })
            }
        }
    }

    /// Waits for what claims are for, and adds it to what there is. All accounts of a gateway are with the same bank.
    pub(crate) async fn wait(claims: SmallVec<[Claim; 1]>, mut holds: Holds) -> Holds {
        if let Some(first) = claims.first() {
            let bank = Arc::clone(&first.account.bank);
            bank.metrics.waits.inc();
            bank.wait(claims, &mut holds).await;
        }
        holds
    }

    fn order(&self, ask: Ask) {
        let order = Order { rule: Arc::clone(&self.rule), leases: Arc::clone(&self.leases), ask };
        if let Err(mpsc::error::TrySendError::Full(order) | mpsc::error::TrySendError::Closed(order)) =
            self.bank.orders.try_send(order)
        {
            order.fail();
            self.bank.metrics.failed.inc();
        }
    }
}

impl Order {
    /// There is no answer.
    pub(super) fn fail(&self) {
        self.leases.settle(&self.ask, None, Instant::now());
    }
}
