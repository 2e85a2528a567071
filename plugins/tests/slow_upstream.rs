//! One instance of three is ten times slower: what the picks that look at latency make of it, in virtual time.

mod sim;

use std::time::Duration;

use serin_core::candidates::Slot;
use sim::{Answer, Sim, ms};

const PICKS: [&str; 2] = ["adaptive", "peak_ewma"];
const CLIENTS: usize = 32;
const WARM_UP: Duration = ms(1_000);
const END: Duration = ms(11_000);

/// 20, 20 and 200 ms.
fn one_slow(slot: Slot, _at: Duration) -> Answer {
    Answer::Ok(if slot == 2 { ms(200) } else { ms(20) })
}

/// The same while the whole machine stands still for 100 ms of every 2 s.
fn one_slow_and_stalls(slot: Slot, at: Duration) -> Answer {
    let Answer::Ok(takes) = one_slow(slot, at) else { unreachable!() };
    let end = at + takes;
    let into = Duration::from_nanos((end.as_nanos() % ms(2_000).as_nanos()) as u64);
    Answer::Ok(if into < ms(100) { takes + ms(100) - into } else { takes })
}

/// Mean latency in ms of `clients` that send one request after the other, by Little's law, as the benchmark takes it
/// (`e2e/bench/scenarios.py`): warmed up by clients that hang up on what is pending.
fn mean_ms(pick: &str, seed: u64, behaviour: &dyn Fn(Slot, Duration) -> Answer) -> f64 {
    let mut sim = Sim::new(pick, &[100; 3], seed, behaviour);
    sim.closed_loop(CLIENTS, ms(0), WARM_UP);
    let warm = sim.done.len();
    sim.closed_loop(CLIENTS, WARM_UP, END);
    CLIENTS as f64 * (END - WARM_UP).as_secs_f64() * 1e3 / (sim.done.len() - warm) as f64
}

#[test]
fn closed_loop_mean_latency_beside_round_robin() {
    type Case<'a> = (&'a dyn Fn(Slot, Duration) -> Answer, f64);
    // 0.25 is what would be left without the slow instance.
    let cases: [Case<'_>; 2] = [(&one_slow, 0.27), (&one_slow_and_stalls, 0.29)];
    for pick in PICKS {
        for ((behaviour, limit), seed) in
            cases.iter().zip(0..).flat_map(|(&case, n)| (0..5).map(move |s| (case, n * 5 + s)))
        {
            let (ours, plain) = (mean_ms(pick, seed, behaviour), mean_ms("round_robin", seed, behaviour));
            assert!(
                ours <= limit * plain,
                "{pick} with seed {seed}: {ours:.1} ms, {:.3} x {plain:.1} ms",
                ours / plain
            );
        }
    }
}

#[test]
fn open_loop_share_of_the_slow_one() {
    for pick in PICKS {
        for seed in 0..20 {
            let mut sim = Sim::new(pick, &[100; 3], seed, &one_slow);
            sim.open_loop(200, ms(0), ms(20_000));
            let share = sim.shares(ms(10_000), ms(20_000))[2];
            assert!(share < 0.05, "{pick} with seed {seed}: {share}");
        }
    }
}

#[test]
fn open_loop_share_of_one_that_turns_slow_and_recovers() {
    let turns = |slot: Slot, at: Duration| {
        let slow = slot == 2 && (ms(20_000)..ms(50_000)).contains(&at);
        Answer::Ok(if slow { ms(200) } else { ms(20) })
    };
    for pick in PICKS {
        for seed in 0..10 {
            let mut sim = Sim::new(pick, &[100; 3], seed, &turns);
            sim.open_loop(200, ms(0), ms(90_000));
            let share = |from, to| sim.shares(ms(from), ms(to))[2];
            let (slow, recovered) = (share(30_000, 50_000), share(80_000, 90_000));
            assert!(share(10_000, 20_000) > 0.28, "{pick} with seed {seed}: before");
            assert!(slow < 0.05, "{pick} with seed {seed}: {slow} while it is slow");
            assert!(recovered > 0.28, "{pick} with seed {seed}: {recovered} after it recovered");
        }
    }
}

#[test]
fn fast_errors_attract_nothing() {
    let fails = |slot: Slot, _| if slot == 2 { Answer::Failed(ms(1)) } else { Answer::Ok(ms(20)) };
    for pick in PICKS {
        for seed in 0..10 {
            let mut sim = Sim::new(pick, &[100; 3], seed, &fails);
            sim.open_loop(200, ms(0), ms(20_000));
            let share = sim.shares(ms(1_000), ms(20_000))[2];
            assert!(share < 0.01, "{pick} with seed {seed}: {share}");
        }
    }
}

#[test]
fn nobody_starves() {
    // Every instance is worse than the one before it.
    let worse = |slot: Slot, _| Answer::Ok(ms(10 << slot));
    let mut sim = Sim::new("adaptive", &[100; 6], 1, &worse);
    sim.open_loop(400, ms(0), ms(60_000));
    let shares = sim.shares(ms(30_000), ms(60_000));
    assert!(shares.iter().all(|&share| share > 0.5 / 64.0 / 6.0), "{shares:?}");
}
