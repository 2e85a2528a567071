//! Rate limits and concurrency limits, built. What is configured as before goes on where it was.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use rand::Rng;
use serin_core::concurrency::Concurrency;
use serin_core::limit::{Cost, KeyPart, Leases, Limiter, Rule, Store};

use crate::conf;
use crate::limits::bank::Bank;
use crate::limits::{ConcurrencyLimit, RateLimit};
use crate::telemetry::metrics::{LimitOwner, Metrics};

/// The rate limits of a service or a route. A rule of the same name and key, with the same bound of keys, keeps its
/// store; in it, quotas that have not changed keep their state. `bank` is where limits are that a fleet shares.
///
/// # Errors
/// A sentence about what a check should have found before.
pub(super) fn rate_limits(
    metrics: &Metrics,
    owner: LimitOwner<'_>,
    confs: &[conf::RateLimit],
    before: &[RateLimit],
    bank: Option<&Arc<Bank>>,
    now: Instant,
) -> Result<Vec<RateLimit>, String> {
    let build = |conf: &conf::RateLimit| {
        let rule = rule(conf).map_err(|problem| format!("{owner}: rate_limits.{}: {problem}", conf.name))?;
        let max_keys = conf.max_keys as usize;
        let same = |limit: &&RateLimit| {
            let Limiter { rule: old, store, .. } = &limit.limiter;
            old.name == rule.name && old.key == rule.key && store.max_keys() == max_keys
        };
        let kept = before.iter().find(same).map(|limit| &limit.limiter);
        let new = || Arc::new(Store::new(max_keys, rand::rng().next_u64(), now));
        let store = kept.map_or_else(new, |kept| Arc::clone(&kept.store));
        let metrics = metrics.rate_limit(owner, &rule.name);
        let bank = bank.filter(|_| conf.scope == conf::LimitScope::Fleet);
        let leases = bank.map(|bank| {
            let new = || Leases::new(Arc::clone(bank.fleet()), &identity(&rule), max_keys, rand::rng().next_u64(), now);
            kept.and_then(|kept| kept.leases.clone()).unwrap_or_else(|| Arc::new(new()))
        });
        let account = bank.zip(leases.as_ref()).map(|(bank, leases)| bank.account(&owner.path(&rule.name), leases));
        Ok(RateLimit { limiter: Limiter { rule, store, leases }, account, metrics })
    };
    confs.iter().map(build).collect()
}

/// What makes two rules of the same place and name the same one: keys are only comparable if they are made alike.
fn identity(rule: &Rule) -> Vec<u8> {
    rule.key.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n").into_bytes()
}

fn rule(conf: &conf::RateLimit) -> Result<Rule, String> {
    let text = |error: serin_core::limit::QuotaError| error.to_string();
    let own = |(value, rate): (&String, &conf::Rate)| Ok(((**value).into(), conf.quota_of(*rate).map_err(text)?));
    Ok(Rule {
        name: conf.name.shared(),
        key: conf.key.iter().map(key).collect(),
        quota: conf.quota().map_err(text)?,
        overrides: conf.overrides.iter().map(own).collect::<Result<_, String>>()?,
        cost: conf.cost.as_ref().map(|cost| Cost {
            header: cost.header.0.clone(),
            max: NonZeroU32::new(cost.max).unwrap_or(NonZeroU32::MIN),
        }),
        dry_run: conf.dry_run,
        fail_closed: conf.fail_closed,
    })
}

fn key(part: &conf::LimitKey) -> KeyPart {
    match part {
        conf::LimitKey::Header(name) => KeyPart::Header(name.0.clone()),
        conf::LimitKey::Cookie(name) => KeyPart::Cookie(name.as_str().into()),
        conf::LimitKey::Query(name) => KeyPart::Query(name.as_str().into()),
        conf::LimitKey::Claim(name) => KeyPart::Claim(name.as_str().into()),
        conf::LimitKey::ClientIp => KeyPart::ClientIp,
        conf::LimitKey::Route => KeyPart::Route,
        conf::LimitKey::Service => KeyPart::Service,
        conf::LimitKey::Tag => KeyPart::Tag,
    }
}

/// The concurrency limit of a service. `before` is what it had, with its configuration.
pub(super) fn concurrency(
    metrics: &Metrics,
    service: &str,
    conf: Option<conf::Concurrency>,
    before: Option<(conf::Concurrency, &ConcurrencyLimit)>,
) -> Option<ConcurrencyLimit> {
    let conf = conf?;
    let kept = before.filter(|(old, _)| *old == conf).map(|(_, limit)| Arc::clone(&limit.limit));
    let limit = kept.unwrap_or_else(|| Arc::new(Concurrency::new(conf.adaptive.min, conf.adaptive.max)));
    Some(metrics.concurrency(service, limit))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn built(yaml: &str, before: &[RateLimit]) -> Vec<RateLimit> {
        let confs: Vec<conf::RateLimit> = serde_json::from_str(yaml).unwrap();
        let metrics = Metrics::new().unwrap();
        rate_limits(&metrics, LimitOwner::Service("s"), &confs, before, None, Instant::now()).unwrap()
    }

    #[test]
    fn bursts_are_the_limit_or_in_proportion() {
        let cases = [
            (r#""limit": "100/s""#, (100, 1_000)),
            (r#""limit": "100/s", "burst": 50"#, (50, 500)),
            (r#""limit": "60/m", "burst": 1"#, (1, 1_000)),
        ];
        for (limit, (burst, vip)) in cases {
            let conf = format!(r#"[{{"name": "a", {limit}, "key": ["client_ip"], "overrides": {{"vip": "1000/s"}}}}]"#);
            let rule = &built(&conf, &[])[0].limiter.rule;
            assert_eq!((rule.quota.burst(), rule.overrides["vip"].burst()), (burst, vip), "{limit}");
            assert_eq!(rule.overrides["vip"].per(), Duration::from_secs(1));
        }
    }

    #[test]
    fn stores_go_on_while_name_key_and_bound_are_the_same() {
        let before = built(r#"[{"name": "a", "limit": "1/s"}, {"name": "b", "limit": "1/s"}]"#, &[]);
        let cases = [
            (r#"{"name": "a", "limit": "1/s"}"#, Some(0)),
            (r#"{"name": "b", "limit": "5/m", "burst": 3, "dry_run": true}"#, Some(1)),
            (r#"{"name": "a", "limit": "1/s", "key": ["route"]}"#, None),
            (r#"{"name": "a", "limit": "1/s", "max_keys": 5}"#, None),
            (r#"{"name": "c", "limit": "1/s"}"#, None),
        ];
        for (conf, expected) in cases {
            let after = built(&format!("[{conf}]"), &before);
            let kept = before.iter().position(|old| Arc::ptr_eq(&old.limiter.store, &after[0].limiter.store));
            assert_eq!(kept, expected, "{conf}");
        }
    }

    #[test]
    fn a_concurrency_limit_goes_on_while_its_bounds_are_the_same() {
        let metrics = Metrics::new().unwrap();
        let conf = |min| Some(conf::Concurrency { adaptive: conf::AdaptiveLimit { min, max: 50 } });
        let before = concurrency(&metrics, "s", conf(5), None).unwrap();
        for (min, kept) in [(5, true), (6, false)] {
            let after = concurrency(&metrics, "s", conf(min), conf(5).zip(Some(&before))).unwrap();
            assert_eq!(Arc::ptr_eq(&after.limit, &before.limit), kept, "{min}");
        }
        assert!(concurrency(&metrics, "s", None, conf(5).zip(Some(&before))).is_none());
    }
}
