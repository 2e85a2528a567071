//! Talks to Redis: leases for whoever ordered some, many in one message, and a beat that says that this gateway lives.
//! A server that does not answer in time is given up at once, and asked in the background until it is quick again; so it
//! costs requests nothing while it is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError, RedisResult,
    TlsCertificates,
};
use serin_core::limit::Answer;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::bank::{Bank, Order};
use crate::conf::Redis;
use crate::sources::password;
use crate::telemetry::metrics::RedisFailure;

const TAKE: &str = include_str!("redis/take.lua");
const BEAT: &str = include_str!("redis/beat.lua");

/// Most leases in one message.
const BATCH: usize = 256;
/// How often the gateway says that it lives, and finds out whether the server does.
const BEAT_EVERY: Duration = Duration::from_millis(400);
/// How long a gateway counts that is not heard of.
const ALIVE: Duration = Duration::from_secs(10);
/// How long a server that is lost may take to answer before the connection is given up.
const PATIENCE: Duration = Duration::from_millis(500);
/// The shortest and the longest pause between two looks at a server that is lost.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(400));
/// How long a server has to be there for the next pause to be the shortest again.
const STEADY: Duration = Duration::from_secs(5);
/// Answers in a row that are too late, after which the server is lost; and that are in time, after which it is there.
const STRIKES: u32 = 3;
const GOOD: u32 = 2;

/// Why the server is given up.
struct Failure {
    kind: RedisFailure,
    why: String,
}

/// Talks to the server for as long as the process lives.
pub(super) struct Driver {
    bank: Arc<Bank>,
    orders: mpsc::Receiver<Order>,
    conf: Redis,
    ca: Option<Vec<u8>>,
    /// What the server knows this gateway by: two of one name are two.
    identity: String,
    /// When fewer gateways were first heard of than are taken to be there.
    fewer_since: Option<Instant>,
    /// How long to wait after the next loss, and since when the server is there.
    pause: Duration,
    found_at: Instant,
}

/// A connection, with the names of the scripts.
struct Link {
    connection: MultiplexedConnection,
    take: String,
    beat: String,
}

/// Nobody waits for an answer that will not come any more.
impl Drop for Driver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.bank.lost("what talks to it has panicked");
        }
        self.bank.fleet.set_up(false);
        self.fail_orders();
    }
}

impl Failure {
    fn of(error: &RedisError) -> Self {
        let kind = match error.kind() {
            redis::ErrorKind::AuthenticationFailed => RedisFailure::Auth,
            redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => RedisFailure::Server,
            redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => RedisFailure::Protocol,
            _ => RedisFailure::Connection,
        };
        Self { kind, why: error.to_string() }
    }

    fn late(deadline: Duration) -> Self {
        Self { kind: RedisFailure::Timeout, why: format!("no answer within {deadline:?}") }
    }

    fn conf(why: String) -> Self {
        Self { kind: RedisFailure::Auth, why }
    }
}

