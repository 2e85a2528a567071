//! The gateway with everything that it comes with, and a balancer that panics or stalls. Takes the arguments of `serin`.

use std::process::ExitCode;

use serin_example_faulty::Faulty;

fn main() -> ExitCode {
    serin::run(serin::builtin().with_balancer::<Faulty>())
}
