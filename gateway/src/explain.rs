//! Explains decisions on the running gateway: the same route table and the same [`decide`] that serve requests, with a
//! recorder that listens in and changes nothing.

mod explanation;
mod limits;
mod notes;
pub mod preview;
mod question;
pub mod standing;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use ipnet::IpNet;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serin_core::decide::{self, Assignment, Attempt, Location};
use serin_core::path;
use serin_core::request::RequestView;
use serin_core::route::{Action, Candidate, MatchWhy, Origin, Route};
use serin_core::snapshot::Service;

pub use self::explanation::*;
use self::notes::Notes;
pub use self::question::{BadQuestion, HeaderValues, Question};
pub use self::standing::{GuardsSeen, InstanceSeen};
use crate::conf::Abort;
use crate::control::generation::Generation;
use crate::proxy::{guarded, head};

/// Routes that an explanation names besides the one that was taken.
const MOST_NEAR_MISSES: usize = 20;

/// Explains what this generation does with a request. `trusted` are the networks of trusted proxies.
///
/// # Errors
/// If the question describes no request.
pub fn explain(generation: &Generation, trusted: &[IpNet], question: &Question) -> Result<Explanation, BadQuestion> {
    let asked = question.understand(trusted)?;
    // 53 bits, which every reader of JSON keeps.
    let seed = question.seed.unwrap_or_else(|| rand::rng().next_u64() >> 11);
    let mut explanation = Explanation {
        request: Understood {
            method: asked.parts.method.to_string(),
            host: head::host(&asked.parts).into_owned(),
            path: asked.parts.uri.path().to_owned(),
            query: asked.parts.uri.query().map(ToOwned::to_owned),
            client_ip: asked.client_ip,
            from_trusted_proxy: asked.trusted,
        },
        route: RouteTaken::default(),
        service: None,
        tag: None,
        user_key: None,
        bucket: None,
        weights: IndexMap::new(),
        subset: None,
        fallback: None,
        guards: None,
        narrows: Vec::new(),
        pick: None,
        upstream_path: None,
        rate_limits: Vec::new(),
        concurrency: None,
        switches: SwitchesInForce::default(),
        revision: Revisions { routing: generation.routing_revision, traffic: generation.traffic_revision },
        answer: None,
        seed,
    };
    match path::normal(asked.parts.uri.path(), &generation.paths).map(std::borrow::Cow::into_owned) {
        Err(error) => explanation.answer = Some(OwnAnswer::new(400, error.to_string())),
        Ok(path) => {
            explanation.request.path = path;
            Way { generation, asked: &asked, into: &mut explanation, rng: StdRng::seed_from_u64(seed) }.go();
        }
    }
    Ok(explanation)
}

/// One request on its way.
struct Way<'a> {
    generation: &'a Generation,
    asked: &'a question::Asked,
    into: &'a mut Explanation,
    rng: StdRng,
}