impl Driver {
    pub(super) fn new(
        conf: &Redis,
        node: &str,
        bank: Arc<Bank>,
        orders: mpsc::Receiver<Order>,
    ) -> Result<Self, String> {
        pingora::tls::install_default_crypto_provider();
        let ca = conf
            .ca
            .as_ref()
            .map(|path| std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display())));
        let identity = format!("{node}/{:016x}", rand::rng().next_u64());
        let driver = Self {
            bank,
            orders,
            conf: conf.clone(),
            ca: ca.transpose()?,
            identity,
            fewer_since: None,
            pause: PAUSE.0,
            found_at: Instant::now(),
        };
        driver.password()?;
        Ok(driver)
    }

    pub(super) async fn run(mut self) {
        loop {
            let failure = match self.connect().await {
                Ok(link) => self.serve(link).await,
                Err(failure) => failure,
            };
            self.lose(&failure).await;
        }
    }

    fn password(&self) -> Result<Option<String>, String> {
        if let Some(name) = &self.conf.password_env {
            let unset = |_| format!("limits.redis: the environment variable {name} is not set");
            return std::env::var(name.as_str()).map(Some).map_err(unset);
        }
        self.conf.password_file.as_deref().map(password).transpose()
    }

    fn client(&self) -> Result<Client, Failure> {
        let url = &self.conf.url;
        let host = url.at.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.at.port();
        let address = match url.tls {
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            false => ConnectionAddr::Tcp(host, port),
        };
        let mut settings = RedisConnectionInfo::default().set_db(url.database.into());
        if let Some(user) = &self.conf.username {
            settings = settings.set_username(user);
        }
        if let Some(password) = self.password().map_err(Failure::conf)? {
            settings = settings.set_password(password);
        }
        let info = address.into_connection_info().map_err(|error| Failure::of(&error))?;
        let info = info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let tls = TlsCertificates { client_tls: None, root_cert: self.ca.clone() };
        let client = if url.tls { Client::build_with_tls(info, tls) } else { Client::open(info) };
        client.map_err(|error| Failure::of(&error))
    }

    async fn connect(&self) -> Result<Link, Failure> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        let connected = async {
            let client = self.client()?;
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            let mut connection = connection.map_err(|error| Failure::of(&error))?;
            let (take, beat) = load(&mut connection).await.map_err(|error| Failure::of(&error))?;
            Ok(Link { connection, take, beat })
        };
        // Some steps of connecting have no end of their own.
        tokio::time::timeout(2 * PATIENCE, connected).await.unwrap_or_else(|_| Err(Failure::late(2 * PATIENCE)))
    }

    /// Serves orders over a connection for as long as it is good for anything.
    async fn serve(&mut self, mut link: Link) -> Failure {
        loop {
            if let Err(failure) = self.probe(&mut link).await {
                return failure;
            }
            self.bank.found();
            self.found_at = Instant::now();
            match self.take_orders(&mut link).await {
                // A connection that is only slow is kept.
                late @ Failure { kind: RedisFailure::Timeout, .. } => self.lose(&late).await,
                failure => return failure,
            }
        }
    }

    /// Returns when the server is quick.
    async fn probe(&mut self, link: &mut Link) -> Result<(), Failure> {
        let mut good = 0;
        while good < GOOD {
            let began = Instant::now();
            self.beat(link, PATIENCE).await?;
            if began.elapsed() <= self.bank.deadline {
                good += 1;
            } else {
                good = 0;
                tokio::time::sleep(PAUSE.0).await;
            }
        }
        Ok(())
    }

    async fn take_orders(&mut self, link: &mut Link) -> Failure {
        let deadline = self.bank.deadline;
        let (mut strikes, mut batch) = (0, Vec::with_capacity(BATCH));
        let mut beats = tokio::time::interval(BEAT_EVERY);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let outcome = tokio::select! {
                count = self.orders.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        // Nobody can order any more.
                        return Failure::conf("the gateway is about to stop".to_owned());
                    }
                    let outcome = self.take(link, &batch, deadline).await;
                    batch.clear();
                    outcome
                }
                _ = beats.tick() => self.beat(link, deadline).await,
            };
            match outcome {
                Ok(()) => strikes = 0,
                Err(failure) => {
                    strikes += 1;
                    let patient = matches!(failure.kind, RedisFailure::Timeout | RedisFailure::Server);
                    if strikes >= STRIKES || !patient {
                        return failure;
                    }
                    self.count(&failure);
                    beats.reset_immediately();
                }
            }
        }
    }

    /// Takes leases for a batch of orders. Each is settled, whatever comes.
    async fn take(&self, link: &mut Link, batch: &[Order], deadline: Duration) -> Result<(), Failure> {
        let began = Instant::now();
        let answers = tokio::time::timeout(deadline, link.take(batch)).await;
        self.bank.metrics.seconds.observe(began.elapsed().as_secs_f64());
        let (now, metrics) = (Instant::now(), &self.bank.metrics);
        let mut failure = None;
        let settle = |order: &Order, answer: Option<Answer>| {
            match answer {
                None => metrics.failed.inc(),
                Some(answer) if answer.granted == 0 => metrics.refused.inc(),
                Some(answer) => {
                    metrics.granted.inc();
                    metrics.units.inc_by(answer.granted.into());
                }
            }
            order.leases.settle(&order.ask, answer, now);
        };
        match answers {
            Ok(Ok(answers)) => {
                let all = answers.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
                for (order, answer) in batch.iter().zip(all) {
                    let answer = match answer {
                        Some(Ok(answer)) => Some(lease(answer)),
                        Some(Err(error)) => {
                            failure = Some(Failure::of(&error));
                            None
                        }
                        None => None,
                    };
                    settle(order, answer);
                }
            }
            Ok(Err(error)) => {
                failure = Some(Failure::of(&error));
                batch.iter().for_each(|order| settle(order, None));
            }
            Err(_) => {
                failure = Some(Failure::late(deadline));
                batch.iter().for_each(|order| settle(order, None));
            }
        }
        self.bank.answered();
        failure.map_or(Ok(()), Err)
    }

    async fn beat(&mut self, link: &mut Link, deadline: Duration) -> Result<(), Failure> {
        let key = format!("{}:gateways", self.bank.prefix);
        let beat = tokio::time::timeout(deadline, link.beat(&key, &self.identity)).await;
        let alive = beat.map_err(|_| Failure::late(deadline))?.map_err(|error| Failure::of(&error))?;
        self.count_replicas(alive, Instant::now());
        Ok(())
    }

    /// More gateways count at once; fewer only when it stays so, as after the loss of a server everybody comes back one
    /// by one.
    fn count_replicas(&mut self, alive: u32, now: Instant) {
        let fleet = &self.bank.fleet;
        if alive >= fleet.replicas() {
            self.fewer_since = None;
        } else if now.saturating_duration_since(*self.fewer_since.get_or_insert(now)) < ALIVE {
            return;
        }
        fleet.set_replicas(alive);
        self.bank.metrics.replicas.set(fleet.replicas().into());
    }

    fn count(&self, failure: &Failure) {
        self.bank.metrics.failures[failure.kind as usize].inc();
    }

    /// Gives the server up for a moment: longer if it comes and goes, and not all gateways for as long.
    async fn lose(&mut self, failure: &Failure) {
        self.count(failure);
        let was_steady = self.bank.fleet.is_up() && self.found_at.elapsed() > STEADY;
        self.bank.lost(&failure.why);
        self.fail_orders();
        let pause = if was_steady { PAUSE.0 } else { self.pause };
        self.pause = (2 * pause).min(PAUSE.1);
        let pause = rand::rng().random_range(pause / 2..=pause);
        tokio::time::sleep(pause).await;
    }

    fn fail_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            order.fail();
            self.bank.metrics.failed.inc();
        }
        self.bank.answered();
    }
}

