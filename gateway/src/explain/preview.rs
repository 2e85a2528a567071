//! What a change of weights would do: the exact share of users that move, by from and to.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serin_core::snapshot::{Abort, Service, ServiceTraffic};
use serin_core::subset::{BasisPoints, moved};

use super::{SwitchesInForce, switches};
use crate::conf::{Name, Percent};
use crate::control;
use crate::control::change::{Change, FlipError};
use crate::control::generation::Generation;

/// Weights that are to be previewed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// Name of the service.
    pub service: Name,
    /// New weights [those of the traffic document, which an abort or the canary switch may keep out of force].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<IndexMap<Name, Percent>>,
}

/// What new weights would do to users whom no tag rule sends elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Preview {
    /// Name of the service.
    pub service: String,
    /// Revision of the traffic document that it was compared with.
    pub revision: u64,
    /// Weights in force.
    pub from: IndexMap<String, Percent>,
    /// The new weights.
    pub to: IndexMap<String, Percent>,
    /// Who moves, by from and to. Shares are exact for the hash, not sampled.
    pub moves: Vec<Move>,
    /// The share of users that move, in all.
    pub moved: String,
    /// Kill switches and abort in force.
    pub switches: SwitchesInForce,
    /// Why the new weights would not be in force at once, if something keeps them.
    pub held: Option<String>,
}

/// Users that move from one subset to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Move {
    /// Where they are.
    pub from: String,
    /// Where they go.
    pub to: String,
    /// Their share of all users, such as `4.50%`.
    pub share: String,
}

/// Previews new weights. Nothing is changed.
///
/// # Errors
/// If the service is not known or the weights are not sound.
pub fn preview(generation: &Generation, proposal: &Proposal) -> Result<Preview, FlipError> {
    let weights = proposal.weights.clone();
    let change = Change::Service { name: proposal.service.to_string(), weights, abort: None };
    let document = change.apply(&generation.traffic, &generation.routing, |_| None)?;
    control::recheck(&document, &generation.routing).map_err(FlipError::Invalid)?;
    let unknown = || FlipError::UnknownService { name: proposal.service.to_string(), known: Vec::new() };
    let position = generation.service(&proposal.service).ok_or_else(unknown)?;
    let (service, traffic) = (&generation.core.services[position], &generation.core.traffic[position]);
    let weights = document.services.get(&proposal.service).map(|service| &service.weights);
    let new = match weights.filter(|weights| !weights.is_empty()) {
        None => all_stable(service),
        Some(weights) => {
            let weight = |name: &str| weights.get(name).map_or(0, |weight| weight.hundredths());
            service.subsets.iter().map(|subset| weight(&subset.name)).collect()
        }
    };
    let old = in_force(service, traffic);
    let (moves, moved) = compare(service, &old, &new);
    Ok(Preview {
        service: service.name.to_string(),
        revision: generation.traffic_revision,
        from: by_name(service, &old),
        to: by_name(service, &new),
        moves,
        moved: share(moved),
        switches: switches(generation, position),
        held: held(service, traffic),
    })
}

/// What keeps weights out of force.
fn held(service: &Service, traffic: &ServiceTraffic) -> Option<String> {
    let stable = &service.subsets[service.stable].name;
    let what = match (traffic.canary_switch, traffic.abort) {
        (true, _) => "the canary switch is on",
        (false, Abort::All | Abort::Weights) => "the rollout is aborted",
        (false, Abort::No) => return None,
    };
    Some(format!("{what}: everything goes to {stable}, and nobody moves until that ends"))
}

/// Weights in force by position of the subset.
#[must_use]
pub fn in_force(service: &Service, traffic: &ServiceTraffic) -> Vec<BasisPoints> {
    let held = traffic.canary_switch || traffic.abort != Abort::No;
    if held || traffic.shares.iter().all(|share| share.weight == 0) {
        return all_stable(service);
    }
    let mut weights = vec![0; service.subsets.len()];
    for share in &traffic.shares {
        weights[share.subset] = share.weight;
    }
    weights
}

fn all_stable(service: &Service) -> Vec<BasisPoints> {
    (0..service.subsets.len()).map(|at| if at == service.stable { 10_000 } else { 0 }).collect()
}

/// Weights by name of the subset.
#[must_use]
pub fn by_name(service: &Service, weights: &[BasisPoints]) -> IndexMap<String, Percent> {
    let named = service.subsets.iter().zip(weights);
    named.map(|(s, &weight)| (s.name.to_string(), Percent::from_hundredths(weight).unwrap_or(Percent::ALL))).collect()
}

fn compare(service: &Service, old: &[BasisPoints], new: &[BasisPoints]) -> (Vec<Move>, f64) {
    let rates = |weights: &[BasisPoints]| weights.iter().map(|&w| f64::from(w) / 10_000.0).collect::<Vec<_>>();
    let (old, new) = (rates(old), rates(new));
    let name = |at: usize| service.subsets[at].name.to_string();
    let mut moves = Vec::new();
    let mut total = 0.0;
    for (from, to) in (0..old.len()).flat_map(|from| (0..new.len()).map(move |to| (from, to))) {
        let moving = moved(&old, &new, from, to);
        if moving > 0.0 {
            total += moving;
            moves.push(Move { from: name(from), to: name(to), share: share(moving) });
        }
    }
    (moves, total)
}

/// A share of users, rounded to hundredths of a percent.
fn share(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.005 { "<0.01%".to_owned() } else { format!("{percent:.2}%") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_and_never_to_nothing() {
        let cases = [(0.0, "0.00%"), (0.000_01, "<0.01%"), (0.000_06, "0.01%"), (0.045, "4.50%"), (1.0, "100.00%")];
        for (given, expected) in cases {
            assert_eq!(share(given), expected);
        }
    }
}