impl Way<'_> {
    fn go(mut self) {
        let (host, path) = (self.into.request.host.clone(), self.into.request.path.clone());
        let view = self.asked.view(&host, &path);
        let routes = &self.generation.core.routes;
        let found = routes.find(&view);
        self.into.route.near_misses = near_misses(routes.routes(), routes.candidates(&view), found.map(|f| f.route));
        let Some(found) = found else {
            self.into.answer = Some(OwnAnswer::new(404, "no route matches"));
            return;
        };
        let route = &routes.routes()[found.route];
        self.into.route.name = Some(route.name.to_string());
        self.into.route.why = Some(matched(route, found.why));
        match &route.action {
            Action::Service(position) => self.choose_subset(route, *position, &view),
            Action::Redirect(redirect) => {
                let origin = Origin { scheme: self.asked.scheme, port: self.asked.port };
                let location = Some(redirect.location(&route.path, &view, origin));
                let status = redirect.status().as_u16();
                self.into.answer = Some(OwnAnswer { location, ..OwnAnswer::new(status, "the route redirects") });
            }
            Action::Respond(respond) => {
                let answer = OwnAnswer::new(respond.status.as_u16(), "the route answers by itself");
                self.into.answer = Some(answer);
            }
        }
    }

    fn choose_subset(&mut self, route: &Route, position: usize, view: &RequestView<'_>) {
        let core = &self.generation.core;
        let (service, traffic) = (&core.services[position], &core.traffic[position]);
        let jwt = self.generation.services[position].jwt.as_ref();
        let claims = jwt.and_then(|jwt| jwt.claims(&self.asked.parts.headers));
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let view = RequestView { claims: claims.as_deref(), unix_time, ..*view };
        let mut notes = Notes::default();
        let key = core.signing_key.as_ref();
        let assignment = decide::assign(service, traffic, key, &view, &mut self.rng, &mut notes);
        self.into.service = Some(service.name.to_string());
        self.into.upstream_path = Some(route.rewrite.path.apply(&route.path, view.path).into_owned());
        self.into.bucket = Some(format!("{:016x}", assignment.bucket.0));
        self.into.switches = switches(self.generation, position);
        self.into.weights = preview::by_name(service, &preview::in_force(service, traffic));
        self.into.tag = Some(chosen(service, assignment, &notes));
        let refusal = self.limits(route, position, assignment.subset, &view);
        match decide::locate(service, assignment.subset, Instant::now(), &mut notes) {
            Ok(location) => self.choose_instance(position, &location, assignment, view, &mut notes),
            Err(unavailable) => {
                let reason = format!("no subset can serve: {}", unavailable.reason.as_str());
                self.into.answer = Some(OwnAnswer::new(503, reason));
            }
        }
        let seen = GuardsSeen::of(service, std::mem::take(&mut notes.panic), Instant::now());
        self.into.guards = Some(seen).filter(|seen| !seen.is_empty());
        self.into.fallback = fallback(service, assignment.subset, &notes);
        self.into.user_key = notes.user_key.take();
        self.into.narrows = notes.narrows;
        if let Some(refusal) = refusal {
            // It would come before any of that.
            (self.into.answer, self.into.pick) = (Some(refusal), None);
        }
    }

    fn choose_instance<'s>(
        &mut self,
        position: usize,
        location: &Location<'s>,
        assignment: Assignment,
        view: RequestView<'s>,
        notes: &mut Notes,
    ) {
        notes.panic = location.panic;
        let core = &self.generation.core;
        let (service, traffic) = (&core.services[position], &core.traffic[position]);
        self.into.subset = location.subset.map(|at| service.subsets[at].name.to_string());
        let (bucket, now) = (assignment.bucket, Instant::now());
        let attempt = Attempt { request: view, bucket, tried: &[], now };
        let side = &self.generation.services[position];
        let (picked, panicked) = guarded::explained(side, location, traffic, attempt, &mut self.rng, notes);
        let Some(instance) = picked else {
            self.into.answer = Some(OwnAnswer::new(503, "no instance was picked"));
            return;
        };
        let chain = location.pool.chain.pick_name();
        self.into.pick = Some(Picked {
            balancer: if panicked {
                format!("round_robin, since {chain} panicked")
            } else if traffic.balancer_switch || side.guard.tripped().is_some() {
                "round_robin".to_owned()
            } else {
                chain.to_string()
            },
            instance: instance.address.to_string(),
            zone: instance.zone.as_ref().map(ToString::to_string),
            labels: instance.labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        });
    }
}

fn near_misses(routes: &[Route], candidates: Vec<Candidate>, taken: Option<usize>) -> Vec<NearMiss> {
    let others = candidates.into_iter().filter(|candidate| Some(candidate.found.route) != taken);
    let miss = |candidate: Candidate| {
        let route = &routes[candidate.found.route];
        let failed = candidate.failed.iter().filter_map(|&at| route.conditions.get(at)).map(ToString::to_string);
        NearMiss { name: route.name.to_string(), why: matched(route, candidate.found.why), failed: failed.collect() }
    };
    others.take(MOST_NEAR_MISSES).map(miss).collect()
}

fn matched(route: &Route, why: MatchWhy) -> Matched {
    let name = |kind: serde_json::Result<serde_json::Value>| {
        // Unit variants serialise as text.
        kind.ok().and_then(|kind| kind.as_str().map(ToOwned::to_owned)).unwrap_or_default()
    };
    let path = std::iter::once(format!("path {}", route.path));
    Matched {
        host: name(serde_json::to_value(why.host)),
        path: name(serde_json::to_value(why.path)),
        conditions: path.chain(route.conditions.iter().map(ToString::to_string)).collect(),
    }
}

fn chosen(service: &Service, assignment: Assignment, notes: &Notes) -> TagChosen {
    let name = |rule: usize| service.tags[rule].name.to_string();
    TagChosen {
        rule: assignment.rule.map(name),
        reason: assignment.why.as_str().to_owned(),
        rules: notes.rules.iter().map(|(rule, verdict)| notes::rule_seen(name(*rule), *verdict)).collect(),
    }
}

fn fallback(service: &Service, wanted: usize, notes: &Notes) -> Option<FallbackTaken> {
    let (_, reason) = notes.unusable.first()?;
    let name = |subset: usize| service.subsets[subset].name.to_string();
    Some(FallbackTaken {
        wanted: name(wanted),
        reason: reason.as_str().to_owned(),
        unusable: notes.unusable.iter().map(|(at, reason)| (name(*at), reason.as_str().to_owned())).collect(),
    })
}

/// Kill switches and abort in force for a service.
#[must_use]
pub fn switches(generation: &Generation, position: usize) -> SwitchesInForce {
    use serin_core::snapshot::Abort as Core;
    let traffic = &generation.core.traffic[position];
    SwitchesInForce {
        balancer: traffic.balancer_switch,
        canary: traffic.canary_switch,
        limits: generation.traffic.switches.limits,
        abort: match traffic.abort {
            Core::No => Abort::Off,
            Core::Weights => Abort::Weights,
            Core::All => Abort::All,
        },
        tripped: generation.services[position].guard.tripped(),
    }
}

#[cfg(test)]
mod tests;
