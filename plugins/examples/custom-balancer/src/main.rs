//! The gateway with everything that it comes with, and one balancer more. Takes the arguments of `serin`.

use std::process::ExitCode;

use serin_example_balancer::StickyLeast;

fn main() -> ExitCode {
    serin::run(serin::builtin().with_balancer::<StickyLeast>())
}