async fn load(connection: &mut MultiplexedConnection) -> RedisResult<(String, String)> {
    let mut pipe = redis::pipe();
    for script in [TAKE, BEAT] {
        pipe.cmd("SCRIPT").arg("LOAD").arg(script);
    }
    pipe.query_async(connection).await
}

fn lease((granted, whole_in): (u32, u64)) -> Answer {
    Answer { granted, whole_in: Duration::from_micros(whole_in) }
}

/// A time in microseconds, exact to the nanosecond.
fn micros(time: Duration) -> String {
    format!("{}.{:03}", time.as_micros(), time.subsec_nanos() % 1_000)
}

impl Link {
    async fn take(&mut self, batch: &[Order]) -> RedisResult<Vec<RedisResult<(u32, u64)>>> {
        let answers = self.try_take(batch).await?;
        if !answers.iter().any(|answer| answer.as_ref().is_err_and(is_forgotten)) {
            return Ok(answers);
        }
        self.reload().await?;
        let mut answers = answers;
        let missing = |(_, answer): &(usize, &RedisResult<(u32, u64)>)| answer.as_ref().is_err_and(is_forgotten);
        let missing: Vec<usize> = answers.iter().enumerate().filter(missing).map(|(at, _)| at).collect();
        let again = self.try_take(missing.iter().filter_map(|&at| batch.get(at))).await?;
        for (at, answer) in missing.into_iter().zip(again) {
            answers[at] = answer;
        }
        Ok(answers)
    }

    async fn try_take(&mut self, batch: impl IntoIterator<Item = &Order>) -> RedisResult<Vec<RedisResult<(u32, u64)>>> {
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        for Order { rule, ask, .. } in batch {
            let key = format!("{rule}:{:032x}", u128::from_be_bytes(ask.key));
            pipe.cmd("EVALSHA").arg(&self.take).arg(1).arg(key);
            pipe.arg(micros(ask.interval)).arg(ask.burst).arg(ask.need).arg(ask.want);
        }
        pipe.query_async(&mut self.connection).await
    }

    async fn beat(&mut self, key: &str, identity: &str) -> RedisResult<u32> {
        let millis = ALIVE.as_millis() as u64;
        for _ in 0..2 {
            let mut cmd = redis::cmd("EVALSHA");
            cmd.arg(&self.beat).arg(1).arg(key).arg(identity).arg(millis);
            match cmd.query_async(&mut self.connection).await {
                Err(error) if is_forgotten(&error) => self.reload().await?,
                other => return other,
            }
        }
        redis::cmd("EVAL").arg(BEAT).arg(1).arg(key).arg(identity).arg(millis).query_async(&mut self.connection).await
    }

    /// Somebody made the server forget all scripts.
    async fn reload(&mut self) -> RedisResult<()> {
        (self.take, self.beat) = load(&mut self.connection).await?;
        Ok(())
    }
}

fn is_forgotten(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        for (nanos, expected) in
            [(100, "0.100"), (33_333, "33.333"), (1_000_000, "1000.000"), (60_000_000_005, "60000000.005")]
        {
            assert_eq!(micros(Duration::from_nanos(nanos)), expected);
        }
    }
}
