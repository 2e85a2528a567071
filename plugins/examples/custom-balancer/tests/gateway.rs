//! The gateway takes the balancer by its name, with its settings checked like those of any other.

use serin::conf::{Source, routing};
use serin_core::plugin::Node;
use serin_example_balancer::StickyLeast;

fn problems(link: &str) -> String {
    let document = format!(
        "services:\n  s:\n    instances: [{{ address: '127.0.0.1:1' }}]\n    balancer: [{link}]\nroutes:\n  - {{ name: r, match: {{}}, service: s }}\n"
    );
    let catalogue = serin::builtin().with_balancer::<StickyLeast>();
    let checked = routing(&Source::inline("routing.yaml", document), &catalogue, &Node::default());
    checked.err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn the_gateway_knows_it() {
    assert_eq!(problems("{ sticky_least: { slack: 2 } }"), "");
}

#[test]
fn its_settings_are_checked_with_their_place() {
    let told = problems("{ sticky_least: { slak: 2 } }");
    assert!(told.contains("routing.yaml:4:") && told.contains("slak"), "{told}");
}

#[test]
fn a_misspelt_name_is_told_the_nearest() {
    let told = problems("{ sticky_lest: {} }");
    assert!(told.contains("sticky_least"), "{told}");
}
