use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::super::tests::{header, limiter, per_second, with};
use super::super::{Basis, Cost, Limiter, Standing, judge};
use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// The bank, with the arithmetic of `take.lua`: by key, when its quota is whole again.
#[derive(Default)]
struct Bank(HashMap<[u8; 16], u64>);

impl Bank {
    fn take(&mut self, ask: &Ask, now: u64) -> Answer {
        let interval = nanos(ask.interval);
        let most = now + interval * u64::from(ask.burst);
        let whole = self.0.entry(ask.key).or_default();
        *whole = (*whole).clamp(now, most);
        let free = (most - *whole) / interval;
        let granted = if free >= u64::from(ask.need) { free.min(ask.want.into()) } else { 0 };
        *whole += granted * interval;
        Answer { granted: granted as u32, whole_in: Duration::from_nanos(*whole - now) }
    }
}

fn fleet_limiter(replicas: u32, quota: Quota, seed: u64, now: Instant) -> Limiter {
    let fleet = Arc::new(Fleet::new(NonZeroU32::new(replicas).unwrap()));
    fleet.set_up(true);
    let leases = Some(Arc::new(Leases::new(fleet, b"rule", 1_000, seed, now)));
    Limiter { leases, ..limiter(&[header("x-u")], quota, now) }
}

fn leases(limiter: &Limiter) -> &Leases {
    limiter.leases.as_ref().unwrap()
}

/// A request whose answers come at once, as in a fleet without distances.
fn request<'a>(limiter: &'a Limiter, bank: &mut Bank, start: Instant, now: Instant, words: &str) -> Standing<'a> {
    let at = nanos(now - start);
    let mut answer = |ask: &Ask| leases(limiter).settle(ask, Some(bank.take(ask, at)), now);
    let hold = match with(words, |subject| limiter.prepare(subject, now)) {
        Prepared::Alone | Prepared::Later(_, None) => panic!("the bank is there, and nobody else has asked"),
        Prepared::Now(hold, ask) => {
            ask.iter().for_each(answer);
            hold
        }
        Prepared::Later(claim, Some(ask)) => {
            answer(&ask);
            let (hold, ask) = leases(limiter).recheck(&claim, now).unwrap();
            ask.iter().for_each(answer);
            hold
        }
    };
    with(words, |subject| {
        let Standing { within, remaining, wait, full, basis, .. } = limiter.take(subject, now, Some(hold));
        Standing { quota: &limiter.rule.quota, within, remaining, wait, full, basis }
    })
}

#[test]
fn one_bucket_for_all_gateways() {
    let now = Instant::now();
    let gateways = [1, 2, 3].map(|seed| fleet_limiter(3, per_second(10, 3), seed, now));
    let mut bank = Bank::default();
    let mut told = |gateway: usize, words, now_: Instant| {
        let standing = request(&gateways[gateway], &mut bank, now, now_, words);
        (standing.within, standing.remaining, standing.wait.as_millis(), standing.basis)
    };
    assert_eq!(told(0, "x-u:1", now), (true, 2, 100, Basis::Fleet));
    assert_eq!(told(1, "x-u:1", now), (true, 1, 200, Basis::Fleet));
    assert_eq!(told(2, "x-u:1", now), (true, 0, 300, Basis::Fleet));
    for gateway in 0..3 {
        assert_eq!(told(gateway, "x-u:1", now), (false, 0, 100, Basis::Fleet));
    }
    assert_eq!(told(0, "x-u:2", now), (true, 2, 100, Basis::Fleet), "another key has another bucket");
    assert_eq!(told(1, "x-u:1", now + 100 * MILLISECOND), (true, 0, 300, Basis::Fleet));
    assert_eq!(told(2, "x-u:1", now + 100 * MILLISECOND), (false, 0, 100, Basis::Fleet));
}

