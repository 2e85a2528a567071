//! Whether a failed attempt may be tried again, as a value.

mod budget;

use std::time::Duration;

use http::{Method, StatusCode};
use rand::{Rng, RngExt};
use smallvec::SmallVec;

pub use self::budget::{BudgetPolicy, RetryBudget};

/// What a retry may be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOn {
    /// The connection could not be made in time.
    ConnectFailure,
    /// The connection broke before a response head arrived.
    Reset,
    /// No response head within the first-byte timeout.
    Timeout,
    /// This status.
    Status(u16),
    /// Any status from 500 on.
    ServerError,
}

/// Where a retry may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Across {
    /// The subset of the first attempt.
    Same,
    /// From a canary to the stable subset, never the other way.
    #[default]
    Stable,
    /// Any instance of the service.
    Any,
}

/// Retries of a service or route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, the first one included; 1 never retries.
    pub attempts: usize,
    /// What is retried.
    pub on: SmallVec<[RetryOn; 4]>,
    /// Where to.
    pub across: Across,
    /// How long an idempotent request without a body waits for a response before it is sent to a second instance as well
    /// ("hedged", Dean and Barroso, The Tail at Scale, 2013); `None` never does.
    pub hedge_after: Option<Duration>,
}

/// How long to wait before a retry: a random time up to a bound that doubles with every attempt ("full jitter", Brooker
/// 2015), so that those that failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Bound before the first retry.
    pub base: Duration,
    /// Bound of the bounds.
    pub max: Duration,
}

impl Backoff {
    /// The time to wait after `failed` attempts, 1 or more.
    pub fn draw(&self, failed: usize, rng: &mut dyn Rng) -> Duration {
        let doublings = u32::try_from(failed.saturating_sub(1)).unwrap_or(31).min(31);
        let bound = self.base.saturating_mul(1 << doublings).min(self.max);
        bound.mul_f64(rng.random())
    }
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection: nothing was sent.
    Connect,
    /// The instance's pool has no connection to spare: nothing was sent, and nothing is said of the instance.
    Overflow,
    /// The connection broke before a response head; `reused` if it came from the pool, where the upstream may have
    /// closed it just before (RFC 9112 section 9.3.1).
    Reset {
        /// Whether the connection came from the pool.
        reused: bool,
    },
    /// No response head in time.
    Timeout,
    /// A response with this status.
    Status(StatusCode),
}

impl RetryPolicy {
    /// Whether to try again after `failure` of attempt number `attempt` (from 1). One that found a pool full is tried
    /// elsewhere whatever `on` says. A request that was sent is repeated
    /// only if its method is idempotent (RFC 9110 section 9.2.2) and its body can be sent again.
    #[must_use]
    pub fn verdict(&self, failure: Failure, attempt: usize, method: &Method, replayable: bool) -> bool {
        if attempt >= self.attempts {
            return false;
        }
        match failure {
            Failure::Overflow => true,
            Failure::Connect => self.on.contains(&RetryOn::ConnectFailure),
            _ if !replayable || !method.is_idempotent() => false,
            Failure::Reset { reused } => reused || self.on.contains(&RetryOn::Reset),
            Failure::Timeout => self.on.contains(&RetryOn::Timeout),
            Failure::Status(status) => self.retries_status(status),
        }
    }

    /// Whether responses of this status are worth another attempt.
    #[must_use]
    pub fn retries_status(&self, status: StatusCode) -> bool {
        self.on.iter().any(|on| match on {
            RetryOn::Status(code) => status == *code,
            RetryOn::ServerError => status.is_server_error(),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_spread_and_bounded() {
        use rand::SeedableRng;
        let backoff = Backoff { base: Duration::from_millis(25), max: Duration::from_millis(60) };
        let mut rng = rand::rngs::StdRng::seed_from_u64(1);
        for (failed, bound) in [(1, 25), (2, 50), (3, 60), (99, 60)] {
            let draws: Vec<_> = (0..1_000).map(|_| backoff.draw(failed, &mut rng).as_secs_f64() * 1e3).collect();
            let mean = draws.iter().sum::<f64>() / 1e3;
            assert!(draws.iter().all(|&ms| ms <= f64::from(bound)), "{failed}");
            assert!((mean / f64::from(bound) - 0.5).abs() < 0.05, "{failed}: mean {mean} ms of {bound}");
        }
    }

    #[test]
    fn verdicts() {
        let policy = RetryPolicy {
            attempts: 2,
            on: [RetryOn::ConnectFailure, RetryOn::Reset, RetryOn::Status(503)].into_iter().collect(),
            across: Across::Stable,
            hedge_after: None,
        };
        let reset = Failure::Reset { reused: false };
        let status = |code| Failure::Status(StatusCode::from_u16(code).unwrap());
        let cases = [
            (Failure::Connect, 1, Method::POST, false, true),
            (Failure::Connect, 2, Method::GET, true, false),
            (Failure::Overflow, 1, Method::POST, false, true),
            (Failure::Overflow, 2, Method::GET, true, false),
            (reset, 1, Method::GET, true, true),
            (reset, 1, Method::GET, false, false),
            (reset, 1, Method::POST, true, false),
            (Failure::Timeout, 1, Method::GET, true, false),
            (status(503), 1, Method::PUT, true, true),
            (status(500), 1, Method::GET, true, false),
            (status(503), 1, Method::POST, true, false),
        ];
        for (failure, attempt, method, replayable, expected) in cases {
            let got = policy.verdict(failure, attempt, &method, replayable);
            assert_eq!(got, expected, "{failure:?} {attempt} {method} {replayable}");
        }
    }
}