#[test]
fn what_is_refused_is_not_asked_for_again_before_there_may_be_something() {
    let start = Instant::now();
    let mut limiter = fleet_limiter(1, per_second(1, 10), 1, start);
    limiter.rule.cost = Some(Cost { header: "x-cost".parse().unwrap(), max: NonZeroU32::new(10).unwrap() });
    let mut bank = Bank::default();
    assert!(request(&limiter, &mut bank, start, start, "x-cost:8").within);
    let refused = request(&limiter, &mut bank, start, start, "x-cost:5");
    assert_eq!((refused.within, refused.wait), (false, 3 * SECOND));
    with("x-cost:6", |subject| {
        let prepared = limiter.prepare(subject, start + 2 * SECOND);
        assert!(matches!(prepared, Prepared::Now(Hold::Refused { wait }, None) if wait == 2 * SECOND), "{prepared:?}");
    });
    assert!(request(&limiter, &mut bank, start, start, "x-cost:2").within, "less may be there");
    let standing = request(&limiter, &mut bank, start, start + 5 * SECOND, "x-cost:5");
    assert_eq!((standing.within, standing.remaining), (true, 0));
}

#[test]
fn what_is_left_of_a_lease_is_void_after_a_while() {
    let now = Instant::now();
    let limiter = fleet_limiter(1, per_second(1_000, 1_000), 1, now);
    let left = |now| {
        with("", |subject| {
            leases(&limiter).peek(
                &limiter.bytes(subject, &limiter.rule.quota),
                &limiter.rule.quota,
                NonZeroU32::MIN,
                now,
            )
        })
    };
    with("", |subject| {
        let Prepared::Later(claim, Some(ask)) = limiter.prepare(subject, now) else { panic!() };
        assert_eq!((ask.need, ask.want), (1, 1));
        assert!(matches!(limiter.prepare(subject, now), Prepared::Later(_, None)), "it is asked for already");
        assert!(matches!(leases(&limiter).recheck(&claim, now), Err(None)));
        leases(&limiter).settle(&ask, Some(Answer { granted: 5, whole_in: 5 * MILLISECOND }), now);
        assert!(leases(&limiter).recheck(&claim, now).is_ok());
    });
    assert!(left(now + 199 * MILLISECOND).is_some());
    assert_eq!(left(now + 200 * MILLISECOND), None);
    leases(&limiter).sweep(now + 200 * MILLISECOND);
    assert!(leases(&limiter).is_empty());
}

#[test]
fn without_an_answer_every_gateway_has_its_share() {
    let now = Instant::now();
    let mut limiter = fleet_limiter(3, per_second(30, 30), 1, now);
    let admitted = |limiter: &Limiter, words: &str, now| {
        (0..50).filter(|_| with(words, |subject| limiter.take(subject, now, None).within)).count()
    };
    assert_eq!(admitted(&limiter, "x-u:1", now), 10, "the bank did not say");
    leases(&limiter).fleet().set_up(false);
    with("x-u:2", |subject| {
        assert!(matches!(limiter.prepare(subject, now), Prepared::Alone), "nobody waits for a bank that is lost");
        assert_eq!(limiter.peek(subject, now).basis, Basis::Fallback);
    });
    assert_eq!((admitted(&limiter, "x-u:2", now), admitted(&limiter, "x-u:2", now + SECOND)), (10, 10));
    leases(&limiter).fleet().set_replicas(100);
    assert_eq!(admitted(&limiter, "x-u:3", now), 1, "a share of nothing is one");
    limiter.rule.fail_closed = true;
    assert_eq!(admitted(&limiter, "x-u:4", now), 0);
}

/// An ask that failed leaves nothing behind: the next request asks again.
#[test]
fn after_a_failure_it_is_asked_again() {
    let now = Instant::now();
    let limiter = fleet_limiter(1, per_second(10, 10), 1, now);
    with("", |subject| {
        for _ in 0..3 {
            let Prepared::Later(_, Some(ask)) = limiter.prepare(subject, now) else { panic!() };
            leases(&limiter).settle(&ask, None, now);
        }
    });
}

/// Who is over one limit uses up no other, and no limit of the fleet either.
#[test]
fn what_another_rule_refuses_is_given_back() {
    let now = Instant::now();
    let (shared, mine) = (fleet_limiter(1, per_second(10, 10), 1, now), limiter(&[], per_second(1, 1), now));
    let mut bank = Bank::default();
    let mut told = || {
        with("", |subject| {
            let hold = match shared.prepare(subject, now) {
                Prepared::Now(hold, None) => hold,
                Prepared::Later(claim, Some(ask)) => {
                    leases(&shared).settle(&ask, Some(bank.take(&ask, 0)), now);
                    leases(&shared).recheck(&claim, now).unwrap().0
                }
                other => panic!("{other:?}"),
            };
            let refused_by = judge(&[&shared, &mine], &[Some(hold)], subject, now, false).refused_by;
            (refused_by, bank.0.values().copied().sum::<u64>() / nanos(100 * MILLISECOND))
        })
    };
    assert_eq!([told(), told()], [(None, 1), (Some(1), 3)]);
    assert_eq!([told(), told(), told()], [(Some(1), 3); 3], "what was leased is there for the next");
}

#[test]
fn keys_without_room_share_a_bucket_of_the_fleet() {
    let now = Instant::now();
    let mut limiter = fleet_limiter(1, per_second(1, 1), 1, now);
    let small = |seed| {
        Some(Arc::new(Leases::new(
            Arc::clone(&leases(&fleet_limiter(1, per_second(1, 1), 1, now)).fleet),
            b"rule",
            2,
            seed,
            now,
        )))
    };
    limiter.leases = small(1);
    let mut bank = Bank::default();
    let within = ["a", "b", "c", "d"].map(|key| request(&limiter, &mut bank, now, now, &format!("x-u:{key}")).within);
    assert_eq!(within, [true, true, true, false], "c and d share one");
    limiter.leases = small(2);
    let within = ["e", "f", "g", "h"].map(|key| request(&limiter, &mut bank, now, now, &format!("x-u:{key}")).within);
    assert_eq!(within, [true, true, false, false], "and it is the same one in another gateway");
}

#[test]
fn keys_of_the_bank_are_of_one_rule_and_one_quota() {
    let now = Instant::now();
    let key = |limiter: &Limiter, words: &str| {
        let Prepared::Later(_, Some(ask)) = with(words, |subject| limiter.prepare(subject, now)) else { panic!() };
        leases(limiter).settle(&ask, None, now);
        ask.key
    };
    let (one, other) = (fleet_limiter(1, per_second(5, 5), 1, now), fleet_limiter(1, per_second(5, 5), 2, now));
    assert_eq!(key(&one, "x-u:1"), key(&other, "x-u:1"), "gateways agree without talking");
    assert_ne!(key(&one, "x-u:1"), key(&one, "x-u:2"));
    assert_ne!(key(&one, "x-u:1"), key(&fleet_limiter(1, per_second(6, 5), 1, now), "x-u:1"));
    let mut renamed = fleet_limiter(1, per_second(5, 5), 1, now);
    renamed.leases = Some(Arc::new(Leases::new(Arc::new(Fleet::new(NonZeroU32::MIN)), b"other", 10, 1, now)));
    leases(&renamed).fleet().set_up(true);
    assert_ne!(key(&one, "x-u:1"), key(&renamed, "x-u:1"));
}

#[derive(Debug, Default)]
struct Tally {
    sent: f64,
    admitted: f64,
    asks: f64,
    /// Had no answer in time.
    late: f64,
    /// Admitted in the second of most.
    most: f64,
}

/// A fleet with so many requests a second in each gateway, whose asks are answered after `distance`.
fn simulate(quota: &Quota, rates: &[f64], distance: Duration, lasts: Duration) -> Tally {
    const STEP: Duration = Duration::from_micros(100);
    let start = Instant::now();
    let limiters: Vec<_> =
        (0..rates.len()).map(|seed| fleet_limiter(rates.len() as u32, quota.clone(), seed as u64, start)).collect();
    let (mut bank, mut tally) = (Bank::default(), Tally::default());
    let mut due = vec![0.0; rates.len()];
    let mut under_way: Vec<VecDeque<(Instant, Ask)>> = rates.iter().map(|_| VecDeque::new()).collect();
    let mut waiting: Vec<Vec<(Instant, Claim)>> = rates.iter().map(|_| Vec::new()).collect();
    let mut admissions = VecDeque::new();
    let mut now = start;
    while now < start + lasts {
        for (at, limiter) in limiters.iter().enumerate() {
            while under_way[at].front().is_some_and(|(when, _)| *when <= now) {
                let (_, ask) = under_way[at].pop_front().unwrap();
                tally.asks += 1.0;
                leases(limiter).settle(&ask, Some(bank.take(&ask, nanos(now - start))), now);
            }
            let (mut asked, mut late) = (Vec::new(), 0);
            let mut held = |hold, now| {
                if matches!(hold, Hold::Spent { .. }) {
                    tally.admitted += 1.0;
                    admissions.push_back(now);
                }
            };
            waiting[at].retain(|(since, claim)| {
                if now > *since + 5 * MILLISECOND {
                    late += 1;
                    return false;
                }
                match leases(limiter).recheck(claim, now) {
                    Ok((hold, ask)) => {
                        asked.extend(ask);
                        held(hold, now);
                        false
                    }
                    Err(ask) => {
                        asked.extend(ask);
                        true
                    }
                }
            });
            due[at] += rates[at] * STEP.as_secs_f64();
            while due[at] >= 1.0 {
                due[at] -= 1.0;
                tally.sent += 1.0;
                match with("", |subject| limiter.prepare(subject, now)) {
                    Prepared::Alone => panic!("the bank is there"),
                    Prepared::Now(hold, ask) => {
                        asked.extend(ask);
                        held(hold, now);
                    }
                    Prepared::Later(claim, ask) => {
                        asked.extend(ask);
                        waiting[at].push((now, claim));
                    }
                }
            }
            for _ in 0..late {
                // By this gateway's share.
                tally.late += 1.0;
                if with("", |subject| limiter.take(subject, now, None)).within {
                    tally.admitted += 1.0;
                    admissions.push_back(now);
                }
            }
            under_way[at].extend(asked.into_iter().map(|ask| (now + distance, ask)));
        }
        now += STEP;
        while admissions.front().is_some_and(|first| *first + SECOND < now) {
            admissions.pop_front();
        }
        tally.most = tally.most.max(admissions.len() as f64);
    }
    tally
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    /// However the load is spread, the fleet lets through what the limit says: never more, and hardly less.
    #[test]
    fn a_fleet_admits_the_limit(
        limit in 50..3_000_u32,
        burst in 0.05..2.0_f64,
        shares in prop::collection::vec(0.01..1.0_f64, 1..5),
        load in 0.3..8.0_f64,
        distance in 100..1_500_u64,
    ) {
        let burst = (f64::from(limit) * burst).ceil() as u32;
        let sum: f64 = shares.iter().sum();
        let rates: Vec<_> = shares.iter().map(|share| share / sum * load * f64::from(limit)).collect();
        let tally = simulate(&per_second(limit, burst), &rates, Duration::from_micros(distance), 3 * SECOND);
        let allowed = f64::from(limit) * 3.0 + f64::from(burst);
        prop_assert!(tally.admitted <= allowed * 1.01 + 1.0, "{tally:?} of {allowed}");
        prop_assert!(tally.late <= tally.sent * 0.01, "{tally:?}");
        let least = tally.sent.min(f64::from(limit) * 3.0);
        prop_assert!(tally.admitted >= least * 0.9 - 5.0, "{tally:?} of {least}");
        let second = f64::from(limit) * 1.2 + f64::from(burst) * 1.05;
        prop_assert!(tally.most <= second + 1.0, "{tally:?} in a second, of {second}");
    }
}

/// Where units come back slowly, none is leased that might be lost: a user gets all of them.
#[test]
fn a_slow_limit_is_exact() {
    let start = Instant::now();
    let gateways = [1, 2].map(|seed| fleet_limiter(2, Quota::new(30, 3_600 * SECOND, 30).unwrap(), seed, start));
    let mut bank = Bank::default();
    let mut admitted = |gateway: usize| {
        let request = |n| request(&gateways[gateway], &mut bank, start, start + n * MILLISECOND, "").within;
        (0..20).map(request).filter(|within| *within).count()
    };
    assert_eq!([admitted(0), admitted(1)], [20, 10]);
}

#[test]
fn most_decisions_are_local() {
    // 80 %, 15 % and 5 % of half and of three times the limit.
    for load in [0.5, 3.0] {
        let rates = [0.8, 0.15, 0.05].map(|share| share * load * 2_000.0);
        let tally = simulate(&per_second(2_000, 2_000), &rates, Duration::from_micros(300), 4 * SECOND);
        assert!(tally.asks < tally.sent / 4.0, "{tally:?}");
    }
}
